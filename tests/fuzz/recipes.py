"""What does a random network look like? Draws recipes: mostly ordinary, with something odd in most of them."""

import random
from collections.abc import Collection
from typing import Any

from tests.fuzz.build import HOOKS, LAYOUTS, Case, Recipe, Unfit, Writer, build
from tests.fuzz.operations import (
    ARITHMETIC,
    BLOCKS,
    FUNCTIONS,
    IMAGE,
    LINEAR,
    NORMS,
    OPERATIONS,
    POOLING,
    RECTIFIERS,
    SHAPES,
    SMOOTH,
)

SIZES = ([2], [2], [5], [2, 6], [2, 4, 4], [3, 5, 5], [1, 6, 6])
DTYPES = ("torch.float32",) * 6 + ("torch.float64", "torch.bfloat16")
# How often each family of operations is drawn.
FAMILIES = (
    (LINEAR, 8),
    (RECTIFIERS, 5),
    (SMOOTH, 5),
    (FUNCTIONS, 3),
    (NORMS, 5),
    (BLOCKS, 3),
    (POOLING, 2),
    (SHAPES, 2),
)
PROBABLE_BRANCH = 0.25
ODD = 0.12  # the chance of each oddity of a node


def draw(seed: int, preferred: Collection[str] = (), dtypes: Collection[str] = DTYPES) -> Case:
    """Return the first network that works among those that follow from `seed`.

    `preferred` operations are drawn nine times in ten, for oracles that would refuse most others.
    """
    chance = random.Random(seed)
    while True:
        try:
            return build(_recipe(chance, seed, preferred, tuple(dtypes)))
        except Unfit:
            continue


def _recipe(chance: random.Random, seed: int, preferred: Collection[str], dtypes: tuple[str, ...]) -> Recipe:
    shape = chance.choice(SIZES)
    layouts = [name for name in LAYOUTS if name != "channels_last" or len(shape) == IMAGE]
    writer, nodes = Writer(list(shape)), []
    for _ in range(chance.randint(1, 7)):
        _extend(chance, writer, nodes, preferred)
    if len(writer.shape) > 1:
        _append(writer, nodes, _node(chance, "flatten", writer))
    head = _node(chance, "linear", writer)
    head["settings"]["out"] = chance.choice((2, 3, 5))
    _append(writer, nodes, head)
    return {
        "seed": seed,
        "shape": list(shape),
        "batch": chance.choice((2, 3, 5)),
        "dtype": chance.choice(dtypes),
        "layout": chance.choice(layouts) if chance.random() < 0.5 else "contiguous",
        "training": chance.random() < 0.5,
        "beta": chance.choice((5.0, 1.0, 0.1, 50.0)),
        "gamma": chance.choice((10.0, 1.0, 0.3)),
        "spectral": chance.random() < 0.6,
        "convert": chance.random() < 0.5,
        "nodes": nodes,
    }


def _extend(chance: random.Random, writer: Writer, nodes: list[dict[str, Any]], preferred: Collection[str]) -> None:
    """Try operations until one fits."""
    while True:
        if chance.random() < PROBABLE_BRANCH:
            op = chance.choice(list(ARITHMETIC))
        else:
            families, often = zip(*FAMILIES, strict=True)
            family = chance.choices(families, often)[0]
            spatial = family is LINEAR and len(writer.shape) > 1 and chance.random() < 0.8
            op = "conv" if spatial else chance.choice(list(family))
        if preferred and op not in preferred and chance.random() < 0.9:
            continue
        if _append(writer, nodes, _node(chance, op, writer)):
            return


def _append(writer: Writer, nodes: list[dict[str, Any]], node: dict[str, Any]) -> bool:
    try:
        writer.add(node)
    except Unfit:
        return False
    nodes.append(node)
    return True


def _node(chance: random.Random, op: str, writer: Writer) -> dict[str, Any]:
    """Draw a node: its inputs (the last value, and any other), its settings, and what is odd about it."""
    operation, last = OPERATIONS[op], len(writer.values) - 1
    settings = {
        name: chance.choice(values) if chance.random() < 0.6 else values[0]
        for name, values in operation.settings.items()
    }
    node: dict[str, Any] = {"op": op, "from": [last if chance.random() > ODD else chance.randint(0, last)]}
    node["settings"] = settings
    if operation.arity == 2:
        node["from"].append(chance.randint(0, last))
    if operation.is_module:
        oddities = {
            "share": lambda: chance.choice(list(writer.modules) or [0]),
            "tie": lambda: chance.choice(list(writer.modules) or [0]),
            "hook": lambda: chance.choice(list(HOOKS)),
            "weight": lambda: chance.choice((0.0, 1e3, 1e-3, -1.0, 1e-8)),
        }
        if op in RECTIFIERS:
            oddities["inplace"] = lambda: chance.choice((True, "dangling"))
        for name, drawn in oddities.items():
            if chance.random() < (0.4 if name == "inplace" else ODD):
                node[name] = drawn()
    return node
