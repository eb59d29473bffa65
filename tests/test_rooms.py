"""Are the rooms of the package apart as CONTRIBUTING says? Which modules does an import load?"""

import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError
from pathlib import Path

import pytest

from scripts.package_graph import order, package_graph

ROOT = Path(__file__).parents[1]


def test_no_rooms_know_each_other() -> None:
    graph = package_graph()
    assert {"layers", "training", "commands"} <= graph.keys()
    assert not graph["errors"] and graph["training"]["errors"] > 3
    rooms = order(graph)
    assert rooms.index("layers") < rooms.index("surgery") < rooms.index("training") < rooms.index("commands")


def drawing() -> list[list[str]]:
    """The floors of CONTRIBUTING's drawing, highest first; each is a list of rooms."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Rooms")[1].split("```")[1]
    floors: list[list[str]] = [[]]
    for line in text.strip().splitlines():
        if line.strip() == "↓":
            floors.append([])
        else:
            floors[-1] += line.partition("│")[0].split()
    return floors


def test_every_arrow_points_down_in_the_drawing() -> None:
    graph, floors = package_graph(), drawing()
    height = {room: -floor for floor, rooms in enumerate(floors) for room in rooms}
    assert height.keys() == graph.keys()
    upward = [f"{room} -> {other}" for room in graph for other in graph[room] if height[other] >= height[room]]
    assert not upward


def additions() -> list[tuple[str, str, str]]:
    """The rows of CONTRIBUTING's table: what to add, what to write, and the test that does it from outside."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## To add, write")[1].split("\n\n")[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return [(added, written, outside) for added, written, outside in cells]


@pytest.mark.parametrize(("added", "written", "outside"), additions())
def test_what_the_table_names_is_there(added: str, written: str, outside: str) -> None:
    package, quoted = ROOT / "lowcurve", re.findall(r"`([^`]+)`", written)
    files = [package / name for name in quoted if name.endswith(".py")]
    files = [file.parent / "__init__.py" if "NAME" in file.name else file for file in files]
    text = "".join(file.read_text() for file in files)
    if "kernels" in added:
        text += (package / "kernels" / "ops.py").read_text()
    assert files or "register" in written
    for name in quoted:
        if re.fullmatch(r"_?[A-Z]\w+", name):  # a table or a class
            assert name in text, name
    for test in re.findall(r"`(?:tests/extensions/)?(test_\w+\.py)`", outside):
        assert (ROOT / "tests" / "extensions" / test).exists()


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "rooms"
    (package / "a").mkdir(parents=True)
    (package / "a" / "one.py").write_text("def f():\n    from rooms.b import g\n\n\nfrom rooms import errors\n")
    (package / "b.py").write_text("if TYPE_CHECKING:\n    from rooms.a import one\n")
    (package / "errors.py").write_text("import os\n")
    graph = package_graph(package)
    assert graph == {"a": Counter(b=1, errors=1), "b": Counter(), "errors": Counter()}
    (package / "b.py").write_text("import rooms.a.one\n")
    with pytest.raises(CycleError):
        order(package_graph(package))


@pytest.mark.parametrize(
    ("imported", "forbidden"),
    [("lowcurve", ["torch", "numpy"]), ("lowcurve.data", ["lowcurve.layers", "lowcurve.kernels"])],
)
def test_an_import_loads_no_more_than_it_needs(imported: str, forbidden: list[str]) -> None:
    code = f"import sys, {imported}; print([name for name in {forbidden} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
