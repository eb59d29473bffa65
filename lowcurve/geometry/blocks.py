"""How steep and how bent is each block of a network at given inputs, such as attention, for which no constant holds?"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.geometry.block_calls import BlockCall, block_calls
from lowcurve.geometry.curvature import curvature
from lowcurve.geometry.functions import Of, checked_inputs, checked_labels
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.linalg.lanczos import lanczos
from lowcurve.observe import observing
from lowcurve.random import generator
from lowcurve.surgery.probe import run_once
from lowcurve.surgery.rules import SAMPLE_NORMS
from lowcurve.surgery.untouched import attention_parts


@dataclass(frozen=True)
class BlockGeometry:
    r"""A block φ at the inputs h that N samples give it; every field but the names has length N, none is a bound.

    `lipschitz` is a lower estimate of the local Lipschitz constant ‖∂φ/∂h‖₂, within its `residual` of a singular value.
    `gradient_norm`, `hessian_norm` and `curvature` are those of h ↦ ⟨u, φ(h)⟩, as `lowcurve.curvature` measures them,
    with u the unit vector along which the measured function f depends on the block's output, u ∝ ∂f/∂φ.
    """

    name: str
    kind: str
    lipschitz: Tensor
    residual: Tensor
    gradient_norm: Tensor
    hessian_norm: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class Blocks:
    """The blocks of a network in the order in which they are called; printing shows medians over the samples."""

    rows: tuple[BlockGeometry, ...]

    def __iter__(self) -> Iterator[BlockGeometry]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> BlockGeometry:
        """Return the block of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise UserError(f"expected one of the blocks {', '.join(row.name for row in self.rows)}, got {name!r}")

    def __str__(self) -> str:
        lines = [f"{'block':28} {'kind':20} {'Lipschitz':>10} {'Hessian':>10} {'curvature':>10}   (medians)"]
        for row in self.rows:
            numbers = (median(values.tolist()) for values in (row.lipschitz, row.hessian_norm, row.curvature))
            lines.append(f"{row.name:28} {row.kind:20} " + " ".join(f"{number:10.4g}" for number in numbers))
        return "\n".join(lines)


def block_geometry(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    of: Of = "loss",
    blocks: Collection[str] | None = None,
    tol: float = 1e-2,
    max_iterations: int = 30,
    seed: int = 0,
) -> Blocks:
    """Measure the local Lipschitz constant and the curvature of blocks of `model` at the samples `x`, (N, …).

    `blocks` are names of modules; without them, every attention and every norm that works sample by sample (LayerNorm
    and its kin), which are what surgery leaves as they are. A block is taken as a function of its first tensor, and of
    every other argument that is the same tensor, such as q, k and v of a self-attention. Samples are measured one by
    one; `y`, `of`, `tol`, `max_iterations` and `seed` are those of `curvature`.

    >>> layer = nn.Linear(3, 3)
    >>> found = block_geometry(nn.Sequential(nn.Tanh(), layer), torch.rand(2, 3), blocks=["1"])["1"]
    >>> bool(torch.allclose(found.lipschitz, torch.linalg.matrix_norm(layer.weight.detach(), 2), rtol=1e-3))
    True
    """
    checks.usable(model)
    checks.number(above=0, tol=tol)
    checks.whole(1, max_iterations=max_iterations)
    checks.whole(seed=seed)
    x = checked_inputs(x)
    found: defaultdict[tuple[str, str], list[list[Tensor]]] = defaultdict(list)
    with torch.inference_mode(False), observing(model):
        y = checked_labels(model, x, y, of)
        chosen = _chosen(model, x[:1], blocks)
        for i in range(len(x)):
            for name, call, h, u in block_calls(model, x[i : i + 1], y[i : i + 1], of, chosen):
                numbers = _measured(call, h, u, tol, max_iterations, seed)
                found[name, type(call.block).__name__].append(numbers)
    rows = (
        BlockGeometry(*key, *(torch.cat(field) for field in zip(*each, strict=True))) for key, each in found.items()
    )
    return Blocks(tuple(rows))


def _chosen(model: nn.Module, x: Tensor, blocks: Collection[str] | None) -> dict[str, nn.Module]:
    """Return the blocks by name: those asked for, or the outermost attentions and the norms."""
    named = {name: module for name, module in model.named_modules() if name}
    if blocks is not None:
        names = list(blocks) if isinstance(blocks, Collection) and not isinstance(blocks, str) else []
        if not names or not all(isinstance(name, str) and name in named for name in names):
            known = ", ".join(map(repr, list(named)[:3]))
            raise UserError(f"expected blocks as names of modules, such as {known}, got {checks.shown(blocks)}")
        return {name: named[name] for name in names}
    inside = attention_parts(model, run_once(model, x))
    below = {part for module in inside for part in module.modules() if part is not module}
    outermost = [module for module in inside if module not in below]
    return {
        name: module
        for name, module in named.items()
        if module in outermost or (isinstance(module, SAMPLE_NORMS) and module not in inside)
    }


def _measured(call: BlockCall, h: Tensor, u: Tensor, tol: float, max_iterations: int, seed: int) -> list[Tensor]:
    """Return lipschitz, residual, gradient_norm, hessian_norm and curvature of one call, each of length 1."""
    h = h.unsqueeze(0)
    start = torch.randn(1, h.numel(), generator=generator(seed)).to(h)
    squared = lanczos(_Gram(call, h), start, tol=tol, max_iterations=max_iterations)
    lipschitz = squared.value.sqrt()
    bent = curvature(
        call, h, of=lambda outputs, _: (outputs * u).sum().view(1), tol=tol, max_iterations=max_iterations, seed=seed
    )
    own = [lipschitz, squared.residual / lipschitz.clamp_min(torch.finfo(torch.float64).tiny)]
    return [number.to(h.dtype).cpu() for number in (*own, bent.gradient_norm, bent.hessian_norm, bent.curvature)]


class _Gram:
    """JᵀJ of a block at one input, as an operator on flat vectors (1, d).

    J v is the derivative in w of Jᵀw, which is linear in w; so one graph gives both products.
    """

    def __init__(self, call: BlockCall, h: Tensor) -> None:
        with torch.enable_grad():
            self._h = h.clone().requires_grad_()
            with fast_double_backward():
                self._output = call(self._h)
            self._depends = self._output.requires_grad
            if self._depends:
                self._w = torch.zeros_like(self._output, requires_grad=True)
                (self._pulled,) = torch.autograd.grad(
                    self._output, self._h, self._w, create_graph=True, materialize_grads=True
                )

    def __call__(self, v: Tensor) -> Tensor:
        """Return JᵀJ v."""
        if not self._depends:
            return torch.zeros_like(v)
        (pushed,) = torch.autograd.grad(
            self._pulled, self._w, v.view_as(self._h), retain_graph=True, materialize_grads=True
        )
        (product,) = torch.autograd.grad(self._output, self._h, pushed, retain_graph=True)
        return product.flatten(1)

    def restricted_to(self, keep: Tensor) -> "_Gram":
        """Return itself: there is one row."""
        return self
