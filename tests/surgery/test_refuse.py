"""What cannot be converted is refused by name, with a remedy."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve import convert
from lowcurve.errors import UserError
from lowcurve.layers.softplus import CenteredSoftplus
from tests.surgery.zoo import SMALL, TOKENS, VECTOR


class Forward(nn.Module):
    """A model whose forward is a function of itself and x, with the given children."""

    def __init__(self, forward, **children):
        super().__init__()
        self.run = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x):
        return self.run(self, x)


class Block(Forward):
    pass


def in_block(forward, **children):
    return nn.Sequential(nn.Linear(6, 6), Block(forward, **children))


def branch(self, x):
    return F.relu(x) if float(x.square().sum()) > 0 else x


def by_mode(self, x):
    return F.relu(x) if self.training else F.relu(x) + 1


class PaddedConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1)))


def tied():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def attention(self, x):
    return F.relu((x @ x.transpose(1, 2)).softmax(-1) @ self.fc(x))


def in_place_view(self, x):
    x = self.fc(x)
    x[:, :3].relu_()
    return x


torch.manual_seed(0)  # whether an in-place change shows depends on the numbers
CASES = {
    "PReLU": (nn.Sequential(nn.Linear(6, 6), nn.PReLU()), VECTOR, r"1 \(PReLU\).*use nn.LeakyReLU"),
    "functional PReLU": (in_block(lambda self, x: F.prelu(x, torch.ones(1))), VECTOR, r"1 \(Block\).*nn.LeakyReLU"),
    "steep LeakyReLU": (nn.Sequential(nn.LeakyReLU(2.0)), VECTOR, r"0 \(LeakyReLU\).*outside \[0, 1\]"),
    "steep functional leak": (in_block(lambda s, x: F.leaky_relu(x, 2.0)), VECTOR, r"1 \(Block\).*outside \[0, 1\]"),
    "computed slope": (in_block(lambda s, x: F.celu(x, x.std())), VECTOR, r"1 \(Block\).*the forward computes"),
    "transposed convolution": (
        nn.Sequential(nn.ConvTranspose2d(3, 3, 2)),
        SMALL,
        r"0 \(ConvTranspose2d\).*spectral=False",
    ),
    "reflecting convolution": (
        nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")),
        SMALL,
        "0 .*reflect",
    ),
    "convolution with a forward of its own": (
        nn.Sequential(PaddedConv(3, 3, 3)),
        SMALL,
        r"0 \(PaddedConv\).*own forward",
    ),
    "functional weight": (in_block(lambda s, x: x @ s.w, w=nn.Parameter(torch.eye(6))), VECTOR, r"1 \(Block\).*matmul"),
    "functional linear": (in_block(lambda s, x: F.linear(x, s.w), w=nn.Parameter(torch.eye(6))), VECTOR, "1 .*linear"),
    "functional batch norm": (
        in_block(lambda s, x: F.batch_norm(x, torch.zeros(6), torch.ones(6))),
        VECTOR,
        r"1 \(Block\).*batchnorm=False",
    ),
    "batch norm without statistics": (nn.BatchNorm1d(6, track_running_stats=False), VECTOR, "track_running_stats=True"),
    "3d batch norm": (nn.Sequential(nn.BatchNorm3d(3)), torch.rand(2, 3, 4, 4, 4), "0 .*batchnorm=False"),
    "tied weights": (tied(), VECTOR, "0 and 2: they share one weight; untie"),
    "weight norm": (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))),
        VECTOR,
        "0 .*parametrized already",
    ),
    "old spectral norm": (nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 6))), VECTOR, "0 .*parametrized already"),
    "branch on data": (
        in_block(branch),
        VECTOR,
        r"1 \(Block\): its forward cannot be traced.*call activations as modules.*skip=\('1',\)",
    ),
    "branch on mode": (in_block(by_mode), VECTOR, r"1 \(Block\): its forward depends on self.training.*skip=\('1',\)"),
    "hidden activation": (
        in_block(lambda s, x: s.acts[0](x), acts=[nn.ReLU()]),
        VECTOR,
        r"1 \(Block\).*cannot be traced",
    ),
    "in-place view": (nn.Sequential(Block(in_place_view, fc=nn.Linear(6, 6))), VECTOR, r"0 \(Block\).*in place"),
    "attention without a module": (
        Forward(attention, fc=nn.Linear(8, 8)),
        TOKENS,
        r"\(model\) \(Forward\).*attention a module",
    ),
    "lazy layers": (nn.Sequential(nn.LazyLinear(5)), VECTOR, r"0 \(LazyLinear\); run the model once"),
    "scripted": (torch.jit.script(nn.Sequential(nn.Linear(6, 5))), VECTOR, "then script the result"),
    "compiled": (torch.compile(nn.Sequential(nn.Linear(6, 5))), VECTOR, "then call torch.compile"),
    "data parallel": (
        nn.Sequential(nn.DataParallel(nn.Linear(6, 5))),
        VECTOR,
        r"0 \(DataParallel\); convert model.module",
    ),
    "wrong example": (nn.Sequential(nn.Linear(6, 5)), TOKENS, "Sequential fails on example_input: RuntimeError"),
    "no module": (F.relu, VECTOR, "expected an nn.Module, got function"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name_with_a_remedy(case):
    model, example, words = CASES[case]
    with pytest.raises(UserError, match=words):
        convert(model, example)


def test_every_problem_is_listed_at_once():
    net = nn.Sequential(nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 6), nn.LeakyReLU(-1.0))
    with pytest.raises(UserError, match=r"1 \(PReLU\).*3 \(LeakyReLU\)"):
        convert(net, VECTOR)


@pytest.mark.parametrize(
    ("case", "switch"), [("PReLU", "activation"), ("functional weight", "spectral"), ("3d batch norm", "batchnorm")]
)
def test_the_remedy_works(case, switch):
    model, example, _ = CASES[case]
    low, _ = convert(model, example, **{switch: False})
    assert bool(low.eval()(example).isfinite().all())


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 5), nn.ReLU()))
        with pytest.raises(UserError, match=r"\(DistributedDataParallel\); convert model.module, then wrap"):
            convert(net, VECTOR)
        convert(net.module, VECTOR)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_quantized():
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), {nn.Linear})
    with pytest.raises(UserError, match=r"0 \(Linear\); convert and train the float model"):
        convert(net, VECTOR)


class AddsInPlace(nn.Module):
    """GELU keeps its input for backward, so this trains; a centered softplus keeps its output."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(x)
        y += x
        return y


