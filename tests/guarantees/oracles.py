"""Independent truths for the tests of bounds: dense matrices, exact Hessians, small networks of many shapes."""

import torch
from torch import Tensor, nn

from lowcurve.layers.lipschitz import LipschitzResidual, LipschitzResidual2d
from lowcurve.layers.normalized import converge, spectral_norm
from lowcurve.layers.residual import AveragedResidual
from lowcurve.layers.softplus import CenteredSoftplus


def dense_matrix(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The Jacobian of an affine module on inputs of `shape`, by autograd in float64: (outputs, inputs)."""
    module = module.double()
    jacobian = torch.autograd.functional.jacobian(
        lambda x: module(x.view(1, *shape)).flatten(), torch.zeros(shape).flatten().double()
    )
    return jacobian.detach()


def softplus_net(kind: str, beta: float, seed: int, normalized: bool = False) -> tuple[nn.Module, tuple[int, ...]]:
    """A small random network with centered softplus and the shape of its inputs."""
    torch.manual_seed(seed)
    act = lambda: CenteredSoftplus(beta)  # noqa: E731
    nets: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "mlp": (nn.Sequential(nn.Linear(5, 7), act(), nn.Linear(7, 6), act(), nn.Linear(6, 3)), (5,)),
        "conv": (
            nn.Sequential(
                nn.Conv2d(1, 3, 3, padding=1),
                act(),
                nn.AvgPool2d(2),
                nn.Conv2d(3, 2, 2),
                act(),
                nn.Flatten(),
                nn.Linear(2, 3),
            ),
            (1, 4, 4),
        ),
        "residual": (
            nn.Sequential(
                nn.Conv2d(1, 2, 3, padding=1),
                nn.BatchNorm2d(2),
                act(),
                AveragedResidual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), act())),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
                nn.Linear(8, 3),
                act(),
                nn.Linear(3, 3),
            ),
            (1, 4, 4),
        ),
        "branches": (Branches(beta), (6,)),
        "lipschitz": (TwiceTheBlock(beta), (5,)),
        "lipschitz images": (
            nn.Sequential(
                nn.PixelUnshuffle(2),
                nn.ZeroPad3d((0, 0, 0, 0, 0, 1)),
                LipschitzResidual2d(5, 4, 3, act()),
                LipschitzResidual2d(5, 6, 3, act(), padding_mode="circular"),
                nn.Flatten(),
                LipschitzResidual(20, 7, act()),
                nn.Linear(20, 3),
            ),
            (1, 4, 4),
        ),
    }
    model, shape = nets[kind]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.3, 2.0)
            module.running_mean.normal_()
        if normalized and isinstance(module, nn.Linear):
            spectral_norm(module)
        if isinstance(module, LipschitzResidual | LipschitzResidual2d):
            module.bias.data.normal_()
            module.log_q.data.normal_()
            module.weight.data.normal_(0, 0.5)
    if normalized:
        converge(model)
    return model.eval(), shape


class Branches(nn.Module):
    """Concatenation, addition, a number as a factor, a functional call and a layer used twice."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(6, 4), nn.Linear(6, 3), nn.Linear(7, 3)
        self.shared, self.act, self.bend = nn.Linear(7, 7), CenteredSoftplus(beta), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.act(self.left(x)), self.bend(self.right(x))], dim=1)
        h = 0.5 * (h + self.act(self.shared(h)))
        return self.last(self.act(self.shared(h)) / 3 + h)


class TwiceTheBlock(nn.Module):
    """A 1-Lipschitz block that is used twice, behind and before other things that bend."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.first, self.last, self.act = nn.Linear(5, 6), nn.Linear(6, 3), CenteredSoftplus(beta)
        self.block = LipschitzResidual(6, 9, CenteredSoftplus(beta))

    def forward(self, x: Tensor) -> Tensor:
        h = self.block(self.act(self.first(x)))
        return self.last(self.act(self.block(h) - 0.3 * h))


def margin_hessian_norm(model: nn.Module, x: Tensor, y: int, c: int) -> float:
    """‖∇²(z_y − z_c)‖₂ at x by torch.func.hessian in float64."""
    model = model.double()
    hessian = torch.func.hessian(lambda v: (lambda z: z[0, y] - z[0, c])(model(v[None])))(x.double())
    return float(torch.linalg.matrix_norm(hessian.reshape(x.numel(), x.numel()), ord=2).detach())
