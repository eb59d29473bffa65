"""Models of others: outputs with logits, pixels under a name, normalization inside, and libraries by name."""

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.attacks.explanations import explanation_stability
from lowcurve.attacks.manipulation import manipulate_explanation
from lowcurve.attacks.minimal import minimal_norm
from lowcurve.cli import app
from lowcurve.data.dataset import Split
from lowcurve.errors import UserError
from lowcurve.factory import load_factory
from lowcurve.geometry.compare import compare
from lowcurve.geometry.dataset import measure
from lowcurve.outputs import classifier, keyword, returning_logits
from lowcurve.sources import imported

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6)
TIMM = pytest.mark.skipif(
    find_spec("timm") is None or find_spec("torchvision") is None, reason="timm is no dependency of development"
)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        lc.Normalize([0.3], [0.4]), nn.Flatten(), nn.Linear(64, 16), lc.CenteredSoftplus(3.0), nn.Linear(16, 10)
    ).eval()


class Named(nn.Module):
    """Takes its pixels under a name, after something else, and returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain()

    def forward(self, labels: Tensor | None = None, *, pixel_values: Tensor) -> SimpleNamespace:
        assert labels is None
        return SimpleNamespace(loss=None, logits=self.net(pixel_values))


class Second(Named):
    """Pixels are the second argument; the outputs are a mapping."""

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> dict[str, Tensor]:
        assert input_ids is None and pixel_values is not None
        return {"logits": self.net(pixel_values)}


class Anything(Named):
    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(batch["pixel_values"])}


class First(Named):
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.net(pixel_values))


WRAPPED = [Named, Second, Anything, First]
CALLS = {
    "curvature": lambda net: lc.curvature(net, X, Y).curvature,
    "curvature of a prediction": lambda net: lc.curvature(net, X, of="margin").hessian_norm,
    "gradient_stability": lambda net: lc.gradient_stability(net, X, Y, [0.1], samples=1).mean,
    "local_linearity": lambda net: lc.local_linearity(net, X, Y, [0.1], samples=1).mean,
    "measure": lambda net: measure(net, Split((255 * X).byte(), Y)).columns["curvature"],
    "compare": lambda net: torch.tensor([line.before for line in compare(net, net, X, Y)]),
    "attack": lambda net: lc.attack(net, X, Y, "auto", eps=0.5, steps=2).adversarial,
    "minimal_norm": lambda net: minimal_norm(net, X, Y, name="fgsm").distance,
    "explanation_stability": lambda net: explanation_stability(net, X, Y).similarity,
    "manipulate_explanation": lambda net: manipulate_explanation(net, X[:2], Y[:2], 0.1, restarts=1, steps=2).change,
    "certify": lambda net: lc.certify(net, X, Y).radius,
    "bounds": lambda net: lc.bounds(net, (1, 8, 8)).margin_lipschitz,
    "explanation_bound": lambda net: lc.explanation_bound(net, X, Y, 0.1).change,
}


@pytest.mark.parametrize("made", WRAPPED)
@pytest.mark.parametrize("call", CALLS)
def test_what_holds_for_a_plain_model_holds_for_one_in_a_wrapping(call: str, made: type[Named]) -> None:
    torch.testing.assert_close(CALLS[call](made()), CALLS[call](plain()), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("made", WRAPPED)
def test_convert_and_fold_keep_how_a_model_is_asked(made: type[Named]) -> None:
    net = made()
    net.net[3] = nn.ReLU()
    low, report = lc.convert(net, X)
    assert {change.was for change in report.replaced} == {"Linear", "ReLU"} and isinstance(low, made)
    folded = lc.fold(low)
    for one, other in ((low, net), (folded, low)):
        assert keyword(one) == keyword(net)
        assert lc.attack(one, X, Y, "fgsm", eps=0.1).adversarial.shape == X.shape
        assert type(one(pixel_values=X)) is type(other(pixel_values=X))
    torch.testing.assert_close(
        lc.curvature(folded, X, Y).curvature, lc.curvature(low, X, Y).curvature, rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("made", WRAPPED)
def test_logits_stay_logits_when_what_picks_them_is_folded(made: type[Named]) -> None:
    net = returning_logits(made(), X)
    folded = lc.fold(nn.Sequential(net))
    torch.testing.assert_close(folded(X), plain()(X))
    assert not any(type(module).__module__.startswith("lowcurve.") for module in folded.modules())
    with pytest.raises(UserError, match="run it once"):
        lc.fold(classifier(made()))


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]),
        ([0.5], [0.5]),
    ],
)
def test_normalized_inputs_are_refused_with_the_layer_to_add(mean: list[float], std: list[float]) -> None:
    pixels = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    x, y = lc.Normalize(mean, std)(pixels), torch.zeros(16, dtype=torch.int64)
    for call in (lambda: lc.attack(nn.Identity(), x, y, "pgd", eps=0.1), lambda: minimal_norm(nn.Identity(), x, y)):
        with pytest.raises(UserError, match=r"expected inputs in \[0, 1\], got -") as refused:
            call()
        assert f"torch.nn.Sequential(lowcurve.Normalize(mean={mean}, std={std}), model)" in str(refused.value)
    with pytest.raises(UserError, match=r"lowcurve.Normalize\(mean"):
        Split(x, y)


def test_inputs_of_unknown_normalization_get_the_one_of_their_range() -> None:
    x = torch.linspace(-3, 7, 12).view(2, 6)
    with pytest.raises(UserError, match=r"Normalize\(mean=\[0.3\], std=\[0.1\]\)"):
        lc.attack(nn.Linear(6, 2), x, torch.tensor([0, 1]), "pgd", eps=0.1)
    with pytest.raises(UserError, match="x / 255"):
        lc.attack(nn.Linear(6, 2), x.abs() * 30, torch.tensor([0, 1]), "pgd", eps=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that transformers has written, with a processor that normalizes."""
    transformers = imported("transformers")
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=10
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("hub") / "net"
    transformers.ResNetForImageClassification(config).save_pretrained(path)
    settings = {
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.4],
        "image_std": [0.2],
    }
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    return path


