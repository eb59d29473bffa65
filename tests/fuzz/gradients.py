"""Oracle: are values, gradients and second derivatives, in inputs and in every parameter, those of the definitions?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lowcurve.kernels.replace import fast_double_backward
from lowcurve.layers.spectral import SpectralNorm
from tests.fuzz.build import Case, Unfit
from tests.fuzz.findings import Finding, Values, compare, noise
from tests.fuzz.reference import plain

Measure = Callable[[nn.Module, Tensor], Values]


def first_order(case: Case) -> None:
    """Logits, gradients and running statistics."""
    _against_plain(case, derivatives, derivatives)


def second_order(case: Case) -> None:
    """Gradients of a random combination of gradients."""
    try:
        _against_plain(case, second_derivatives, second_derivatives)
    except RuntimeError as error:
        if "is not implemented" in str(error):  # PyTorch says so of hardsigmoid
            raise Unfit(str(error)) from error
        raise


def fast_second_order(case: Case) -> None:
    """The same by the short cuts that penalties and curvatures take."""
    _against_plain(case, second_derivatives, fast_second_derivatives)


def transforms(case: Case) -> None:
    """Derivatives in eval mode by function transforms: forward and reverse mode, and both of one sample at a time."""
    case.net.eval()
    try:
        _against_plain(case, transformed, transformed)
    except NotImplementedError as error:
        if "forward AD" in str(error):  # PyTorch says so of hardsigmoid's gradient
            raise Unfit(str(error)) from error
        raise


def _against_plain(case: Case, expected: Measure, measured: Measure) -> None:
    model = case.subject()
    for module in model.modules():
        if isinstance(module, SpectralNorm):
            module.eval()  # training would move the singular vectors, at each forward of a shared layer
    dtype = case.x.dtype
    truth = lambda x: expected(plain(model, torch.float64), x)  # noqa: E731
    exact, error = noise(truth, lambda x: expected(plain(model, dtype), x), case.x)
    compare(measured(model, case.x), exact, error, dtype, measured.__name__)


def derivatives(model: nn.Module, x: Tensor) -> Values:
    """Return logits, gradients of a random combination of them by name, and the statistics that the forward left."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    logits, names, grads = _gradients(model, x, create_graph=False)
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
    return {"logits": logits.detach(), **dict(zip(names, grads, strict=True)), **statistics}


def second_derivatives(model: nn.Module, x: Tensor) -> Values:
    """Return the gradients of a random combination of all gradients, by name."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    _, names, grads = _gradients(model, x, create_graph=True)
    mixed = torch.stack([(grad.double() * _random(grad)).sum() for grad in grads]).sum()
    inputs = [x, *model.parameters()]
    depends = mixed.requires_grad  # not where the model is affine
    found = torch.autograd.grad(mixed, inputs, allow_unused=True) if depends else [None] * len(inputs)
    zero = [torch.zeros_like(v) if g is None else g for v, g in zip(inputs, found, strict=True)]
    return {f"second derivative in {name}": g.detach() for name, g in zip(names, zero, strict=True)}


def fast_second_derivatives(model: nn.Module, x: Tensor) -> Values:
    """Return the same, computed by `fast_double_backward`."""
    with fast_double_backward():
        return second_derivatives(model, x)


def transformed(model: nn.Module, x: Tensor) -> Values:
    """Return Jacobians and Hessians in x, by torch.func."""
    cotangent = _random(x.new_empty(model(x.clone()).shape)).to(x.dtype)

    def combined(x: Tensor) -> Tensor:
        return (model(x.clone()) * cotangent).sum()

    def of_one(x: Tensor, weights: Tensor) -> Tensor:
        return (model(x[None].clone())[0] * weights).sum()

    direction = _random(x).to(x.dtype)
    reverse = torch.func.grad(combined)(x)
    forward = torch.func.jvp(lambda x: model(x.clone()), (x,), (direction,))[1]
    mixed = torch.func.jvp(torch.func.grad(combined), (x,), (direction,))[1]
    each = torch.func.vmap(torch.func.grad(of_one))(x, cotangent)
    return {"reverse": reverse, "forward": forward, "forward over reverse": mixed, "each sample": each}


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
