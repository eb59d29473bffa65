"""A saved model comes back with the same logits, into the right architecture or not at all."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.sources import imported
from tests.training.makers import quiet_net, same_bits


class Functional(nn.Module):
    """A network whose surgery rewrites its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x))).flatten(1))


X = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
MAKERS = {
    "modules": quiet_net,
    "functional": Functional,
    "resnet": lambda: lc.MODELS["resnet18"](10, 1, 4, image_size=8),
}


def trained(net: nn.Module) -> nn.Module:
    """Move every weight and statistic."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()
    return net.eval()


def same(first: nn.Module, second: nn.Module) -> bool:
    """Whether every bit of the state agrees, and logits but for the order of sums, which memory layout decides."""
    states = [dict(model.state_dict()) for model in (first, second)]
    return same_bits(*states) and torch.allclose(first(X), second(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("skip", [False, True])
def test_a_converted_model_comes_back_from_its_original_and_from_itself(tmp_path: Path, maker: str, skip: bool) -> None:
    torch.manual_seed(0)
    left = {"modules": "7", "functional": "last", "resnet": "fc"}[maker]
    original = MAKERS[maker]()
    names = [name for name, module in original.named_modules() if isinstance(module, nn.Linear)]
    low = trained(lc.convert(original, X, skip=names[-1:] if skip else (), init_beta=3.0)[0])
    assert lc.save(low, tmp_path / left) == tmp_path / left
    again = lc.load(tmp_path / left, model=MAKERS[maker]())
    assert same(again, low) and not again.training
    blank = lc.convert(MAKERS[maker](), X, skip=names[-1:] if skip else ())[0]
    assert lc.load(tmp_path / left, model=blank) is blank and same(blank, low)
    assert same(lc.load(tmp_path / left, factory=MAKERS[maker]), low)


def test_plain_and_folded_models_come_back(tmp_path: Path) -> None:
    plain = trained(quiet_net())
    assert torch.equal(lc.load(lc.save(plain, tmp_path / "plain"), model=quiet_net())(X), plain(X))
    low = trained(lc.convert(quiet_net(), X)[0])
    folded = lc.fold(low)
    lc.save(folded, tmp_path / "folded")
    blank = lc.fold(low)
    with torch.no_grad():
        for parameter in blank.parameters():
            parameter.zero_()
    assert torch.equal(lc.load(tmp_path / "folded", model=blank)(X), folded(X))
    with pytest.raises(UserError, match="is not the one saved"):  # another β is another function
        lc.load(tmp_path / "folded", model=lc.fold(lc.convert(quiet_net(), X, init_beta=2.0)[0]))


@pytest.mark.parametrize("maker", ["modules", "functional"])
def test_a_folded_model_comes_back_from_its_original(tmp_path: Path, maker: str) -> None:
    """β, which is a number in the folded code, is set, and the code compared."""
    torch.manual_seed(0)
    low = trained(lc.convert(MAKERS[maker](), X, init_beta=3.0)[0])
    betas = {float(m.beta.detach()) for m in low.modules() if isinstance(m, lc.CenteredSoftplus)}
    assert betas != {3.0}
    folded = lc.fold(low)
    lc.save(folded, tmp_path)
    for start in (MAKERS[maker](), lc.convert(MAKERS[maker](), X)[0], lc.fold(low)):
        again = lc.load(tmp_path, model=start)
        assert same(again, folded) and not again.training
    assert not any(type(module).__module__.startswith("lowcurve.") for module in again.modules())
    lc.save(again, tmp_path / "again")  # what came back can be kept and brought back as well
    assert same(lc.load(tmp_path / "again", model=MAKERS[maker]()), folded)


def test_networks_that_are_of_low_curvature_by_themselves_are_folded_alike(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(lc.Normalize([0.5], [0.2]), nn.Flatten(), nn.Linear(64, 3), lc.CenteredSoftplus(2.0))

    folded = lc.fold(trained(make()))
    assert same(lc.load(lc.save(folded, tmp_path), model=make()), folded)


def test_a_folder_for_a_hub(tmp_path: Path) -> None:
    low = trained(lc.convert(quiet_net(), X)[0])
    folder = lc.save(low, tmp_path / "my-net", hub=True)
    assert {path.name for path in folder.iterdir() if path.suffix} == {"model.safetensors", "model.json", "README.md"}
    card = (folder / "README.md").read_text()
    front, _, text = card.removeprefix("---\n").partition("---\n")
    assert "library_name: lowcurve\n" in front and "# my-net" in text and "learned β" in text
    assert same(lc.load(folder, model=quiet_net()), low)
    (folder / "README.md").write_text("mine")
    lc.save(lc.fold(low), folder, hub=True)
    assert (folder / "README.md").read_text() == "mine"
    assert same(lc.load(folder, model=quiet_net()), lc.fold(low))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds another model already"):
        lc.save(low, tmp_path / "other", hub=True)


class Hub(nn.Sequential):
    """What transformers and its like do: weights and a configuration, and the old network comes back."""

    def save_pretrained(self, folder: Path) -> None:
        raise AssertionError("saved")


def test_save_pretrained_is_refused_after_surgery(tmp_path: Path) -> None:
    net = nn.Sequential(Hub(nn.Flatten(), nn.Linear(64, 8), nn.GELU()), nn.Linear(8, 3))
    low, _ = lc.convert(net, X)
    for model in (low, lc.fold(low), copy.deepcopy(low), lc.fold(copy.deepcopy(low))):
        with pytest.raises(UserError, match=r"cannot be kept by save_pretrained.*lowcurve.save"):
            model[0].save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match="saved"):  # the original, and what nothing was done to, as before
        net[0].save_pretrained(tmp_path)
    with pytest.raises(AssertionError, match="saved"):
        lc.fold(net)[0].save_pretrained(tmp_path)
    for model in (low, copy.deepcopy(low)):  # a checkpoint of a training loop
        with torch.no_grad():
            model[0][1].bias.add_(1)
        model[0].save_pretrained(tmp_path, state_dict=None)
        assert same_bits(load_file(tmp_path / "model.safetensors"), dict(model[0].state_dict()))


def test_a_folded_model_of_transformers(tmp_path: Path) -> None:
    hf = imported("transformers")
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_channels=1, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    low, _ = lc.convert(hf.ViTForImageClassification(config).eval(), X)
    folded = lc.fold(low)
    for model in (low, folded):
        with pytest.raises(UserError, match="cannot be kept by save_pretrained"):
            model.save_pretrained(tmp_path)
        again = lc.load(lc.save(model, tmp_path / "kept"), model=hf.ViTForImageClassification(config))
        torch.testing.assert_close(again(X).logits, model(X).logits, rtol=0, atol=1e-6)
    assert pickle.loads(pickle.dumps(folded)).save_pretrained.startswith("a converted or folded model")


def test_what_is_wrong_is_refused(tmp_path: Path) -> None:
    folder = lc.save(trained(lc.convert(quiet_net(), X)[0]), tmp_path / "model")
    assert {path.suffix for path in folder.iterdir() if not path.name.startswith(".")} == {".json", ".safetensors"}
    with pytest.raises(UserError, match="holds weights, not code"):
        lc.load(folder)
    with pytest.raises(UserError, match="is not the one saved"):
        lc.load(folder, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(UserError, match="expected model as an nn"):
        lc.save("net", tmp_path / "x")  # type: ignore[arg-type]
    body = json.loads((folder / "model.json").read_text())
    for change in ({"weights": "../../secret"}, {"sha256": None}, {"weights_sha256": None}, {"conversions": []}):
        (folder / "model.json").write_text(json.dumps(body | change))
        with pytest.raises(UserError, match="has been altered"):
            lc.load(folder, model=quiet_net())
    (folder / "model.json").write_text(json.dumps(body))
    data = bytearray((folder / body["weights"]).read_bytes())
    data[-1] ^= 1
    (folder / body["weights"]).write_bytes(data)
    with pytest.raises(UserError, match="has been altered"):
        lc.load(folder, model=quiet_net())


def test_saving_again_replaces_the_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (trained(quiet_net()) for _ in range(2))
    with torch.no_grad():
        next(second.parameters()).add_(1)
    lc.save(first, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("lowcurve.training.saving.write_json", lambda *_: 1 / 0)  # ended between the two files
        lc.save(second, tmp_path)
    assert torch.equal(lc.load(tmp_path, model=quiet_net())(X), first(X))
    lc.save(second, tmp_path)
    assert torch.equal(lc.load(tmp_path, model=quiet_net())(X), second(X))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
