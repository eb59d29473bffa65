"""Is this the same model, are these the same samples? Digests of tensors, which tell one evaluation from another."""

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lowcurve.data import Dataset


def digest(*tensors: Tensor) -> str:
    """Return a digest of the tensors' shapes, types and bytes.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(torch.zeros(2, 1))
    (True, False)
    """
    whole = hashlib.sha256()
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous()
        whole.update(f"{tuple(data.shape)} {data.dtype}".encode())
        whole.update(data.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()[:16]


def model_digest(model: nn.Module) -> str:
    """Return a digest of a model's parameters and buffers."""
    return digest(*model.state_dict().values())


def sample_digests(dataset: "Dataset") -> dict[str, str]:
    """Return a digest of the samples to train on, `train_samples`, and of those to test on, `test_samples`."""
    splits = {"train_samples": dataset.train, "test_samples": dataset.test}
    return {name: digest(split.images, split.labels) for name, split in splits.items()}
