"""Which rooms of the package know which? Count the imports between them and refuse a circle.

    python scripts/package_graph.py    the rooms, lowest first, each with the rooms it knows and how often

A room is a folder of `lowcurve/`; the files beside the folders are rooms of their own. Imports inside functions count,
those for type checkers (`if TYPE_CHECKING`) do not.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lowcurve"
Graph = dict[str, Counter[str]]  # room -> how many imports of each other room


def package_graph(package: Path = PACKAGE) -> Graph:
    """Count the imports of each room from each other room; the table of contents, `__init__.py`, is no room."""
    graph: Graph = {}
    for path in sorted(package.rglob("*.py")):
        room = _room(path.relative_to(package).with_suffix("").parts)
        if room in {"__init__", "__main__"}:
            continue
        known = graph.setdefault(room, Counter())
        for module in _imports(ast.parse(path.read_text()), package.name):
            if _room(module) != room:
                known[_room(module)] += 1
    return graph


def order(graph: Graph) -> list[str]:
    """Return the rooms such that each knows only earlier ones; raise `graphlib.CycleError` where there is a circle."""
    return list(TopologicalSorter(graph).static_order())


def _room(parts: tuple[str, ...]) -> str:
    return parts[0] if parts else "__init__"


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, ...]]:
    """Yield the modules of the package that a file imports, as parts below the package."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == package:
        modules = [f"{package}.{alias.name}" for alias in node.names]
    else:
        modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
    for first, *rest in (module.split(".") for module in modules):
        if first == package and rest and not rest[0].startswith("__"):
            yield tuple(rest)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, package)


def main() -> None:
    """Print the graph, lowest room first."""
    graph = package_graph()
    try:
        rooms = order(graph)
    except CycleError as error:
        sys.exit(f"rooms that know each other: {' -> '.join(error.args[1])}")
    for room in rooms:
        known = sorted(graph[room].items(), key=lambda pair: rooms.index(pair[0]))
        print(f"{room:12} {', '.join(f'{other} {count}' for other, count in known)}".rstrip())
    print(f"{len(rooms)} rooms, {sum(len(known) for known in graph.values())} arrows, no circle")


if __name__ == "__main__":
    main()
