import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import lowcurve
from lowcurve import MODELS, AveragedResidual, CenteredSoftplus, LipschitzBatchNorm1d, Normalize, convert, fold
from lowcurve.layers.chain import Chain
from lowcurve.layers.rectifiers import LeakyCenteredSoftplus
from tests.surgery.zoo import SMALL, VECTOR, SharedInBlock, as_if_trained

# Reads a pickled model and an input, and writes the logits, in a process that cannot import lowcurve.
STRANGER = """
import pickle, sys
sys.modules["lowcurve"] = None
folder = sys.argv[1]
import torch
model = pickle.load(open(folder + "/model.pickle", "rb"))
torch.save(model(torch.load(folder + "/x.pt")).detach(), folder + "/y.pt")
"""


def lowered(name: str, width: int = 4, **arguments) -> nn.Module:
    """A converted model after a few forwards in training mode, so that nothing is at its initial value."""
    net = as_if_trained(MODELS[name](width=width, num_classes=5, image_size=8))
    model, _ = convert(net, SMALL, **arguments)
    model.train()
    for _ in range(3):
        model(SMALL)
    with torch.no_grad():
        for index, module in enumerate(m for m in model.modules() if isinstance(m, CenteredSoftplus)):
            module.log_beta.fill_(index - 3.0)  # β from 0.05 up
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_same_logits_and_nothing_of_ours(name):
    model = lowered(name, init_gamma=0.5)
    plain = fold(model)
    torch.testing.assert_close(plain(SMALL), model(SMALL), atol=1e-5, rtol=0)
    assert not [m for m in plain.modules() if type(m).__module__.startswith("lowcurve")]
    assert b"lowcurve" not in pickle.dumps(plain)
    assert not plain.training


def test_a_process_without_lowcurve_can_use_it(tmp_path):
    model = lowered("resnet18", width=2)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(fold(model)))
    torch.save(SMALL, tmp_path / "x.pt")
    subprocess.run([sys.executable, "-c", STRANGER, str(tmp_path)], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), model(SMALL).detach(), atol=1e-5, rtol=0)


def test_torch_export_with_any_batch_size():
    model = lowered("convnet")
    program = torch.export.export(fold(model), (SMALL,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    x = torch.rand(5, 3, 8, 8)
    torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=0)


def test_onnx_export_in_onnx_s_own_interpreter():
    reference = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    model = lowered("mlp")
    program = torch.onnx.export(fold(model), (SMALL,), dynamo=True, verbose=False)
    session = reference.ReferenceEvaluator(program.model_proto)
    (logits,) = session.run(None, {session.input_names[0]: SMALL.numpy()})
    np.testing.assert_allclose(logits, model(SMALL).detach().numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("beta", [1e-4, 0.01, 1.0, 100.0, 1e5])
def test_folded_activation_against_high_precision(beta):
    x = torch.cat([torch.linspace(-50, 50, 1001), torch.tensor([0.0, 1e-6, -1e-6, 1e4, -1e4])])
    wide = x.double()
    truth = (torch.logaddexp(beta * wide, torch.zeros_like(wide)) - np.log(2)) / beta
    ours = fold(CenteredSoftplus(beta))(x)
    torch.testing.assert_close(ours.double(), truth, rtol=1e-6, atol=2e-7)


def test_folded_activation_has_the_right_slope_at_zero():
    x = torch.zeros(1, requires_grad=True)
    (slope,) = torch.autograd.grad(fold(CenteredSoftplus(3.0))(x), x)
    assert float(slope) == 0.5


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (Normalize([0.1, 0.2, 0.3], [0.5, 1.0, 2.0]), SMALL),
        (Normalize(0.5, 0.1), VECTOR),
        (AveragedResidual(nn.Linear(6, 6), CenteredSoftplus()), VECTOR),
        (LeakyCenteredSoftplus(0.1), VECTOR),
        (LipschitzBatchNorm1d(6, init_gamma=0.3), VECTOR),
        (LipschitzBatchNorm1d(6, init_gamma=0.3, affine=True), VECTOR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_layer_of_the_package(layer, x):
    plain = fold(layer)
    torch.testing.assert_close(plain(x), layer.eval()(x), atol=1e-6, rtol=0)
    assert b"lowcurve" not in pickle.dumps(plain)


def test_shared_modules_stay_shared():
    shared = CenteredSoftplus()
    plain = fold(nn.Sequential(shared, nn.Linear(6, 6), shared))
    assert plain[0] is plain[2]


def test_other_parametrizations_are_folded_too():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    plain = fold(nn.Sequential(layer))
    assert type(plain[0]) is nn.Linear
    torch.testing.assert_close(plain(VECTOR), layer(VECTOR))


def test_a_folded_model_can_be_converted_and_trained_again():
    model, _ = convert(SharedInBlock().eval(), SMALL)
    plain = fold(model)
    again, report = convert(plain, SMALL)
    assert report.counts() == {
        ("Conv2d", "spectral norm"): 3,
        ("BatchNorm2d", "LipschitzBatchNorm2d"): 2,
        ("GraphModule", "CenteredSoftplus"): 3,
    }
    plain.train()(SMALL).sum().backward()
    assert all(p.grad is not None for p in plain.parameters())
    assert again(SMALL).shape == (2, 5)


@pytest.mark.parametrize(
    "layer",
    [CenteredSoftplus(), LipschitzBatchNorm1d(3), LeakyCenteredSoftplus(), Normalize(0.1, 2.0), Chain(nn.Tanh())],
    ids=lambda layer: type(layer).__name__,
)
def test_hooks_stay(layer: nn.Module) -> None:
    model, x = nn.Sequential(layer).eval(), torch.rand(2, 3)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    layer.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
    assert torch.allclose(fold(model)(x), model(x), atol=1e-6)


def test_merged_batch_norms_are_gone_where_they_alone_read_a_convolution():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(3, 3, 1) for _ in range(3))
            self.bn_a, self.bn_b, self.bn_c = (as_if_trained(nn.BatchNorm2d(3)) for _ in range(3))

        def forward(self, x):
            x = self.bn_a(self.a(x))
            y = self.b(x)
            return self.bn_c(self.c(self.bn_b(y) + y))

    net = Shared().eval()
    net.bn_c.register_forward_hook(lambda module, inputs, output: output + 1)
    merged = fold(net, SMALL)
    kinds = [type(layer) for layer in (merged.bn_a, merged.bn_b, merged.bn_c)]
    assert kinds == [nn.Identity, nn.BatchNorm2d, nn.BatchNorm2d]  # read alone; read by two; listened to
    torch.testing.assert_close(merged(SMALL), net(SMALL), rtol=1e-4, atol=1e-5)
    assert type(net.bn_a) is nn.BatchNorm2d


def test_a_merged_model_is_saved_and_comes_back_from_its_original(tmp_path):
    net = as_if_trained(MODELS["resnet18"](width=4, num_classes=5, image_size=8))
    merged = fold(convert(net, SMALL)[0], SMALL)
    lowcurve.save(merged, tmp_path / "saved")
    torch.testing.assert_close(lowcurve.load(tmp_path / "saved", model=net)(SMALL), merged(SMALL))
