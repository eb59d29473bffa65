"""The embedded default: 1,797 handwritten digits of 8×8 pixels (UCI) that ship with scikit-learn."""

from functools import cache

import torch
from torch import Tensor

from lowcurve.data.dataset import Split, hold_out


def read() -> tuple[Split, Split]:
    """Return 1,438 train and 359 test images of shape (1, 8, 8)."""
    return hold_out(*_all())  # which copies


@cache
@torch.inference_mode(False)
def _all() -> tuple[Tensor, Tensor]:
    """Read the table once in a process; the source has gray levels 0 to 16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).to(torch.float32).div_(16).unsqueeze(1)
    return images, torch.from_numpy(digits.target).to(torch.int64)
