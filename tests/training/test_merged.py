"""Are equal operations of a graph one, and those that only look equal two?"""

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from lowcurve.training.merged import merge_equal
from lowcurve.training.step import TrainingStep
from lowcurve.training.traced import trace
from tests.training.test_compiled_step import X, Y, network


def count(graph: fx.Graph, target: object) -> int:
    return sum(node.target is target for node in graph.nodes)


def test_a_step_computes_every_beta_once() -> None:
    step = TrainingStep(network("lcnn"), "lcnn")
    graph = trace(step, [X, Y]).graph.graph
    betas = sum(name.endswith("log_beta") for name, _ in step.model.named_parameters())
    of_parameters = [
        node
        for node in graph.nodes
        if node.target is torch.ops.aten.clamp_max.default and node.args[0].op == "placeholder"
    ]
    assert betas > 0
    assert len({node.args[0] for node in of_parameters}) == len(of_parameters)


def test_what_is_written_or_drawn_is_not_merged() -> None:
    def function(x: Tensor) -> Tensor:
        first = x.exp()
        x.add_(1)
        view = first.view(-1)
        copies = first.clone(), first.clone()
        copies[0].view(-1).mul_(2)
        return (
            first
            + x.exp()
            + view.cos()
            + first.view(-1).cos()
            + copies[0]
            - copies[1]
            + torch.rand_like(x)
            - torch.rand_like(x)
        )

    graph = make_fx(function)(torch.rand(3))
    before = graph(torch.zeros(3))
    merge_equal(graph.graph)
    graph.recompile()
    aten = torch.ops.aten
    assert count(graph.graph, aten.exp.default) == 2
    assert count(graph.graph, aten.clone.default) >= 1
    assert count(graph.graph, aten.cos.default) == 1
    assert count(graph.graph, aten.rand_like.default) == 2
    torch.manual_seed(0)
    mine = graph(torch.zeros(3))
    torch.manual_seed(0)
    assert torch.allclose(mine, function(torch.zeros(3)))
    assert before.shape == mine.shape
