"""Oracles: are curvatures, operator norms and bounds on the right side of dense float64 truths?"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.guarantees.summary import Bounds
from tests.dense import dense_jacobian
from tests.fuzz.build import Case, Unfit
from tests.fuzz.findings import Finding
from tests.fuzz.reference import plain

_TOL = 1e-2
_POINTS = 4


def curvature(case: Case) -> None:
    """An eigenvalue of the Hessian is within the residual of the value, and none is much larger."""
    of = ("loss", "margin", 0)[case.recipe["seed"] % 3]
    model = case.subject()
    found = lc.curvature(model, case.x, case.y, of=of, tol=_TOL)
    twins = {dtype: plain(model.eval(), dtype) for dtype in {torch.float64, case.x.dtype}}
    for k in range(len(case.x)):
        try:
            gradients, hessians = _around(
                lambda x, k=k: _scalar(twins[x.dtype](x[None].clone()), int(case.y[k]), of), case.x[k]
            )
        except RuntimeError as error:  # PyTorch has no second derivative of hardsigmoid
            raise Unfit(str(error)) from error
        value, residual, slope = (float(f[k]) for f in (found.hessian_norm, found.residual, found.gradient_norm))
        if not all(bool(h.isfinite().all()) for h in hessians):
            continue
        if not math.isfinite(value):
            raise Finding(f"curvature of {of} is {value}, the dense Hessian is finite")
        _between(slope, [float(g.norm()) for g in gradients], 1e-4 * slope + 1e-6, f"gradient norm of {of}")
        theta = math.sqrt(max(value**2 - residual**2, 0.0))
        near = [min(abs(abs(float(e)) - theta) for e in torch.linalg.eigvalsh(h)) for h in hessians]
        # Results have the precision of x, and so have weights that are computed: those of spectral norms.
        last_place = 32 * torch.finfo(case.x.dtype).eps * value + 1e-12
        if case.x.dtype == torch.float64:  # as precise as the truth, which is rounded too
            last_place += max(float(torch.linalg.matrix_norm(h - hessians[0], 2)) for h in hessians[2:])
        if of == "loss":
            last_place += _lost_by_softmax(twins[torch.float64], case.x[k])
        if min(near) > residual * 1.01 + last_place:
            raise Finding(f"of {of}: no eigenvalue within residual {residual:.3g} of {theta:.6g}: {min(near):.3g}")
        norms = [float(torch.linalg.matrix_norm(h, 2)) for h in hessians]
        if int(found.iterations[k]) < 30 and min(norms) > (1 + _TOL) * value + 2 * residual + last_place:
            raise Finding(f"of {of}: the Hessian norm is {value:.6g}, the truth {min(norms):.6g}")


def _lost_by_softmax(model: nn.Module, x: Tensor) -> float:
    """Bound the error of Jᵀ (diag p − p pᵀ) J in float64, which is all that is left of it where some p is almost 1."""
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None].clone()), x.double().contiguous())
    return 8 * torch.finfo(torch.float64).eps * float(jacobian.square().sum())


def _around(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return gradient and Hessian in float64, at x and at points hardly told from x, and in the precision of x."""
    x = x.contiguous()  # PyTorch's `hessian` mixes up the columns of gradients that are not row-major
    generator = torch.Generator().manual_seed(0)
    points = [x.double(), x]
    for _ in range(2):
        step = torch.randn(x.shape, generator=generator, dtype=torch.float64) * torch.finfo(x.dtype).eps
        points.append(x.double() + step)
    gradients = [torch.autograd.functional.jacobian(function, point).flatten().double() for point in points]
    hessians = [torch.autograd.functional.hessian(function, point).reshape(x.numel(), -1).double() for point in points]
    return gradients, [(hessian + hessian.T) / 2 for hessian in hessians]


def _between(value: float, truths: list[float], slack: float, what: str) -> None:
    if not min(truths) - slack <= value <= max(truths) + slack:
        raise Finding(f"{what} is {value:.8g}, the truth {truths[0]:.8g}")


def _scalar(logits: Tensor, label: int, of: str | int) -> Tensor:
    if of == "loss":
        return torch.logsumexp(logits[0], 0) - logits[0, label]
    if of == "margin":
        others = [c for c in range(logits.shape[1]) if c != label]
        return logits[0, label] - logits[0, others].max()
    return logits[0, int(of)]


