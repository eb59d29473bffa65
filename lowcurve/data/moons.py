"""Two interleaved half circles in the unit square: a data set whose decision function can be drawn."""

import torch

from lowcurve.data.dataset import Split

SAMPLES = 1000
NOISE = 0.1


def read() -> tuple[Split, Split]:
    """Return 1,000 train and 1,000 test points of shape (2,), scaled about the center to fit [0, 1]²."""
    return _draw(seed=0), _draw(seed=1)


def _draw(seed: int) -> Split:
    from sklearn.datasets import make_moons

    points, labels = make_moons(SAMPLES, noise=NOISE, random_state=seed)
    center = torch.tensor([0.5, 0.25], dtype=torch.float64)
    images = (torch.from_numpy(points) - center).div_(4).add_(0.5).clamp_(0, 1)
    return Split(images.to(torch.float32), torch.from_numpy(labels).to(torch.int64))
