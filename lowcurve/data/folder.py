"""How is a folder of images read? One sub-folder per class, in PATH/train and PATH/test or in PATH itself."""

from pathlib import Path

import torch

from lowcurve.data.dataset import Dataset, Split, hold_out
from lowcurve.data.files import FileError, reading
from lowcurve.data.images import MAX_IMAGES, decode

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def load(path: str) -> Dataset:
    """Load `folder:PATH`; without train and test sub-folders a fifth of each class is held out as test."""
    root = Path(path).expanduser()
    with reading(root, "give it one sub-folder of equally sized images per class"):
        if not root.is_dir():
            raise FileError(root, "expected a folder of images, got none", "check the path")
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
        raise FileError(folder, f"expected at least 2 classes, got {len(names)}", "give each class a sub-folder")
    return names


def _read(folder: Path, classes: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    if extra := set(_classes(folder)) - set(classes):
        raise FileError(folder / min(extra), "expected a class of the train folder, got another", "rename it")
    files, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(file for file in (folder / name).glob("*") if file.suffix.lower() in SUFFIXES)
        if not found:
            raise FileError(folder / name, "expected images, got none", f"add some ({', '.join(sorted(SUFFIXES))})")
        files += found
        if len(files) > MAX_IMAGES:
            raise FileError(folder, f"expected at most {MAX_IMAGES:,} images, got more", "use fewer")
        labels += [label] * len(found)
    return decode(files, len(files), folder), torch.tensor(labels)
