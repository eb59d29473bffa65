"""How does a traced graph become a module that leaves nothing behind when it goes?"""

import linecache
import weakref

from torch import fx, nn

from lowcurve.compat import forget_source, keep_through_copies


def graph_module(root: nn.Module, graph: fx.Graph, name: str = "GraphModule") -> fx.GraphModule:
    """Return the graph as a module on the parts of `root`.

    torch.fx keeps the source of every graph module for tracebacks, for ever; here it goes with the module.
    """
    known = set(linecache.cache)
    module = fx.GraphModule(root, graph, name)
    weakref.finalize(module, _forget, linecache.cache.keys() - known)
    return module


def _forget(sources: set[str]) -> None:
    for source in sources:
        linecache.cache.pop(source, None)
        forget_source(source)


def keep_attributes(module: nn.Module, result: fx.GraphModule) -> None:
    """Carry plain attributes (a config, sizes) over to the graph module, also through later copies."""
    kept = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in ("training", "forward") and not hasattr(result, name)
    }
    keep_through_copies(result, kept)
    for name, value in kept.items():
        setattr(result, name, value)
