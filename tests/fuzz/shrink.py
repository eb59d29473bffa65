"""What is the smallest network that still shows a finding? Removes nodes and oddities while it stays the same."""

import copy
import time
from collections.abc import Iterator
from typing import Any

from tests.fuzz.build import Recipe
from tests.fuzz.hunt import Found, rebuilt
from tests.fuzz.operations import OPERATIONS, SHAPES

_SIMPLEST = {"layout": "contiguous", "training": False, "dtype": "torch.float32", "spectral": False, "convert": False}
_SHAPES = ([2], [5], [2, 6], [2, 4, 4])


def shrink(found: Found, seconds: float = 30.0) -> Found:
    """Return a finding of the same kind on a network from which nothing can be taken away, or time is up."""
    until = time.monotonic() + seconds
    smaller: Found | None = found
    while smaller is not None:
        found = smaller
        smaller = _first(found, until)
    return found


def _first(found: Found, until: float) -> Found | None:
    """Return the first simpler network that shows the same."""
    for recipe in simpler(found.case.recipe):
        if time.monotonic() > until:
            return None
        again = rebuilt(found, recipe)
        if again is not None:
            return again
    return None


def simpler(recipe: Recipe) -> Iterator[Recipe]:
    """Yield recipes with one thing less: a node, an oddity, an unusual setting, a sample."""
    for number in range(len(recipe["nodes"]), 0, -1):
        yield {**recipe, "nodes": _without(recipe["nodes"], number)}
    for position, node in enumerate(recipe["nodes"]):
        for key in set(node) - {"op", "from", "settings"}:
            yield _with_node(recipe, position, {k: v for k, v in node.items() if k != key})
        for name, values in OPERATIONS[node["op"]].settings.items():
            if node["settings"][name] != values[0]:
                yield _with_node(recipe, position, {**node, "settings": {**node["settings"], name: values[0]}})
    for key, value in _SIMPLEST.items():
        if recipe[key] != value:
            yield {**recipe, key: value}
    if recipe["batch"] > 1:
        yield {**recipe, "batch": recipe["batch"] - 1}
    for shape in _SHAPES:
        if len(shape) < len(recipe["shape"]) or (len(shape) == len(recipe["shape"]) and shape < recipe["shape"]):
            yield {**recipe, "shape": shape}
            yield {**recipe, "shape": shape, "nodes": _unshaped(recipe["nodes"])}


def _unshaped(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove all nodes that only change shapes: flat inputs do not need them."""
    number = next((k for k, node in enumerate(nodes, 1) if node["op"] in SHAPES), None)
    return nodes if number is None else _unshaped(_without(nodes, number))


def _without(nodes: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Remove node `number` (from 1); who read it reads its first input, and who shared its module has its own."""
    source = nodes[number - 1]["from"][0]
    rest = []
    for node in nodes[: number - 1] + nodes[number:]:
        node = copy.deepcopy(node)
        node["from"] = [_moved(source if k == number else k, number) for k in node["from"]]
        for key in ("share", "tie"):
            if node.get(key) == number:
                del node[key]
            elif key in node:
                node[key] = _moved(node[key], number)
        rest.append(node)
    return rest


def _moved(position: int, removed: int) -> int:
    return position - (position > removed)


def _with_node(recipe: Recipe, position: int, node: dict[str, Any]) -> Recipe:
    nodes = list(recipe["nodes"])
    nodes[position] = node
    return {**recipe, "nodes": nodes}
