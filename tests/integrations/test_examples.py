"""Each example runs with the real library, where that is installed, and does what its page says."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.layers.traits import learned_parameters
from lowcurve.sources import imported

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Return a function that reads an example, or skips where its library is missing."""
    monkeypatch.chdir(tmp_path)

    def read(name, *needs):
        for package in needs:
            try:
                imported(package)
            except UserError as error:
                pytest.skip(str(error))
        torch.manual_seed(0)
        return SimpleNamespace(**runpy.run_path(str(FOLDER / f"with_{name}.py")))

    with torch.random.fork_rng():
        yield read


def test_lightning_logs_and_measures_in_inference_mode(example):
    found = example("lightning", "lightning.pytorch").main(steps=6)[1]
    assert found["curvature"] > 0 and 0 <= found["accuracy under attack"] <= 1
    betas = [value for name, value in found.items() if name.startswith("beta/")]
    assert betas and max(betas) < 5 and any(name.startswith("sigma/") for name in found)


def test_lightnings_callback_is_the_penalty_in_the_loss(example):
    """With clipping and accumulation the same weights come out as with the sum written by hand."""
    module = example("lightning", "lightning.pytorch")
    x, y = load_dataset("digits").train.batch(slice(0, 64))
    pl = imported("lightning.pytorch")
    net = lc.MODELS["mlp"](num_classes=10, in_channels=1, width=4, image_size=8)
    by_callback, by_hand = (lc.convert(net, x[:1], spectral=False)[0] for _ in range(2))
    trainer = pl.Trainer(
        max_epochs=2, callbacks=[module.LowCurvature(beta=0.1)], accelerator="cpu", logger=False,
        accumulate_grad_batches=2, gradient_clip_val=0.5, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module.Classifier(by_callback), DataLoader(TensorDataset(x, y), 16))
    optimizer = torch.optim.SGD(lc.parameter_groups(by_hand), lr=0.05, momentum=0.9)
    for _ in range(2):
        for first in (0, 32):
            optimizer.zero_grad()
            for rows in (slice(first, first + 16), slice(first + 16, first + 32)):
                loss = F.cross_entropy(by_hand(x[rows]), y[rows]) + lc.curvature_penalty(by_hand, beta=0.1)
                (loss / 2).backward()
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
            optimizer.step()
    for one, other in zip(by_callback.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_hf_trainer_pays_for_smoothness_once_and_decays_none_of_it(example, accumulate):
    module = example("hf_trainer", "accelerate", "transformers")
    module.LowCurvature.curvature["beta"] = 1.0
    trainer, model = module.main(steps=2, accumulate=accumulate)
    kept = learned_parameters(model)
    groups = trainer.optimizer.param_groups
    assert kept and all(group["weight_decay"] == 0 for group in groups if kept & {*group["params"]})
    assert {group["weight_decay"] for group in groups} == {0.0, 0.01}
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert logged[-1]["beta"] < logged[0]["beta"] < 5  # AdamW moves log β by its rate, whatever the gradient
    assert 5 < logged[0]["loss"] < 9  # cross-entropy of about 2.3 and one β of about 5, however many batches are summed


def test_accelerate_learns(example):
    losses, geometry = example("accelerate", "accelerate").main()
    assert losses[-1] < losses[0] and geometry.curvature.isfinite().all()


def test_timm_folds_to_the_same_logits(example):
    model, plain, x = example("timm", "timm").main(steps=2)
    torch.testing.assert_close(plain(x), model(x))
    assert not [kind for kind in map(type, plain.modules()) if kind.__module__.startswith("lowcurve")]


def test_transforms_are_any_callable(example):
    module, seen = example("transforms"), []

    def stand_in(image):  # for torchvision.transforms.v2.Compose
        seen.append(image.shape)
        return image.flip(-1)

    found = module.main(stand_in)
    assert seen == [(1, 8, 8)] * 128 and found.adversarial.min() >= 0 and found.adversarial.max() <= 1


def test_datasets_give_the_same_pixels(example):
    module = example("datasets", "datasets")
    data, geometry = module.main()
    x, y = load_dataset("digits").train.batch(slice(0, 128))
    batch = module.pixels(data[:128])
    assert torch.equal(batch["x"], (255 * x).byte() / 255) and torch.equal(batch["y"], y)
    assert geometry.curvature.isfinite().all()


def test_tensorboard_has_smoothness(example):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(example("tensorboard").main(steps=2))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"loss", "beta", "sigma"} <= {tag.partition("/")[0] for tag in tags}
    assert len(events.Scalars("loss")) == 2


class StandIn:
    """What the example uses of Weights & Biases, which would ask for an account."""

    def __init__(self):
        self.rows, self.steps, self.config = [], [], None

    def init(self, project, config):
        self.config = config
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def log(self, numbers, step):
        json.dumps(numbers)
        self.rows.append(numbers)
        self.steps.append(step)


def test_wandb_gets_numbers_by_epoch(example, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", board := StandIn())
    example("wandb").main()
    assert board.steps == [0, 1, 2] and board.config["method"] == {"name": "lcnn"}
    kinds = [{name.partition("/")[0] for name in row} for row in board.rows]
    assert all({"beta", "sigma"} <= found for found in kinds) and "test_accuracy" in kinds[1]


def test_captum_explains_and_bounds(example):
    saliency, integrated, bound, stability = example("captum", "captum").main()
    assert saliency.shape == integrated.shape == (16, 1, 8, 8)
    assert bound.isfinite().all() and stability.similarity.min() > 0