def test_an_activation_whose_output_is_overwritten_is_refused() -> None:
    with pytest.raises(UserError, match=r"act .CenteredSoftplus.*changed in place"):
        convert(nn.Sequential(AddsInPlace()), torch.rand(2, 3))


def test_a_model_that_overwrites_its_input_does_not_overwrite_the_example() -> None:
    x = torch.rand(2, 3) - 0.5
    before = x.clone()
    model, _ = convert(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), x)
    convert(nn.Sequential(nn.Threshold(0.1, 5.0, inplace=True), nn.Linear(3, 2)), x)
    assert torch.equal(x, before) and type(model[0]) is CenteredSoftplus


def test_what_cannot_be_traced_is_left_as_the_message_says() -> None:
    net = nn.Sequential(nn.Linear(6, 6), Block(branch), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(UserError) as refused:
        convert(net, VECTOR)
    (name,) = re.findall(r"skip=\('(.*)',\)", str(refused.value))
    low, report = convert(net, VECTOR, skip=(name,))
    assert isinstance(low[1], Block) and isinstance(low[2], CenteredSoftplus)
    assert "skipped, as asked" in str(report)
    with pytest.raises(UserError) as refused:
        convert(Block(branch), VECTOR)
    assert "skip=" not in str(refused.value)  # nothing would be left to convert
