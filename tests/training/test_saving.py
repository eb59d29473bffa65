"""A saved model comes back with the same logits, into the right architecture or not at all."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lowcurve as lc
from lowcurve.errors import UserError
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
    for other in (quiet_net(), lc.fold(lc.convert(quiet_net(), X, init_beta=2.0)[0])):  # another β is another function
        with pytest.raises(UserError, match="fold it after loading"):
            lc.load(tmp_path / "folded", model=other)


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
