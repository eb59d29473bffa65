"""The README's promises: its example runs, its files exist, its help answers without PyTorch."""

import re
import subprocess
import sys
from pathlib import Path

import lowcurve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_ten_line_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    x = names["x"]
    assert names["plain"](x).shape == (64, 10)
    assert names["geometry"].curvature.isfinite().all()
    assert (names["adversarial"].adversarial - x).flatten(1).norm(dim=1).max() <= 0.1 + 1e-5


def test_every_linked_file_exists() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", prose)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_public_name_resolves() -> None:
    assert [name for name in lowcurve.__all__ if not hasattr(lowcurve, name)] == []


def test_help_needs_no_torch() -> None:
    code = "import sys; import lowcurve.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ci_runs_what_the_readme_says() -> None:
    commands = (ROOT / ".ci" / "run").read_text()
    assert "make lint test" in commands
    assert "make test" in README and "make lint test" in (ROOT / "CONTRIBUTING.md").read_text()
