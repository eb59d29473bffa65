"""Each operator by its definition, in float64 and autograd: what every implementation is compared with."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SHAPES = [(4, 5, 6, 7), (9, 33, 1, 1), (3, 2, 40, 41), (6, 4), (5, 3, 11), (2, 1030, 2, 1)]
BETA, FACTOR, SHIFT, EPS = 3.0, 0.7, 0.2, 1e-5


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    return (
        torch.logaddexp(torch.zeros_like(x), log_beta.exp() * x) / log_beta.exp() - math.log(2) / log_beta.exp() + shift
    )


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    others, shape = [d for d in range(x.dim()) if d != 1], (1, -1, *(1,) * (x.dim() - 2))
    centered = x - x.mean(others, keepdim=True)
    y = centered / (centered.square().mean(others, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def error(found: Tensor | None, truth: Tensor | None) -> float:
    """Return the largest error, relative to the largest true value."""
    if found is None or truth is None:
        assert found is None, "computed what is not there"
        return 0.0
    return float((found.double() - truth).abs().max() / truth.abs().max().clamp_min(1e-2))


def random(*shape: int, seed: int = 0, channels_last: bool = False) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def double(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.double().requires_grad_()


def softplus_errors(ops: ModuleType, beta: float, dtype: torch.dtype = torch.float32) -> Iterator[float]:
    x, grad, outer = (random(3, 5, 70, seed=seed).to(dtype) for seed in range(3))
    log_beta = torch.tensor(math.log(beta))
    y = ops.softplus(x, log_beta, SHIFT)
    exact, rho, g = double(x), double(log_beta), double(grad)
    yield error(y, softplus(exact, rho, SHIFT).detach())
    # Gradients are functions of the rounded output: give the truth the input that has it.
    truth = torch.autograd.grad(softplus(exact, rho, SHIFT), (exact, rho), g, create_graph=True)
    found = ops.softplus_gradient(grad, y, log_beta, SHIFT, True)
    yield from map(error, found, (t.detach() for t in truth))
    total = torch.autograd.grad(truth[0], (g, exact, rho), outer.double())
    in_grad, in_y, in_beta = ops.softplus_second(outer, grad, y, log_beta, SHIFT)
    in_x, more = ops.softplus_gradient(in_y, y, log_beta, SHIFT, True)  # on through y, which depends on x and β
    yield from map(error, (in_grad, in_x, in_beta + more), total)


def norm_errors(
    ops: ModuleType, shape: tuple[int, ...], affine: bool, with_other: bool, activated: bool, channels_last: bool
) -> Iterator[float]:
    """Compare value, running statistics, gradient and second order of batch norm, alone or with what follows."""
    layout = {"channels_last": channels_last}
    x, grad, outer, other, outer_other = (random(*shape, seed=seed, **layout) for seed in range(5))
    x = 2 * x + 3
    with_other = with_other and activated
    other, outer_other = (other, outer_other) if with_other else (None, None)
    weight, bias = (random(shape[1], seed=7), random(shape[1], seed=8)) if affine else (None, None)
    log_beta = torch.tensor(math.log(BETA)) if activated else None
    moved = [torch.zeros(shape[1]), torch.ones(shape[1])]
    settings = (log_beta, FACTOR, SHIFT)
    y, mean, invstd = ops.norm(x, weight, bias, *moved, 0.1, EPS, other, *settings)
    exact, w, b, o, rho, g = map(double, (x, weight, bias, other, log_beta, grad))
    pre = norm(exact, w, b, EPS)
    truth = softplus(FACTOR * (pre if o is None else pre + o), rho, SHIFT) if activated else pre
    yield error(y, truth.detach())
    expected = [torch.zeros(shape[1]), torch.ones(shape[1])]
    torch.nn.functional.batch_norm(x, *expected, training=True, momentum=0.1)
    yield from map(error, moved, (t.double() for t in expected))
    inputs = (exact, o, w, b, rho)
    given = [t for t in inputs if t is not None]
    first = dict(zip(map(id, given), torch.autograd.grad(truth, given, g, create_graph=True), strict=True))
    kept = y if activated else None
    found = ops.norm_gradient(grad, kept, x, weight, mean, invstd, EPS, *settings, with_other, activated)
    for mine, of in zip(found, inputs, strict=True):
        yield error(mine, first[id(of)].detach()) if of is not None else 0.0
    objective = (first[id(exact)] * outer.double()).sum()
    objective = objective if o is None else objective + (first[id(o)] * outer_other.double()).sum()
    second = torch.autograd.grad(objective, [g, *given], allow_unused=True)
    total = dict(zip(map(id, (g, *given)), second, strict=True))
    in_grad, in_y, in_x, in_weight, in_beta = ops.norm_second(
        outer, outer_other, grad, kept, x, weight, mean, invstd, found[2], found[3], EPS, *settings
    )
    if activated:  # on through y, which depends on x, other, w, b and β
        onward = ops.norm_gradient(in_y, y, x, weight, mean, invstd, EPS, *settings, with_other, True)
        in_x, in_weight, in_beta = in_x + onward[0], in_weight + onward[2], in_beta + onward[4]
    pairs = [(in_grad, g), (in_x, exact), (in_weight, w), (in_beta, rho)]
    yield from (error(mine, total[id(of)]) for mine, of in pairs if of is not None)


def affine_errors(
    ops: ModuleType, shape: tuple[int, ...], affine: bool, with_other: bool, activated: bool, channels_last: bool
) -> Iterator[float]:
    """Compare value, gradient and second order of eval-mode batch norm, alone or with what follows."""
    layout = {"channels_last": channels_last}
    x, grad, outer, other, outer_other = (random(*shape, seed=seed, **layout) for seed in range(5))
    other, outer_other = (other, outer_other) if with_other else (None, None)
    weight, bias = (random(shape[1], seed=7), random(shape[1], seed=8)) if affine else (None, None)
    mean, var = random(shape[1], seed=9), random(shape[1], seed=10).abs() + 0.1
    log_beta = torch.tensor(math.log(BETA)) if activated else None
    settings = (log_beta, FACTOR, SHIFT)
    y = ops.affine(x, weight, bias, mean, var, EPS, other, *settings)
    exact, o, g = map(double, (x, other, grad))
    fixed = [None if t is None else t.double() for t in (mean, var, weight, bias)]
    pre = torch.nn.functional.batch_norm(exact, *fixed, training=False, eps=EPS)
    pre = pre if o is None else pre + o
    truth = softplus(FACTOR * pre, log_beta.double(), SHIFT) if activated else pre
    yield error(y, truth.detach())
    inputs = [exact] if o is None else [exact, o]
    first = torch.autograd.grad(truth, inputs, g, create_graph=True)
    kept = y if activated else None
    found = ops.affine_gradient(grad, kept, weight, var, EPS, *settings, with_other)
    yield from (error(mine, of.detach()) for mine, of in zip(found, first, strict=False))
    objective = sum((f * v.double()).sum() for f, v in zip(first, (outer, outer_other), strict=False))
    total = torch.autograd.grad(objective, [g, *inputs], allow_unused=True)
    in_grad, in_y = ops.affine_second(outer, outer_other, grad, kept, weight, var, EPS, *settings)
    yield error(in_grad, total[0])
    if activated:  # on through y, which depends on x and other
        onward = ops.affine_gradient(in_y, y, weight, var, EPS, *settings, with_other)
        yield from (error(mine, of) for mine, of in zip(onward, total[1:], strict=False))


def scales_errors(ops: ModuleType) -> Iterator[float]:
    """Compare what γ-BNs of several kinds scale their weights by, and its gradient; two channels of the last tie."""
    sizes = (3, 4, 700, 7)
    variances = [random(size, seed=size).abs() + 0.1 for size in sizes]
    variances[-1] = torch.ones(7)
    weights = [random(3, seed=1), None, random(700, seed=2), torch.tensor([1.0, -1.0, 0.0, 0.5, 0.5, 0.2, 0.1])]
    biases = [random(3, seed=3), None, None, random(7, seed=4)]
    log_gammas = [torch.tensor(value) for value in (-0.5, 0.1, 9.0, -1.0)]
    grads, bias_grads = [random(size, seed=size + 1) for size in sizes], [random(3, seed=5), random(7, seed=6)]
    scaled, shifted, gains, factors = ops.scales(variances, weights, biases, log_gammas, [EPS] * 4)
    found = ops.scales_gradient(grads, bias_grads, weights, biases, gains, factors)
    w, b, rho = ([double(t) for t in own] for own in (weights, biases, log_gammas))
    outputs, others = [], []
    for i in range(4):
        gain = (variances[i].double() + EPS).rsqrt()
        steep = (gain if w[i] is None else gain * w[i].abs()).amax()
        f = torch.where(steep > rho[i].exp(), rho[i].exp() / steep, torch.ones_like(steep))
        outputs.append(f * (torch.ones_like(gain) if w[i] is None else w[i]))
        others += [] if b[i] is None else [f * b[i]]
    yield from map(error, [*scaled, *shifted], (t.detach() for t in (*outputs, *others)))
    inputs = [t for t in (*w, *b, *rho) if t is not None]
    pairs = zip([*outputs, *others], [g.double() for g in (*grads, *bias_grads)], strict=True)
    total = sum((output * grad).sum() for output, grad in pairs if output.requires_grad)
    truth = torch.autograd.grad(total, inputs, materialize_grads=True)
    yield from map(error, [*found[0], *found[1], *found[2].unbind()], truth)


def unit_errors(ops: ModuleType) -> Iterator[float]:
    weights = [random(5, 3, 3, 3), random(70, 80, seed=1), random(7, 5, seed=2)]
    slopes = [weight.abs().sign() * weight.sign() * random(*weight.shape, seed=3).abs() for weight in weights]
    grads = [random(*weight.shape, seed=4) for weight in weights]
    units, sigma = ops.unit_weights(weights, slopes)
    found = ops.unit_weights_gradient(grads, units, slopes, sigma)
    for i, (weight, slope, grad) in enumerate(zip(weights, slopes, grads, strict=True)):
        exact = double(weight)
        value = (exact * slope.double()).sum()
        (truth,) = torch.autograd.grad(exact / value, exact, grad.double())
        yield error(units[i], (exact / value).detach())
        yield error(sigma[i], value.detach())
        yield error(found[i], truth)


def _cases() -> dict[str, Callable[[ModuleType], Iterator[float]]]:
    cases: dict[str, Callable[[ModuleType], Iterator[float]]] = {
        "unit weights": unit_errors,
        "scales": scales_errors,
    }
    for beta in (0.01, 1.0, 5.0, 30.0):
        cases[f"softplus, β = {beta:g}"] = partial(softplus_errors, beta=beta)
    for shape, affine, last in product(SHAPES, (False, True), (False, True)):
        for other, activated in ((False, False), (False, True), (True, True)):
            if len(shape) == 4 or not last:
                given = {"affine": affine, "with_other": other, "activated": activated, "channels_last": last}
                chosen = ", ".join(k for k, v in given.items() if v)
                cases[f"affine norm of {shape}, {chosen}"] = partial(affine_errors, shape=shape, **given)
                cases[f"norm of {shape}, " + ", ".join(k for k, v in given.items() if v)] = partial(
                    norm_errors, shape=shape, **given
                )
    return cases


CASES = _cases()
