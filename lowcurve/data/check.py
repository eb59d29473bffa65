"""Are the files of a data set sound? All that loading verifies, and the checksums of official files."""

from pathlib import Path

import torch

from lowcurve.data import DATASETS, load_dataset, locate
from lowcurve.data.fetch import checksum, checksums
from lowcurve.errors import UserError


def check_dataset(name: str, data_dir: Path | str | None = None) -> str:
    """Verify and load a data set and describe it in a line; a UserError says which file is broken.

    >>> check_dataset("digits")
    'Digits 8×8, 1,438 + 359 samples 1×8×8, 10 classes of 139 to 146, embedded'
    """
    dataset = load_dataset(name, data_dir)
    counts = torch.bincount(dataset.train.labels, minlength=dataset.num_classes)
    shape = "×".join(map(str, dataset.input_size))
    return (
        f"{dataset.title}, {len(dataset.train):,} + {len(dataset.test):,} samples {shape}, "
        f"{len(counts)} classes of {int(counts.min()):,} to {int(counts.max()):,}, {_origin(name, data_dir)}"
    )


def _origin(name: str, data_dir: Path | str | None) -> str:
    if name not in DATASETS:
        return "read by path"
    if DATASETS[name].read:
        return "embedded"
    found, known = locate(name, data_dir), checksums(name)
    for file in found.files:
        expected = known.get(file.name)
        if expected and (actual := checksum(file)) != expected:
            raise UserError(
                f"{file}: expected MD5 {expected}, got {actual}; delete it, then `lowcurve data fetch {name}`"
            )
    official = " with the official checksums" if all(file.name in known for file in found.files) else ""
    return f"{found.layout}{official} in {found.files[0].parent}"
