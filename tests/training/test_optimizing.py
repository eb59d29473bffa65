"""AdamW, schedules, soft labels, mixup, pieces of batches and averages of weights, each against its definition."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.layers.normalized import normalized_layers
from lowcurve.training import loop
from lowcurve.training.average import WeightAverage
from lowcurve.training.batch import in_pieces, soft_targets, varied
from lowcurve.training.config import parse_config, read_config
from lowcurve.training.loop import accuracy_and_loss, train
from lowcurve.training.optimizer import learning_rate, make_optimizer
from lowcurve.training.settings import TrainConfig
from lowcurve.training.step import TrainingStep
from tests.layers.test_spectral_follows import norm_of
from tests.training.makers import quiet_net, recipe, same_bits, weights

X, Y = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 10
OPTIONS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "lr": 1e-3},
    "cosine": {"schedule": "cosine", "warmup": 0.3},
    "soft labels in pieces": {"label_smoothing": 0.1, "accumulate": 3},
    "mixup": {"mixup": 0.4},
    "average": {"ema": 0.9},
    "all": {"optimizer": "adamw", "lr": 1e-3, "schedule": "cosine", "label_smoothing": 0.1, "mixup": 0.4, "ema": 0.9},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"epochs": 2, "batch_size": 32, "lr": 0.05, "checkpoint_seconds": 0, **OPTIONS[option]}
    config = {"method": {"name": "lcnn"}, "train": changes}
    undisturbed = train(recipe(tmp_path, name="undisturbed", **config))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        real, calls = loop.in_pieces, iter(range(9))
        patch.setattr(loop, "in_pieces", lambda *given: real(*given) if next(calls) < 4 else 1 / 0)
        train(recipe(tmp_path, name="killed", **config))
    resumed = train(recipe(tmp_path, name="killed", **config), resume="auto")
    assert same_bits(weights(resumed), weights(undisturbed))
    last = [{k: v for k, v in run.metrics[-1].items() if k != "images_per_second"} for run in (resumed, undisturbed)]
    assert last[0] == last[1]


def test_defaults_are_off_and_old_recipes_load() -> None:
    old = "\n".join(["[train]", "epochs = 3", "lr = 0.1", "milestones = [0.75, 0.875]", "momentum = 0.9"])
    defaults = TrainConfig()
    assert (defaults.optimizer, defaults.schedule, defaults.warmup, defaults.accumulate) == ("sgd", "steps", 0, 1)
    assert (defaults.label_smoothing, defaults.mixup, defaults.ema) == (0, 0, 0)
    assert parse_config({"train": {"epochs": 3}}) == parse_config(tomllib.loads(old))


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"train": {"optimizer": "adam"}}, "train.optimizer: Input should be 'sgd' or 'adamw', got 'adam'"),
        ({"train": {"optimiser": "sgd"}}, "did you mean 'train.optimizer'?"),
        ({"train": {"scheduler": "cosine"}}, "did you mean 'train.schedule'?"),
        ({"train": {"schedule": "cosine", "milestones": [0.5]}}, "train.milestones belongs to train.schedule='steps'"),
        ({"train": {"schedule": "cosine", "lr_decay": 0.5}}, "train.lr_decay belongs to"),
        ({"train": {"warmup": 0.8}}, "ends before the first milestone, 0.75; got 0.8"),
        ({"train": {"accumulate": 65}}, "at most 64 pieces of 128 samples; got 65"),
        ({"train": {"mixup": 0.2}, "method": {"name": "adv"}}, "train.mixup gives samples two labels, adv needs one"),
        ({"train": {"ema": 1.0}}, "train.ema: Input should be less than 1, got 1.0"),
    ],
)
def test_mistakes_are_named(tree: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_config(tree)
    assert expected in str(caught.value)


def test_a_hint_is_like_the_key_and_not_like_its_section() -> None:
    with pytest.raises(UserError) as caught:
        parse_config({"train": {"nonsense": 3}})
    assert "did you mean" not in str(caught.value)


def test_the_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for step in range(20):
        assert math.isclose(learning_rate(TrainConfig(lr=0.3, schedule="cosine"), step / 20), theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_adamw_is_torchs_without_decay_on_beta_and_gamma() -> None:
    net, _ = lc.convert(quiet_net(), X)
    optimizer = make_optimizer(net, TrainConfig(optimizer="adamw", lr=1e-3, momentum=0.8, weight_decay=0.1))
    assert isinstance(optimizer, torch.optim.AdamW) and optimizer.defaults["betas"] == (0.8, 0.999)
    kept = {p for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    assert kept == {p for name, p in net.named_parameters() if name.endswith(("log_beta", "log_gamma"))}


def test_soft_labels_are_torchs() -> None:
    logits = torch.randn(12, 10, generator=torch.Generator().manual_seed(1))
    ours = F.cross_entropy(logits, soft_targets(Y, 10, 0.2))
    assert torch.isclose(ours, F.cross_entropy(logits, Y, label_smoothing=0.2))


def test_mixup_mixes_inputs_and_targets_alike() -> None:
    torch.manual_seed(0)
    coded = Y.float().view(-1, 1).expand(-1, 3).contiguous()  # the input tells the class
    x, targets = varied(coded, Y, 10, TrainConfig(mixup=0.5))
    assert targets is not None and torch.allclose(targets.sum(1), torch.ones(12))
    assert torch.allclose(x[:, 0], targets @ torch.arange(10.0), atol=1e-6)
    assert torch.equal(targets.argmax(1), Y) and not torch.equal(x, coded)


@pytest.mark.parametrize("method", ["relu", "gradreg", "lcnn"])
def test_pieces_add_up_to_the_whole_batch(method: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Softplus(beta=5), nn.Linear(16, 10))
    if method == "lcnn":
        net = lc.convert(net, X)[0]
    step, targets = TrainingStep(net, method), soft_targets(Y, 10, 0.1)
    whole = {**step(X, Y, targets)}
    expected = [p.grad.clone() for p in net.parameters()]
    pieces = in_pieces(step, X, Y, targets, 5)
    assert all(torch.allclose(pieces[name], value, rtol=1e-5) for name, value in whole.items())
    found = [p.grad for p in net.parameters()]
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, expected, strict=True))


class TestAverage:
    def test_it_is_the_recursion_in_closed_form(self) -> None:
        net = nn.Linear(1, 1, bias=False)
        average, expected = WeightAverage(net, 0.5), float(net.weight.detach())
        for step in range(20):
            nn.init.constant_(net.weight, float(step))
            average.update(net, step)
            decay = min(0.5, (1 + step) / (10 + step))
            expected = decay * expected + (1 - decay) * step
        assert math.isclose(float(average.model.weight), expected, rel_tol=1e-5)  # type: ignore[arg-type]

    def test_norms_are_1_whatever_the_signs_of_singular_vectors(self) -> None:
        torch.manual_seed(0)
        net, _ = lc.convert(quiet_net(), X)
        average = WeightAverage(net, 0.9)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for step in range(5):
            TrainingStep(net.train(), "lcnn")(X, Y)
            optimizer.step()
            for _, _, spectral in normalized_layers(net):  # −u, −v are singular vectors as well
                spectral.left.neg_()
                spectral.right.neg_()
            average.update(net, step)
        average.model.eval()
        for _, layer, _ in normalized_layers(average.model):
            assert abs(norm_of(layer) - 1) < 2e-3

    def test_it_is_what_is_judged_and_kept(self, tmp_path: Path) -> None:
        config = recipe(tmp_path, method={"name": "lcnn"}, train__ema=0.999, train__lr=0.2)
        run = train(config)
        plain = train(recipe(tmp_path, name="plain", method={"name": "lcnn"}, train__lr=0.2))
        assert not same_bits(weights(run), weights(plain))
        assert run.metrics[0]["loss"] == plain.metrics[0]["loss"]  # training itself goes its own way
        model = lc.load(run)
        test = load_dataset("digits").subset(96, 50).test
        assert accuracy_and_loss(model, test)[0] == run.summary["accuracy"]
        betas = [float(m.beta.detach()) for m in model.modules() if isinstance(m, lc.CenteredSoftplus)]
        assert list(run.summary["beta"].values()) == pytest.approx(betas)


def test_spectral_norms_are_logged(tmp_path: Path) -> None:
    run = train(recipe(tmp_path, method={"name": "lcnn"}, train__epochs=1))
    model = lc.load(run)
    expected = {name: spectral.converge(spectral.given()) for name, _, spectral in normalized_layers(model)}
    assert run.metrics[-1]["sigma"] == pytest.approx(expected, rel=1e-3) and len(expected) == 2  # not the last
    assert run.summary["sigma"] == run.metrics[-1]["sigma"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train__lr": 1e18}, r"smaller train.lr \(now 1e\+18\), or train.warmup=0.05, or train.clip_gradient=1"),
        ({"train__lr": 1e9, "train__optimizer": "adamw", "train__clip_gradient": 1.0}, "for AdamW usually about 0.001"),
        ({"method": {"name": "lcnn+gradreg", "lambda_grad": 1e12}}, r"'gradient' drove it.*smaller method.lambda_grad"),
        ({"model": {"from": "tests.training.test_optimizing:broken_net"}}, "from the start.*broken_net itself gives"),
    ],
    ids=["rate", "adamw", "penalty", "source"],
)
def test_divergence_names_its_cause(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    config = {"method": {"name": "standard"}, "train__epochs": 50, **changes}
    with pytest.raises(UserError, match=expected):
        train(recipe(tmp_path, **config))


def broken_net() -> nn.Module:
    """A network that returns no numbers."""
    net = quiet_net()
    nn.init.constant_(net[-1].bias, math.inf)
    return net


@pytest.mark.parametrize(
    ("recipe_name", "changes", "expected"),
    [
        ("digits-mlp-lcnn", [], "digits-mlp-lcnn"),
        ("digits-mlp-lcnn", ["data.name=moons"], "moons-mlp-lcnn"),
        ("digits-mlp-lcnn-gradreg", ["method.name=relu", "model.name=vgg11"], "digits-vgg11-relu"),
        ("cifar10-resnet18-lcnn-released", ["data.name=folder:/a/b"], "folder--a-b-resnet18-lcnn-released"),
        ("digits-mlp-lcnn", ["train.seed=3"], "digits-mlp-lcnn-s3"),
        ("digits-mlp-lcnn", ["data.name=moons", "name=mine"], "mine"),
    ],
)
def test_names_follow_what_is_trained(recipe_name: str, changes: list[str], expected: str) -> None:
    assert read_config(recipe_name, changes).run_name == expected


def test_the_name_of_a_written_recipe_follows_too(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('name = "digits-mlp-lcnn-s1"\n[data]\nname = "digits"\n[model]\nname = "mlp"\n[train]\nseed = 1\n')
    assert read_config(path, ["data.name=moons", "train.seed=2"]).run_name == "moons-mlp-lcnn-s2"
    assert read_config(path, ["train.lr=0.5"]).run_name == "digits-mlp-lcnn-s1"
    path.write_text('name = "mine"\n[data]\nname = "digits"\n')
    assert read_config(path, ["data.name=moons"]).run_name == "mine"
