"""Oracle: are values, gradients and second derivatives, in inputs and in every parameter, those of the definitions?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lowcurve.layers.spectral import SpectralNorm
from tests.fuzz.build import Case
from tests.fuzz.findings import Finding, Values, compare, noise
from tests.fuzz.reference import plain


def first_order(case: Case) -> None:
    """Logits and gradients of the converted network."""
    _against_plain(case, derivatives)


def second_order(case: Case) -> None:
    """Gradients of a random combination of gradients."""
    _against_plain(case, second_derivatives)


def _against_plain(case: Case, measured: Callable[[nn.Module, Tensor], Values]) -> None:
    model = case.subject()
    for module in model.modules():
        if isinstance(module, SpectralNorm):
            module.eval()  # training would move the singular vectors, at each forward of a shared layer
    dtype = case.x.dtype
    truth = lambda x: measured(plain(model, torch.float64), x)  # noqa: E731
    exact, error = noise(truth, lambda x: measured(plain(model, dtype), x), case.x)
    compare(measured(model, case.x), exact, error, dtype, measured.__name__)


def derivatives(model: nn.Module, x: Tensor) -> Values:
    """Return logits, and gradients of a random combination of them, by name."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    logits, names, grads = _gradients(model, x, create_graph=False)
    return {"logits": logits.detach(), **dict(zip(names, grads, strict=True))}


def second_derivatives(model: nn.Module, x: Tensor) -> Values:
    """Return the gradients of a random combination of all gradients, by name."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    _, names, grads = _gradients(model, x, create_graph=True)
    mixed = torch.stack([(grad.double() * _random(grad)).sum() for grad in grads]).sum()
    inputs = [x, *model.parameters()]
    if not mixed.requires_grad:
        return {}
    found = torch.autograd.grad(mixed, inputs, allow_unused=True)
    zero = [torch.zeros_like(v) if g is None else g for v, g in zip(inputs, found, strict=True)]
    return {f"second derivative in {name}": g.detach() for name, g in zip(names, zero, strict=True)}


def _gradients(model: nn.Module, x: Tensor, create_graph: bool) -> tuple[Tensor, list[str], list[Tensor]]:
    named = dict(model.named_parameters())
    logits = model(x.clone(memory_format=torch.preserve_format))
    loss = (logits.double() * _random(logits)).sum()
    inputs = [x, *named.values()]
    found = torch.autograd.grad(loss, inputs, create_graph=create_graph, allow_unused=True)
    if any(g is not None and g.shape != v.shape for v, g in zip(inputs, found, strict=True)):
        raise Finding("a gradient has another shape than its parameter")
    grads = [torch.zeros_like(v) if g is None else g for v, g in zip(inputs, found, strict=True)]
    return logits, ["x", *named], grads


def _random(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)
