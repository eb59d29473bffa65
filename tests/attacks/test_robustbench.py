"""A claim is made of the whole suite, says what was done, and the model goes without the package."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS, SUITE
from lowcurve.attacks.evaluate import evaluate
from lowcurve.attacks.robustbench import benchmark_model, claim, write_claim
from lowcurve.attacks.table import AttackedSample, Evaluation
from lowcurve.data.dataset import Split
from lowcurve.errors import UserError

ABOUT = {
    "dataset": "cifar10",
    "architecture": "ResNet-18",
    "name": "A Paper",
    "authors": "A, B",
    "link": "https://example.org",
    "venue": "Unpublished",
}
# the fields of a file of RobustBench's model_info (cifar10/L2/Wang2023Better_WRN-28-10.json) and their types
FIELDS = {
    **dict.fromkeys(("link", "name", "authors", "dataset", "venue", "architecture", "eps", "clean_acc"), str),
    **dict.fromkeys(("reported", "autoattack_acc", "footnote"), str),
    "additional_data": bool,
    "number_forward_passes": int,
    "unreliable": bool,
}


def evaluation(attacks: tuple[str, ...], eps: tuple[float, ...] = (0.5,), **steps: int) -> Evaluation:
    """Ten samples, of which the first is wrong and each attack breaks one more than the one before."""
    rows = [
        AttackedSample(i, 0, int(i == 0), name, steps.get(name, ATTACKS[name].steps), radius, i <= place + 1, 1, 0.1)
        for place, name in enumerate(attacks)
        for radius in eps
        for i in range(10)
    ]
    return Evaluation(tuple(rows), 2)


def test_a_claim_has_the_fields_of_model_info(tmp_path: Path) -> None:
    made = claim(evaluation(SUITE), **ABOUT)
    assert {name: type(value) for name, value in made.items()} == FIELDS
    assert made["clean_acc"] == "90.00" and made["autoattack_acc"] == "50.00"  # the worst of the four
    assert "10 test samples" in made["footnote"] and not made["unreliable"]
    assert claim(evaluation(("auto",)), **ABOUT)["autoattack_acc"] == "80.00"
    path = write_claim(made, tmp_path, "Me2026Paper", math.inf)
    assert path == tmp_path / "cifar10" / "Linf" / "Me2026Paper.json" and json.loads(path.read_text()) == made
    with pytest.raises(UserError, match="letters, digits"):
        write_claim(made, tmp_path, "../up", 2)


def test_less_than_the_suite_is_no_claim() -> None:
    for short in (evaluation(("pgd",)), evaluation(SUITE[:3]), evaluation(("auto",), auto=20)):
        with pytest.raises(UserError, match="standard suite at its own budgets"):
            claim(short, **ABOUT)
    several = evaluation(("auto",), (0.25, 8 / 255))
    with pytest.raises(UserError, match="pass eps"):
        claim(several, **ABOUT)
    assert claim(several, eps=8 / 255, **ABOUT)["eps"] == "8/255"
    with pytest.raises(UserError, match="one of the radii"):
        claim(several, eps=0.1, **ABOUT)
    flagged = claim(replace(evaluation(SUITE), flags=("masked",)), **ABOUT)
    assert flagged["unreliable"] and "masked" in flagged["footnote"]


class Dictionary(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(pixel_values)}


def test_a_claim_of_a_real_evaluation_and_its_model(nets: dict[str, nn.Module], digits: Split) -> None:
    few = digits.subset(3)
    x, _ = few.batch(slice(None))
    plain = benchmark_model(Dictionary(nets["lcnn"]), x)
    torch.testing.assert_close(plain(x), nets["lcnn"](x), atol=1e-5, rtol=0)
    assert b"lowcurve" not in pickle.dumps(plain) and not plain.training
    found = claim(evaluate(plain, few, ["auto"], [1.5]), **ABOUT)
    assert found["eps"] == "1.5" and found["clean_acc"] == f"{100 * float(evaluate_clean(plain, few)):.2f}"


def evaluate_clean(model: nn.Module, split: Split) -> Tensor:
    x, y = split.batch(slice(None))
    return (model(x).argmax(1) == y).double().mean()