def test_a_folder_of_transformers_takes_pixels(folder: Path) -> None:
    net = load_factory(f"hf:{folder}").eval()
    theirs = imported("transformers").ResNetForImageClassification.from_pretrained(folder).eval()
    torch.testing.assert_close(net(X), theirs((X - 0.4) / 0.2).logits)
    assert lc.convert(net, X)[1].replaced


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"auto_map": {"AutoModel": "evil.Net"}}, "sets auto_map"),
        ({"backbone_config": {"use_pretrained_backbone": True}}, "sets use_pretrained_backbone"),
        ({"quantization_config": {"quant_method": "x"}}, "sets quantization_config"),
        ({"depths": [1, 2]}, "are not those of ResNet"),
        ({"model_type": "nonsense"}, "nonsense"),
    ],
)
def test_what_is_not_in_the_folder_is_not_fetched(folder: Path, tmp_path: Path, change: dict, message: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(UserError, match=message):
        load_factory(f"hf:{tmp_path}")


def test_a_folder_with_a_pickle_alone_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        load_factory(f"hf:{tmp_path}")


VERBS = {
    "attack": ["--data", "digits", "--samples", "8", "--attacks", "fgsm", "--radii", "0.1"],
    "measure": ["--data", "digits", "--samples", "4", "--stability", "2", "--max-iterations", "2"],
    "convert": ["--data", "digits", "--samples", "4"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_take_a_folder_of_transformers(verb: str, folder: Path) -> None:
    done = CliRunner().invoke(app, [verb, f"hf:{folder}", *VERBS[verb]], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_a_run_from_a_folder_of_transformers(folder: Path, tmp_path: Path) -> None:
    words = ["train", "digits-mlp-lcnn", "--from", f"hf:{folder}", "--output", str(tmp_path)]
    changes = ["train.epochs=1", "data.limit_train=32", "data.limit_test=16"]
    done = CliRunner().invoke(app, [*words, *(word for change in changes for word in ("--set", change))])
    assert done.exit_code == 0, done.output
    (run,) = tmp_path.iterdir()
    with pytest.raises(UserError, match="If you trust it"):
        lc.load(run)
    net = lc.load(run, factory=f"hf:{folder}")
    assert net(X).shape == (6, 10)
    again = ["attack", str(run), "--trust", f"hf:{folder}", "--samples", "4", "--attacks", "fgsm"]
    done = CliRunner().invoke(app, again, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_verbs_take_a_saved_model_with_the_name_of_its_original(folder: Path, tmp_path: Path) -> None:
    low = lc.fold(lc.convert(load_factory(f"hf:{folder}").eval(), X)[0])
    assert low(X).shape == (6, 10)
    words = ["attack", str(lc.save(low, tmp_path, hub=True)), "--samples", "4", "--attacks", "fgsm", "--data", "digits"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, UserError) and "--trust" in str(done.exception)
    assert CliRunner().invoke(app, [*words, "--trust", f"hf:{folder}"], catch_exceptions=False).exit_code == 0


@TIMM
def test_networks_of_timm_by_name(tmp_path: Path) -> None:
    net = load_factory("timm:resnet10t", (1, 32, 32), 5).eval()
    x = torch.rand(2, 1, 32, 32)
    assert net(x).shape == (2, 5) and isinstance(net[0], lc.Normalize)
    save_file(net[1].model.state_dict(), tmp_path / "net.safetensors")
    again = load_factory(f"timm:resnet10t@{tmp_path}/net.safetensors", (1, 32, 32), 5).eval()
    assert torch.equal(again(x), net(x))
    with pytest.raises(UserError, match="a row for each class"):
        load_factory(f"timm:resnet10t@{tmp_path}/net.safetensors", (1, 32, 32), 7)
    with pytest.raises(UserError, match=r"it has .*resnet10t"):
        load_factory("timm:resnet10")
    with pytest.raises(UserError, match="timm has no network"):
        load_factory("timm:hf_hub:someone/net")
