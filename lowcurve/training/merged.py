"""Which operations of a graph are the same? A step asks for β in forward, backward and penalty: once is enough."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from lowcurve.compat import schema_of

_NOISE = torch.Tag.nondeterministic_seeded


def merge_equal(graph: fx.Graph) -> None:
    """Let operations with the same inputs be one, where nothing writes to what they read or return.

    Noise is drawn as often as before.

    >>> graph = fx.symbolic_trace(lambda x: torch.ops.aten.exp.default(x) + torch.ops.aten.exp.default(x)).graph
    >>> merge_equal(graph)
    >>> sum(node.target is torch.ops.aten.exp.default for node in graph.nodes)
    1
    """
    written = {_memory(node) for call in graph.nodes for node in _written_by(call)}
    known: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        if not _is_function(node) or _memory(node) in written or written & {_memory(n) for n in node.all_input_nodes}:
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        same = known.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _is_function(node: fx.Node) -> bool:
    """Whether a node computes numbers from its inputs alone."""
    schema = schema_of(node.target)
    return schema is not None and not schema.is_mutable and _NOISE not in node.target.tags  # type: ignore[union-attr]


def _written_by(node: fx.Node) -> list[fx.Node]:
    """Return the inputs that an operation writes to."""
    found: list[fx.Node] = []
    arguments = getattr(schema_of(node.target), "arguments", ())
    for place, argument in enumerate(arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            found += [
                own for own in (value if isinstance(value, list | tuple) else [value]) if isinstance(own, fx.Node)
            ]
    return found


def _memory(node: fx.Node) -> fx.Node:
    """Return the node in whose memory this one's result is: views lead to what they are views of."""
    while any(result.alias_info is not None for result in getattr(schema_of(node.target), "returns", ())):
        node = node.all_input_nodes[0]
    return node


def _hashable(value: Any) -> Hashable:
    """Return a key for arguments, in which 1, 1.0 and True are different."""
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(own)) for name, own in sorted(value.items()))
    if isinstance(value, slice):
        return "slice", _hashable((value.start, value.stop, value.step))
    return type(value), value
