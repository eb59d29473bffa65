"""`python -m build`: the wheel that comes out of the source archive has all it needs, and works outside the clone."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = ROOT / "scripts" / "check_installed.py"
SOURCES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "lowcurve").rglob("*.[ch]")]
TEMPLATES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "lowcurve/report/templates").iterdir()]
MODULES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "lowcurve").rglob("*.py")]
LOOPS = shutil.which(os.environ.get("CC", "cc")) is not None and sys.platform == "linux"


def build(folder: Path) -> None:
    """Build both archives from a copy, without installing anything: what is left of a build stays out of the clone."""
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "lowcurve", folder / "clone" / "lowcurve", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "clone")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "clone")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.skipif(
    find_spec("build") is None or find_spec("setuptools") is None,
    reason="build and setuptools are not installed (pip install '.[dev]')",
)
def test_archives_are_whole_and_work_in_an_empty_folder(
    tmp_path,
):  # one test: several workers would build several times
    build(tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*SOURCES, *TEMPLATES, *MODULES, "pyproject.toml", "LICENSE"} <= names

    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = {*wheel.namelist()}
        wheel.extractall(tmp_path / "site")
    assert {*SOURCES, *TEMPLATES, *MODULES} <= names
    assert not [name for name in names if not re.match(r"lowcurve(-[0-9.]+\.dist-info)?/", name)]
    assert any(re.search(r"/_compiled\.[^/]*(so|pyd)$", name) for name in names) == LOOPS

    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHECK), *(["--loops"] if LOOPS else [])]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(tmp_path / "site") in done.stdout


def test_versions_agree():
    import lowcurve

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == lowcurve.__version__


def test_the_release_workflow_builds_every_supported_python():
    yaml = pytest.importorskip("yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = [c.split(":: ")[-1] for c in project["project"]["classifiers"] if ":: Python :: 3." in c]
    built_for = project["tool"]["cibuildwheel"]["build"].split()
    assert {f"cp{version.replace('.', '')}-*" for version in versions} <= {*built_for}
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    systems = {name.split("-")[0] for name in jobs["wheels"]["strategy"]["matrix"]["os"]}
    assert systems == {"ubuntu", "macos", "windows"}
