"""A loss term and a method from outside the package: a class and two rows, then trained, logged and measured."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.methods import build
from lowcurve.training.config import dump_config, parse_config, read_config
from lowcurve.training.step import training_step
from tests.extensions.verbs import evaluated_and_reported


class SmallLogits(lc.Term):
    """Adds λ E‖z‖²."""

    lambda_logits: float = Field(default=1e-2, ge=0, description="weight of E‖z‖²")

    def loss(self, batch: lc.Batch) -> Tensor:
        return self.lambda_logits * batch.logits.square().sum(1).mean()


class FlatAlongNoise(lc.Term):
    """Adds E(∇ℓ(x)·v)² and E|ℓ(x + v) − ℓ(x)|² for a fixed direction v: second order, and a second forward."""

    lambda_flat: float = 0.5
    input_gradients: ClassVar[bool] = True
    elsewhere: ClassVar[bool] = True

    def loss(self, batch: lc.Batch) -> Tensor:
        v = torch.full_like(batch.x, 0.05)
        along = (batch.input_gradient * v).flatten(1).sum(1)
        change = batch.losses_at(batch.x + v) - batch.losses
        return self.lambda_flat * (along.square().mean() + change.square().mean())


class Brighter(lc.Term):
    """Trains on inputs that are brighter, with scores at temperature 2, and pulls weights to zero."""

    brightness: float = 0.1

    def change_inputs(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (x + self.brightness).clamp(0, 1)

    def change_scores(self, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return scores / 2

    def penalty(self, model: nn.Module) -> Tensor:
        return sum(p.square().sum() for p in model.parameters())  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, term in {"small-logits": SmallLogits, "flat": FlatAlongNoise, "brighter": Brighter}.items():
        monkeypatch.setitem(lc.TERMS, name, term)
        monkeypatch.setitem(lc.METHODS, name, lc.Method(name, terms=(name,)))


def recipe(folder: Path, **method: Any) -> dict[str, Any]:
    data = {"name": "digits", "limit_train": 96, "limit_test": 32}
    train = {"epochs": 1, "batch_size": 32}
    return {"output": folder, "data": data, "model": {"name": "mlp", "width": 8}, "method": method, "train": train}


def test_it_is_trained_logged_evaluated_and_reported(tmp_path: Path) -> None:
    run = lc.train(parse_config(recipe(tmp_path, name="lcnn+small-logits", lambda_logits=0.3)))
    assert run.metrics[0]["small-logits"] > 0 and run.metrics[0]["curvature"] > 0
    assert read_config(run.folder / "config.toml").method.lambda_logits == 0.3
    assert "small-logits" in evaluated_and_reported(run)
    again = lc.train(parse_config(recipe(tmp_path, name="lcnn+small-logits", lambda_logits=0.3)), resume="auto")
    assert again.summary == run.summary


def test_mistakes_in_its_coefficients_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"method\.lambda_logits: .*greater than or equal to 0"):
        parse_config(recipe(tmp_path, name="small-logits", lambda_logits=-1))
    with pytest.raises(UserError, match=r"did you mean 'method\.lambda_logits'"):
        parse_config(recipe(tmp_path, name="small-logits", lambda_logit=1))
    with pytest.raises(UserError, match="too coarse for gradient penalties"):
        parse_config({**recipe(tmp_path, name="flat"), "train": {"precision": "bfloat16"}})
    with pytest.raises(UserError, match="'finite' does not go with small-logits"):
        parse_config(recipe(tmp_path, name="lcnn+gradreg+small-logits", gradient="finite"))


def test_a_recipe_without_it_is_read_where_it_is_not_registered(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(dump_config(parse_config(recipe(tmp_path, name="lcnn"))))
    code = "import sys, lowcurve.training.config as c; print(c.read_config(sys.argv[1]).method.name)"
    found = subprocess.run([sys.executable, "-c", code, tmp_path / "config.toml"], capture_output=True, text=True)
    assert found.stdout.strip() == "lcnn", found.stderr


def gradients(net: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def test_loss_and_gradients_are_those_of_the_formulas() -> None:
    torch.manual_seed(0)
    net = build("standard+brighter", "mlp", (1, 4, 4), 3, width=5).double().train()
    twin, x, y = copy.deepcopy(net), torch.rand(6, 1, 4, 4).double(), torch.arange(6) % 3
    values = training_step(net, x, y, "flat+brighter+small-logits", {"lambda_logits": 0.1})
    z = (x + 0.1).clamp(0, 1).requires_grad_()
    losses = F.cross_entropy(twin(z) / 2, y, reduction="none")
    along = (torch.autograd.grad(losses.sum(), z, create_graph=True)[0] * 0.05).flatten(1).sum(1)
    change = F.cross_entropy(twin(z + 0.05) / 2, y, reduction="none") - losses
    total = losses.mean() + 0.5 * (along.square().mean() + change.square().mean())
    total = total + 0.1 * twin(z).square().sum(1).mean() + sum(p.square().sum() for p in twin.parameters())
    total.backward()
    assert float(values["loss"]) == pytest.approx(float(total.detach()), rel=1e-9)
    assert torch.allclose(gradients(net), gradients(twin), rtol=1e-7)


def test_the_order_of_names_does_not_matter() -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    found = []
    for method in ("small-logits+flat", "flat+small-logits"):
        torch.manual_seed(0)
        net = build(method, "mlp", (1, 4, 4), 3, width=5).train()
        training_step(net, x, y, method)
        found.append(gradients(net))
    assert torch.equal(*found)


def test_what_a_term_forgets_to_say_or_returns_by_mistake_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = build("standard", "mlp", (1, 4, 4), 3, width=5).train(), torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    for name, wrong, message in (
        ("a", lambda self, batch: batch.input_gradient.sum(), "input_gradients = True"),
        ("b", lambda self, batch: batch.losses_at(batch.x).mean(), "elsewhere = True"),
        ("c", lambda self, batch: batch.losses, "one number"),
    ):
        monkeypatch.setitem(lc.TERMS, name, type("Wrong", (lc.Term,), {"loss": wrong}))
        with pytest.raises(UserError, match=message):
            training_step(net, x, y, lc.Method(name, terms=(name,)))
    with pytest.raises(UserError, match="unknown term 'nothing'"):
        training_step(net, x, y, lc.Method("x", terms=("nothing",)))


def test_two_terms_cannot_share_a_coefficient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(lc.TERMS, "copy", SmallLogits)
    with pytest.raises(UserError, match="'lambda_logits', which exists already"):
        parse_config(recipe(tmp_path, name="lcnn"))


def test_the_summands_in_the_log_add_up(tmp_path: Path) -> None:
    run = lc.train(parse_config(recipe(tmp_path, name="small-logits")))
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["loss"] == pytest.approx(rows[0]["cross_entropy"] + rows[0]["small-logits"])
