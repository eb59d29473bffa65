"""Draw the pictures of docs/gallery.md, but for the moons: `python docs/gallery_images.py`, a minute on one core."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.attacks.minimal import minimal_norm
from lowcurve.data import load_dataset

IMAGES = Path(__file__).parent / "images"
SIDE, REACH = 41, 1.5  # of a slice: points along an axis, distance from its middle
LEVELS = [0, 0.01, 0.03, 0.1, 0.3, 1, 2, 3, 4, 6, 8, 12]
NAMES = {"standard": "standard", "low": "low curvature"}


def train(model: nn.Module, x: Tensor, y: Tensor, penalty: float, steps: int = 200) -> nn.Module:
    optimizer = torch.optim.SGD(lc.parameter_groups(model), lr=0.1, momentum=0.9)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=order)
        loss = F.cross_entropy(model(x[rows]), y[rows]) + lc.curvature_penalty(model, beta=penalty)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def networks(x: Tensor, y: Tensor) -> dict[str, nn.Module]:
    """Return one network as it is and converted, both trained alike."""
    torch.manual_seed(0)
    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=8, image_size=8)
    low, _ = lc.convert(net, x[:1])
    return {"standard": train(net, x, y, 0.0), "low": train(low, x, y, 1e-2)}


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each label's logit."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x).gather(1, y[:, None]).sum(), x)[0]


def slice_of(axes: Axes, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Draw the loss around an image, along its gradient and a random direction."""
    first = F.normalize(gradient(model, x, y).flatten(), dim=0)
    second = torch.randn(first.shape, generator=torch.Generator().manual_seed(1))
    second = F.normalize(second - (second @ first) * first, dim=0)
    line = torch.linspace(-REACH, REACH, SIDE)
    down, across = torch.meshgrid(line, line, indexing="ij")
    points = x + (down[..., None] * second + across[..., None] * first).reshape(-1, *x.shape[1:])
    with torch.no_grad():
        losses = F.cross_entropy(model(points), y.expand(len(points)), reduction="none").reshape(SIDE, SIDE)
    axes.contourf(line, line, losses, levels=LEVELS, cmap="viridis", extend="max")
    axes.plot(0, 0, "w+")
    axes.set(xlabel="along the gradient", aspect="equal")


def surfaces(nets: dict[str, nn.Module], x: Tensor, y: Tensor) -> None:
    figure = Figure(figsize=(7, 3.3), layout="constrained")
    for axes, (name, model) in zip(figure.subplots(1, 2), nets.items(), strict=True):
        slice_of(axes, model, x[:1], y[:1])
        axes.set_title(NAMES[name], fontsize=10)
    save(figure, "surfaces")


def saliencies(nets: dict[str, nn.Module], x: Tensor, y: Tensor) -> None:
    """Draw gradients at images and at the same images with a little noise."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    pushed = (x + 0.5 * noise / noise.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).clamp(0, 1)
    figure = Figure(figsize=(7, 1.5 * len(x)), layout="constrained")
    grid = figure.subplots(len(x), 5, squeeze=False)
    titles = ["image", "standard", "standard, noise", "low curvature", "low curvature, noise"]
    pictures = [x, *(gradient(model, point, y) for model in nets.values() for point in (x, pushed))]
    for row, line in enumerate(grid):
        for axes, picture, title in zip(line, pictures, titles, strict=True):
            image = picture[row, 0].detach()
            most = float(image.abs().max())
            gray = title == "image"
            axes.imshow(image, cmap="gray" if gray else "RdBu_r", vmin=0 if gray else -most, vmax=most)
            axes.set_axis_off()
            if not row:
                axes.set_title(title, fontsize=9)
    save(figure, "saliency")


def radii(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Draw what is proven against what was found: no point may lie below the diagonal."""
    proven = lc.certify(model, x, y, local=True).radius
    found = minimal_norm(model, x, y, name="pgd").distance
    assert bool((found >= proven).all())
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes = figure.subplots()
    shown = found.isfinite()
    axes.plot(proven[shown], found[shown], "o", markersize=4, alpha=0.7)
    most = math.ceil(10 * float(found[shown].max())) / 10
    axes.plot([0, most], [0, most], "k:", label="both the same")
    axes.set(xlabel="certified radius (ℓ₂)", ylabel="nearest mistake that PGD found", xlim=(0, most), ylim=(0, most))
    axes.legend(fontsize=8)
    save(figure, "radii")
    print(f"medians: certified {proven.median():.2f}, attacked {found.median():.2f}")


def save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})


def main() -> None:
    digits = load_dataset("digits")
    nets = networks(*digits.train.batch(slice(0, 1024)))
    x, y = digits.test.batch(slice(0, 64))
    for name, model in nets.items():
        print(f"{name}: accuracy {(model(x).argmax(1) == y).float().mean():.2f}")
    surfaces(nets, x[2:3], y[2:3])
    saliencies(nets, x[:4], y[:4])
    radii(nets["low"], x[:48], y[:48])


if __name__ == "__main__":
    main()
