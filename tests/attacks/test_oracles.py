"""Strength against other libraries at equal budgets, to one sample of a hundred (Square: two).

`benchmarks/attacks.py` compares to 0.5 % with 500 samples.
"""

import math
import warnings

import foolbox
import pytest
import torch
import torchattacks
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from lowcurve.attacks import attack
from lowcurve.surgery.fold import fold

RADII = {2: (0.3, 0.6, 0.9), math.inf: (0.12,)}
CASES = [(net, norm, eps) for net in ("relu", "lcnn") for norm, radii in RADII.items() for eps in radii]
cases = pytest.mark.parametrize(("net", "norm", "eps"), CASES)
FEW = [("relu", 2, 0.6), ("relu", math.inf, 0.12), ("lcnn", 2, 0.3), ("lcnn", math.inf, 0.12)]
few = pytest.mark.parametrize(("net", "norm", "eps"), FEW)
NAMES = {2: "L2", math.inf: "Linf"}
STEPS = 12


def accuracy(model: nn.Module, adversarial: Tensor, y: Tensor) -> float:
    return (model(adversarial).argmax(1) == y).double().mean().item()


@pytest.fixture(scope="module")
def nets(nets: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The same functions without our layers, which derive their weights in every call."""
    return {name: fold(net) for name, net in nets.items()}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@cases
def test_apgd_t_is_as_strong_as_autoattack(
    net: str, norm: float, eps: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    model, (x, y) = nets[net], samples
    ours = attack(model, x, y, "apgd-t", eps=eps, norm=norm, steps=STEPS).accuracy
    oracle = APGDAttack_targeted(model, norm=NAMES[norm], eps=eps, n_iter=STEPS, seed=0)
    assert ours <= accuracy(model, oracle.perturb(x, y), y) + 0.01 + 1e-9


@few
def test_apgd_ce_is_as_strong_as_autoattack(
    net: str, norm: float, eps: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    model, (x, y) = nets[net], samples
    ours = attack(model, x, y, "apgd-ce", eps=eps, norm=norm, steps=STEPS).accuracy
    oracle = APGDAttack(model, norm=NAMES[norm], eps=eps, n_iter=STEPS, loss="ce", seed=0, device="cpu")
    assert ours <= accuracy(model, oracle.perturb(x, y), y) + 0.01 + 1e-9


@few
def test_fab_t_is_as_strong_as_autoattack(
    net: str, norm: float, eps: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    model, (x, y) = nets[net], samples
    ours = attack(model, x, y, "fab-t", eps=eps, norm=norm, steps=STEPS).accuracy
    oracle = FABAttack_PT(
        model, norm=NAMES[norm], eps=eps, n_iter=STEPS, n_restarts=1, targeted=True, seed=0, device="cpu"
    )
    oracle.n_target_classes = 9
    found = oracle.perturb(x, y)  # the nearest mistakes, within eps or not
    near = torch.linalg.vector_norm((found - x).flatten(1), norm, dim=1) <= eps * (1 + 1e-6)
    theirs = 1 - (near & (model(found).argmax(1) != y)).double().mean().item()
    assert ours <= theirs + 0.01 + 1e-9


@pytest.mark.parametrize(("net", "norm", "eps"), FEW[1:3])
def test_the_suite_leaves_no_more_than_autoattack(
    net: str, norm: float, eps: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    model, x, y = nets[net], samples[0][:50], samples[1][:50]
    ours = attack(model, x, y, "auto", eps=eps, norm=norm, steps=6)
    oracle = torchattacks.AutoAttack(model, norm=NAMES[norm], eps=eps, version="standard", n_classes=10, seed=0)
    for member in oracle._autoattack.attacks:
        member.steps, member.n_queries = 6, 300
    assert ours.accuracy <= accuracy(model, oracle(x, y), y) + 0.02 + 1e-9


def test_apgd_t_is_as_strong_as_torchattacks(nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]) -> None:
    model, (x, y) = nets["relu"], samples
    ours = attack(model, x, y, "apgd-t", eps=0.6, steps=STEPS).accuracy
    oracle = torchattacks.APGDT(model, norm="L2", eps=0.6, steps=STEPS, n_classes=10)
    assert ours <= accuracy(model, oracle(x, y), y) + 0.01 + 1e-9


@pytest.mark.parametrize("queries", [150])
@cases
def test_square_is_as_strong_as_autoattack(
    net: str, norm: float, eps: float, queries: int, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    model, (x, y) = nets[net], samples
    ours = [attack(model, x, y, "square", eps=eps, norm=norm, steps=queries, seed=seed).accuracy for seed in range(3)]
    settings = {"n_queries": queries, "p_init": 0.8, "device": "cpu", "resc_schedule": True}
    oracles = [SquareAttack(model, norm=NAMES[norm], eps=eps, seed=seed, **settings) for seed in range(3)]
    left = [accuracy(model, oracle.perturb(x, y), y) for oracle in oracles]  # a single run may be lucky or not
    assert sum(ours) / len(ours) <= sum(left) / len(left) + 0.02 + 1e-9


def test_square_is_as_strong_as_torchattacks(nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]) -> None:
    x, y = samples
    ours = attack(nets["lcnn"], x, y, "square", eps=0.5, steps=150).accuracy
    oracle = torchattacks.Square(nets["lcnn"], norm="L2", eps=0.5, n_queries=150)
    assert ours <= accuracy(nets["lcnn"], oracle(x, y), y) + 0.02 + 1e-9


@cases
def test_pgd_is_as_strong_as_foolbox(
    net: str, norm: float, eps: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    model, (x, y) = nets[net], samples
    ours = attack(model, x, y, "pgd", eps=eps, norm=norm, steps=40).accuracy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    family = foolbox.attacks.L2PGD if norm == 2 else foolbox.attacks.LinfPGD
    _, adversarial, _ = family(steps=40, rel_stepsize=2.5 / 40)(wrapped, x, y, epsilons=eps)
    assert ours <= accuracy(model, adversarial, y) + 0.01 + 1e-9


def test_minimal_norms_are_no_larger_than_foolbox_finds_by_ddn(
    nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    from lowcurve.attacks.minimal import minimal_norm

    model, x, y = nets["lcnn"], samples[0][:8], samples[1][:8]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, adversarial, success = foolbox.attacks.DDNAttack(steps=60)(wrapped, x, y, epsilons=None)
    theirs = torch.linalg.vector_norm((adversarial - x).flatten(1), dim=1).masked_fill(~success, torch.inf)
    ours = minimal_norm(model, x, y, steps=12, tolerance=0.02).distance
    assert ours.mean() <= 1.02 * theirs.mean()