def norms(case: Case) -> None:
    """Estimate ≤ dense singular value ≤ bound for each layer, as it is and spectrally normalized."""
    sizes = _input_sizes(case)
    for name, shape in sizes.items():
        module = case.model().eval().get_submodule(name)
        spatial = None if isinstance(module, nn.Linear) else shape[1:]
        matrix = dense_jacobian(case.model().get_submodule(name), shape if spatial else shape[-1:])
        truth = float(torch.linalg.matrix_norm(matrix, 2))
        estimate, bound = lc.operator_norm(module, spatial), lc.operator_norm_bound(module, spatial)
        if not truth * 0.999 <= estimate.value <= truth * (1 + 1e-6) or not truth <= bound.value:
            raise Finding(f"{name}: {estimate.value:.8g} ≤ {truth:.8g} ≤ {bound.value:.8g} does not hold")
        if truth > 0:
            _unit(lc.spectral_norm(module, spatial), shape if spatial else shape[-1:], name)


def _unit(module: nn.Module, shape: tuple[int, ...], name: str) -> None:
    """After steps of training the norm stays near one, and eval mode makes it one."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, *shape, generator=generator, dtype=next(module.parameters()).dtype)
    for _ in range(3):
        module.train()(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    module(x)
    applied, folded = module.weight.detach().clone(), lc.fold(module)
    settled = float(torch.linalg.matrix_norm(dense_jacobian(folded, shape), 2))
    folded.weight.data.copy_(applied)
    followed = float(torch.linalg.matrix_norm(dense_jacobian(folded, shape), 2))
    if followed > 1.02 or abs(settled - 1) > 1e-3:
        raise Finding(f"{name}: the norm is {followed:.5g} in training and {settled:.5g} in eval mode, 1 was promised")


def _input_sizes(case: Case) -> dict[str, tuple[int, ...]]:
    """Return the shape of one sample at each plain linear layer; a convolution of a single sample has none."""
    sizes: dict[str, tuple[int, ...]] = {}
    model = case.model().eval()

    def note(name: str, module: nn.Module, inputs: tuple[Tensor]) -> None:
        if isinstance(module, nn.Linear) or inputs[0].dim() == module.weight.dim():  # type: ignore[union-attr,operator]
            sizes[name] = tuple(inputs[0].shape[1:])

    for name, module in model.named_modules():
        if type(module) in (nn.Linear, nn.Conv1d, nn.Conv2d) and not module._forward_pre_hooks | module._forward_hooks:
            module.register_forward_pre_hook(partial(note, name))
    model(case.x.clone())
    return sizes


def bounds(case: Case) -> None:
    """Gradients and Hessians of logits, margins and loss, wherever they are looked at, are below their bounds."""
    model = case.subject()
    found = lc.bounds(model, tuple(case.x.shape[1:]))
    truth = plain(model.eval(), torch.float64)
    generator = torch.Generator().manual_seed(2)
    spread = torch.randn(_POINTS, *case.x.shape[1:], generator=generator, dtype=torch.float64)
    functions = _bounded(truth, int(case.y[0]), found)
    for x in torch.cat([case.x.double(), 3 * spread]).contiguous():
        for name, (function, steep, bent) in functions.items():
            gradient = float(torch.autograd.functional.jacobian(function, x).norm())
            if gradient > steep:
                raise Finding(f"the gradient of the {name} is {gradient:.6g}, its bound {steep:.6g}")
            hessian = torch.autograd.functional.hessian(function, x).reshape(x.numel(), x.numel())
            if math.isinf(bent) or not bool(hessian.isfinite().all()):
                continue
            norm = float(torch.linalg.matrix_norm(hessian, 2))
            if not norm <= bent:
                raise Finding(f"the Hessian of the {name} is {norm:.6g}, its bound {bent:.6g}")


def _bounded(model: nn.Module, label: int, found: Bounds) -> dict[str, tuple[Callable[[Tensor], Tensor], float, float]]:
    """Return scalar functions of one input with the bounds on their gradients and Hessians."""
    rival = (label + 1) % len(found.logit_lipschitz)

    def margin(x: Tensor) -> Tensor:
        logits = model(x[None].clone())[0]
        return logits[label] - logits[rival]

    steep, bent = found.margin_lipschitz[label, rival], found.margin_hessian[label, rival]
    return {
        "logit": (
            lambda x: model(x[None].clone())[0, label],
            float(found.logit_lipschitz[label]),
            float(found.logit_hessian[label]),
        ),
        "margin": (margin, float(steep), float(bent)),
        "loss": (
            lambda x: _scalar(model(x[None].clone()), label, "loss"),
            float(found.loss_lipschitz),
            float(found.loss_hessian),
        ),
    }
