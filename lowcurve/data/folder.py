"""How is a folder of images read? One sub-folder per class, in PATH/train and PATH/test or in PATH itself."""

from pathlib import Path

import torch

from lowcurve.data.dataset import Dataset, Split, hold_out
from lowcurve.data.images import decode
from lowcurve.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def load(path: str) -> Dataset:
    """Load `folder:PATH`; without train and test sub-folders a fifth of each class is held out as test."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"{root}: expected a folder with one sub-folder of images per class, got none; check the path")
    if (root / "train").is_dir() and (root / "test").is_dir():
        classes = _classes(root / "train")
        train, test = (Split(*_read(root / split, classes)) for split in ("train", "test"))
    else:
        classes = _classes(root)
        train, test = hold_out(*_read(root, classes))
    return Dataset(f"folder:{path}", root.resolve().name, train, test, classes)


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if len(names) < 2:
        raise UserError(f"{folder}: expected a sub-folder of images for each of at least 2 classes, got {len(names)}")
    return names


def _read(folder: Path, classes: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    if extra := set(_classes(folder)) - set(classes):
        raise UserError(f"{folder}: expected the classes of the train folder, got {min(extra)!r} too; remove it")
    files, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(file for file in (folder / name).glob("*") if file.suffix.lower() in SUFFIXES)
        if not found:
            raise UserError(f"{folder / name}: expected images ({', '.join(sorted(SUFFIXES))}), got none; add some")
        files += found
        labels += [label] * len(found)
    return decode(files), torch.tensor(labels)
