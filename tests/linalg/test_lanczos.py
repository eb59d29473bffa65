"""Lanczos on matrices with known spectra: lower estimates, honest residuals, hidden eigenvalues found."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh
from torch import Tensor
from torch.nn import functional as F

from lowcurve.linalg import lanczos as module
from lowcurve.linalg.lanczos import lanczos


class Diagonal:
    """diag(λ) for rows of λ; remembers the sizes of the batches it was given."""

    def __init__(self, spectra: Tensor, sizes: list[int] | None = None) -> None:
        self.spectra, self.sizes = spectra, [] if sizes is None else sizes

    def __call__(self, v: Tensor) -> Tensor:
        self.sizes.append(len(v))
        return self.spectra * v

    def restricted_to(self, keep: Tensor) -> "Diagonal":
        return Diagonal(self.spectra[keep], self.sizes)


class Dense:
    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices

    def __call__(self, v: Tensor) -> Tensor:
        return torch.einsum("nij,nj->ni", self.matrices, v)

    def restricted_to(self, keep: Tensor) -> "Dense":
        return Dense(self.matrices[keep])


def units(n: int, d: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dim=1)


def symmetric(n: int, d: int, seed: int) -> Tensor:
    a = torch.randn(n, d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (a + a.mT) / 2


def test_agrees_with_scipys_eigsh() -> None:
    matrices = symmetric(6, 40, seed=1)
    found = lanczos(Dense(matrices), units(6, 40, 2), tol=1e-9, max_iterations=40)
    truth = [abs(eigsh(m.numpy(), k=1, which="LM", return_eigenvectors=False)[0]) for m in matrices]
    assert np.allclose(found.value.numpy(), truth, rtol=1e-8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 12), steps=st.integers(1, 12), rank=st.integers(0, 12))
def test_never_above_the_norm_and_the_residual_is_true(seed: int, d: int, steps: int, rank: int) -> None:
    """‖H‖ ≥ value, and an eigenvalue lies within r of ±√(value² − r²), for any number of steps and any rank."""
    matrix = symmetric(1, d, seed)
    values, vectors = torch.linalg.eigh(matrix)
    values = torch.where(torch.arange(d) < rank, values, 0)
    matrix = vectors * values[:, None, :] @ vectors.mT
    found = lanczos(Dense(matrix), units(1, d, seed + 1), tol=1e-12, max_iterations=steps)
    size = values.abs().max()
    assert found.value <= size * (1 + 1e-12) + 1e-14
    ritz = (found.value.square() - found.residual.square()).clamp(min=0).sqrt()
    assert (values.abs() - ritz).abs().min() <= found.residual + 1e-7 * size


SPECTRA = {
    "close pair": lambda noise: torch.cat((torch.tensor([[1.0, 1.1]]).expand(len(noise), 2), 0.1 * noise), dim=1),
    "opposite ends": lambda noise: torch.cat((torch.tensor([[1.0, -1.02]]).expand(len(noise), 2), 0.2 * noise), dim=1),
    "both ends twice": lambda noise: torch.cat(
        (torch.tensor([[1.0, 1.0, -1.0, -1.0]]).expand(len(noise), 4), 0.5 * noise), dim=1
    ),
    "decay": lambda noise: noise * torch.exp(-torch.arange(noise.shape[1]) / 3.0),
    "uniform": lambda noise: noise,
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("tilt", [False, True])
def test_converged_rows_have_found_the_largest_eigenvalue(name: str, tilt: bool) -> None:
    """The start may point at a wrong eigenvector (`tilt`); of 500 rows at most 0.1 % may miss, plus three sigma."""
    n, d = 300, 64
    generator = torch.Generator().manual_seed(3)
    spectra = SPECTRA[name](torch.rand(n, d, dtype=torch.float64, generator=generator) * 2 - 1)
    d = spectra.shape[1]
    start = units(n, d, 4)
    if tilt:
        start = start + F.one_hot(torch.tensor(0), d)
    tol = 1e-2
    found = lanczos(Diagonal(spectra), start, tol=tol, max_iterations=40)
    truth = spectra.abs().amax(dim=1)
    converged = found.iterations < 40
    assert converged.double().mean() > (0.9 if name != "uniform" else 0.2)
    missed = int((truth > (1 + tol) * found.value)[converged].sum())
    expected = n * module.MISS_PROBABILITY
    assert missed <= expected + 3 * math.sqrt(expected)
    assert (found.value <= truth * (1 + 1e-12)).all()


def test_hidden_overlap_bounds_every_eigenvector_outside_the_ritz_values() -> None:
    """The inequality behind the stopping rule, with true overlaps of a start that nearly misses the top."""
    d, m = 30, 6
    spectrum = torch.linspace(-1, 1, d, dtype=torch.float64).expand(4, d)
    start = units(4, d, 5)
    start[:, -1] *= 1e-4
    start = F.normalize(start, dim=1)
    basis, t = [start], torch.zeros(4, m + 1, m + 1, dtype=torch.float64)
    for k in range(m):
        w = spectrum * basis[-1]
        t[:, k, k] = (w * basis[-1]).sum(dim=1)
        for q in basis * 2:
            w = w - (w * q).sum(dim=1, keepdim=True) * q
        t[:, k, k + 1] = t[:, k + 1, k] = w.norm(dim=1)
        basis.append(F.normalize(w, dim=1))
    theta = torch.linalg.eigvalsh(t[:, :m, :m])
    off = torch.diagonal(t, offset=1, dim1=1, dim2=2)
    for i in range(d):
        size = spectrum[:, i].abs()
        outside = size > theta.abs().amax(dim=1) * (1 + 1e-9)
        bound = module._hidden_overlap(theta, off, size)
        assert (start[:, i].abs() <= bound)[outside].all()
    assert (spectrum[:, -1] > theta.abs().amax(dim=1)).all()  # so the loop tested at least the last one


def test_finished_rows_leave_the_batch() -> None:
    easy, hard = torch.zeros(30, 50), torch.rand(10, 50, generator=torch.Generator().manual_seed(0)) * 2 - 1
    easy[:, 0] = 1
    operator = Diagonal(torch.cat((easy, hard)).double())
    found = lanczos(operator, units(40, 50, 6), tol=1e-6, max_iterations=50)
    assert operator.sizes[0] == 40 and operator.sizes[-1] <= 10
    assert sum(operator.sizes) < 40 * len(operator.sizes) / 2
    assert (found.iterations[:30] == 2).all() and (found.iterations[30:] > 10).all()


def test_zero_operators_and_rows_that_are_not_finite() -> None:
    spectra = torch.ones(3, 5, dtype=torch.float64)
    spectra[0], spectra[1, 2] = 0, torch.nan
    found = lanczos(Diagonal(spectra), units(3, 5, 7), tol=1e-2, max_iterations=5)
    assert found.value[0] == 0 and found.residual[0] == 0
    assert math.isnan(found.value[1]) and math.isnan(found.residual[1]) and found.iterations[1] == 0
    assert found.value[2] == pytest.approx(1, rel=1e-12)
