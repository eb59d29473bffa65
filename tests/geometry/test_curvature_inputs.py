"""Any model and any input shape; samples that are not finite; mistakes that are named."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.geometry.hvp import chunks
from lowcurve.observe import observing
from tests.geometry.conftest import dense_norms


class LastState(nn.Module):
    """A recurrent classifier of sequences of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Attention(nn.Module):
    """A transformer over sequences of floats; its fused attention kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(dim=1))


class OnlyOnce(nn.Module):
    """An operation of somebody's own, with a first derivative."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @once_differentiable
        def backward(ctx, grad: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    def forward(self, x: Tensor) -> Tensor:
        return self.Cube.apply(x)


MODELS = {
    "vectors": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), (6,)),
    "sequences": (LastState, (7, 3)),
    "attention": (Attention, (5, 8)),
    "signals": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(24, 4)), (2, 8)),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ELU(inplace=True), nn.Flatten(), nn.Linear(16, 4)),
        (3, 4, 4),
    ),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Softplus(), nn.Flatten(), nn.Linear(16, 4)), (1, 3, 3, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_any_input_shape(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    net = make().double().eval()
    x, y = torch.randn(4, *shape, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    found = lc.curvature(net, x, y, tol=1e-6, max_iterations=100)

    def loss(values: Tensor, label: Tensor) -> Tensor:
        return -net(values[None]).log_softmax(dim=1)[0, label]

    for i in range(4):  # plain double backward, sample by sample
        sample = x[i : i + 1].clone()
        with sdpa_kernel(SDPBackend.MATH):
            hessian = torch.autograd.functional.hessian(lambda v: loss(v[0], y[i]), sample)  # noqa: B023
        truth = torch.linalg.eigvalsh(hessian.reshape(sample.numel(), -1)).abs().max()
        assert found.hessian_norm[i] == pytest.approx(truth.item(), rel=1e-5)


def test_relu_networks_have_no_logit_hessian() -> None:
    net = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))
    assert (lc.curvature(net, torch.rand(4, 5), of="margin").curvature == 0).all()


@pytest.mark.parametrize("method", ["lanczos", "power"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_samples_that_are_not_finite_are_reported_alone(bad: float, method: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 3)).double()
    x, y = torch.rand(5, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    clean = lc.curvature(net, x, y, method=method)
    x[2, 0, 1, 1] = bad
    found = lc.curvature(net, x, y, method=method)
    others = torch.tensor([0, 1, 3, 4])
    for name in ("gradient_norm", "hessian_norm", "curvature", "residual"):
        values = getattr(found, name)
        assert torch.isnan(values[2]) and torch.allclose(values[others], getattr(clean, name)[others], rtol=1e-6)
    assert found.iterations[2] == 0


def test_empty_batches() -> None:
    geometry = lc.curvature(nn.Linear(3, 2), torch.empty(0, 3))
    assert all(len(field) == 0 for field in vars(geometry).values())


def image_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(8, 3))


MISTAKES = {
    "integers": (lambda x, y: (x.mul(255).byte(), y, {}), r"x\.float\(\) / 255"),
    "levels": (lambda x, y: (x.mul(255).round(), y, {}), "x / 255"),
    "label too large": (lambda x, y: (x, y + 2, {}), r"labels in 0\.\.2, got 2\.\.4"),
    "label negative": (lambda x, y: (x, y - 1, {}), r"labels in 0\.\.2"),
    "label shape": (lambda x, y: (x, y[:1], {}), r"3 integer labels"),
    "float labels": (lambda x, y: (x, y.float(), {}), "integer labels"),
    "one-hot labels": (lambda x, y: (x, torch.eye(3)[y], {}), "integer labels"),
    "no batch": (lambda x, y: (x[0, 0, 0], y, {}), r"x\[None\]"),
    "wrong shape": (lambda x, y: (x.repeat(1, 2, 1, 1), y, {}), r"inputs of shape \(1, 2, 4, 4\)"),
    "unknown function": (lambda x, y: (x, y, {"of": "losss"}), "did you mean 'loss'"),
    "unknown method": (lambda x, y: (x, y, {"method": "lancos"}), "did you mean 'lanczos'"),
    "logit too large": (lambda x, y: (x, y, {"of": 3}), r"logit in 0\.\.2"),
    "tolerance": (lambda x, y: (x, y, {"tol": 0}), "tol as a positive number"),
    "one value for all": (lambda x, y: (x, y, {"of": lambda z, _: z.sum()}), r"one value per sample, \(1,\)"),
    "detached": (lambda x, y: (x, y, {"of": lambda z, _: z.detach()[:, 0]}), "detach"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    prepare, message = MISTAKES[name]
    x, y, options = prepare(torch.rand(3, 1, 4, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(UserError, match=message):
        lc.curvature(image_net(), x, y, **options)


class Wrapped(nn.Module):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.net, self.key = image_net(), key

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {self.key: self.net(x)}


def test_outputs_that_are_no_logits_need_a_function() -> None:
    x = torch.rand(2, 1, 4, 4)
    model = Wrapped("scores")
    with pytest.raises(UserError, match="something with logits, got dict"):
        lc.curvature(model, x)
    found = lc.curvature(model, x, of=lambda out, _: out["scores"][:, 0])
    assert torch.allclose(found.curvature, lc.curvature(model.net, x, of=0).curvature)


def test_outputs_that_hold_logits_are_measured_as_the_logits() -> None:
    x, y = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])
    model = Wrapped("logits")
    for of in ("loss", "margin", 1):
        assert torch.equal(lc.curvature(model, x, y, of=of).curvature, lc.curvature(model.net, x, y, of=of).curvature)
    for function in (lc.gradient_stability, lc.local_linearity):
        pair = [function(net, x, y, [0.1], samples=1).values for net in (model, model.net)]
        assert torch.equal(*pair)
    found, truth = (lc.certify(net, x, y) for net in (model, model.net))
    assert torch.allclose(found.radius, truth.radius, rtol=1e-9)


def test_memory_bounds_the_chunks() -> None:
    """Half the memory, half the samples at a time; always at least one."""
    net, x, y = image_net(), torch.rand(200, 1, 4, 4), torch.zeros(200, dtype=torch.long)

    def largest(memory: int) -> int:
        with observing(net):
            slices = list(chunks(net, x, y, "loss", vectors=30, memory=memory))
        assert [i for s in slices for i in range(200)[s]] == list(range(200))
        return slices[0].stop

    sizes = [largest(memory) for memory in (1, 2**16, 2**17, 2**40)]
    assert sizes[0] == 1 and sizes[3] == 256
    assert 1 < sizes[1] < sizes[2] <= 2 * sizes[1] + 1 < 200


def test_float32_bytes_of_a_graph_are_seen() -> None:
    """A wider network leaves room for fewer samples, although the inputs are the same."""
    x, y = torch.rand(300, 4), torch.zeros(300, dtype=torch.long)

    def size(width: int) -> int:
        net = nn.Sequential(nn.Linear(4, width), nn.Softplus(), nn.Linear(width, 3))
        with observing(net):
            return next(chunks(net, x, y, "loss", vectors=30, memory=2**20)).stop

    assert size(4096) < size(1024) < size(256)


def test_dense_norms_of_the_tests_are_right() -> None:
    """The truth of these tests on f = ½ xᵀAx: gradient Ax, Hessian A."""
    a = torch.tensor([[2.0, 1.0], [1.0, -3.0]], dtype=torch.float64)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    slope, norm = dense_norms(lambda v: v @ a @ v / 2, x)
    assert slope == pytest.approx((x @ a).norm().item()) and norm == pytest.approx(0.5 + 7.25**0.5)


@pytest.mark.parametrize(
    ("net", "remedy"),
    [
        (nn.Sequential(nn.Linear(3, 2), OnlyOnce()), "use a smooth one in its place"),
        (nn.Sequential(nn.Linear(3, 2), nn.Softplus(), nn.ELU(inplace=True)), "inplace=False"),
    ],
    ids=["no second derivative", "overwritten"],
)
def test_what_pytorch_cannot_differentiate_twice_is_named(net: nn.Module, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        lc.curvature(net, torch.rand(2, 3), torch.tensor([0, 1]))
