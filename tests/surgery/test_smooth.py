"""What is smooth already is kept, or gets a learned β: `convert(activation="keep")`, `convert(activation="learn")`."""

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.layers.gated import LearnedGELU, LearnedMish, LearnedSiLU
from lowcurve.layers.traits import learned
from lowcurve.sources import imported
from tests.surgery.zoo import ZOO, as_if_trained, logits

SMOOTH = ["transformers ViT", "transformers Swin", "transformers ConvNeXt"]


class Spellings(nn.Module):
    """GELU, SiLU and Mish as modules and functions, one module used twice, and a ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))
        self.gelu, self.silu, self.mish = nn.GELU(approximate="tanh"), nn.SiLU(inplace=True), nn.Mish()

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.layers
        x = self.silu(b(self.gelu(a(x))))
        x = F.gelu(c(x)) + F.silu(d(x))
        return f(self.gelu(self.mish(F.relu(e(x)))))


def network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return as_if_trained(ZOO[name][0]()), ZOO[name][1]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("how", ["keep", "learn"])
def test_networks_of_others_keep_their_function(name, how):
    net, example = network(name)
    model, report = lc.convert(net, example, activation=how, spectral=False)
    with torch.no_grad():
        torch.testing.assert_close(logits(model(example)), logits(net(example)), rtol=1e-4, atol=1e-5)
    betas = [module for module in model.modules() if learned(module)]
    assert len(betas) == (ZOO[name][2] if how == "learn" else 0)
    assert all(change.note for change in report.left)


def test_every_spelling_is_learned_at_its_own_place():
    torch.manual_seed(0)
    net, x = Spellings().eval(), torch.randn(5, 6)
    model, _ = lc.convert(net, x, activation="learn", spectral=False, init_beta=1e6)  # ReLU as good as itself
    torch.testing.assert_close(model(x), net(x), atol=1e-5, rtol=1e-5)
    kinds = [type(module) for module in model.modules() if learned(module)]
    counts = {kind: kinds.count(kind) for kind in (LearnedGELU, LearnedSiLU, LearnedMish, lc.CenteredSoftplus)}
    assert counts == {LearnedGELU: 3, LearnedSiLU: 2, LearnedMish: 1, lc.CenteredSoftplus: 1}
    assert {m.approximate for m in model.modules() if isinstance(m, LearnedGELU)} == {"none", "tanh"}
    assert len({id(module.log_beta) for module in model.modules() if learned(module)}) == 7
    lc.curvature_penalty(model).backward()
    twice, _ = lc.convert(model, x, activation="learn", spectral=False)
    torch.testing.assert_close(twice(x), model(x))


@pytest.mark.parametrize("how", ["keep", "learn"])
def test_torchs_own_encoder_keeps_its_function(how):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    net, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(3, 4, 8)
    model, _ = lc.convert(net, x, activation=how, spectral=False)
    with torch.no_grad():  # its fused path, where it has one
        torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-5)
    assert sum(isinstance(module, LearnedGELU) for module in model.modules()) == (2 if how == "learn" else 0)


TIMM = {
    "VisionTransformer": ("vision_transformer", {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2}),
    "SwinTransformer": ("swin_transformer", {"img_size": 16, "embed_dim": 8, "window_size": 2, "depths": (1, 1)}),
    "MlpMixer": ("mlp_mixer", {"img_size": 16, "patch_size": 8, "embed_dim": 16}),
}


@pytest.mark.skipif(
    find_spec("timm") is None or find_spec("torchvision") is None, reason="timm is no dependency of development"
)
@pytest.mark.parametrize("name", TIMM)
def test_transformers_of_timm_keep_their_function(name):
    module, sizes = TIMM[name]
    depth = {"depth": 1} if name == "VisionTransformer" else {"num_blocks": 1} if name == "MlpMixer" else {}
    if name == "SwinTransformer":
        sizes = {**sizes, "num_heads": (2, 2)}
    torch.manual_seed(0)
    net = getattr(imported(f"timm.models.{module}"), name)(num_classes=3, **sizes, **depth).eval()
    nn.init.normal_((net.head.fc if name == "SwinTransformer" else net.head).weight)  # zero at first, in a mixer
    x = torch.rand(2, 3, 16, 16)
    for how in ("keep", "learn"):
        model, _ = lc.convert(net, x, activation=how, spectral=False)
        torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-5)
        assert bool(sum(isinstance(part, LearnedGELU) for part in model.modules())) == (how == "learn")
    assert (lc.curvature(model, x).curvature > 0).all()


def test_kept_activations_are_reported_and_rectifiers_replaced_all_the_same():
    torch.manual_seed(0)
    net, x = Spellings().eval(), torch.randn(5, 6)
    model, report = lc.convert(net, x, activation="keep", init_beta=1e6)
    assert [type(module) for module in model.modules() if learned(module)] == [lc.CenteredSoftplus]
    kept = [change for change in report.left if change.note == "smooth already, kept as asked"]
    assert {change.was for change in kept} == {"GELU", "SiLU", "Mish"}
    assert lc.curvature(model, x).curvature.isfinite().all()


@pytest.mark.parametrize("how", ["keep", "learn"])
def test_they_are_saved_and_loaded(tmp_path, how):
    torch.manual_seed(0)
    net, x = Spellings().eval(), torch.randn(5, 6)
    model, _ = lc.convert(net, x, activation=how)
    lc.save(model, tmp_path / "model")
    again = lc.load(tmp_path / "model", model=Spellings())
    torch.testing.assert_close(again.eval()(x), model.eval()(x))
    folded = lc.fold(model)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)


def test_other_words_are_refused():
    for bad in ("kept", 1, None, ["keep"]):
        with pytest.raises(UserError, match="True, False, 'keep' or 'learn'"):
            lc.convert(nn.Linear(2, 2), torch.zeros(1, 2), activation=bad)
