"""Which data sets are there, and how is one loaded? Named sets are rows of a table; folders and parquet files go by path."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowcurve.data import digits, moons, parquet
from lowcurve.data.dataset import Dataset, Split, subset_title
from lowcurve.data.files import Found, data_directory
from lowcurve.errors import UserError, unknown_name

__all__ = ["DATASETS", "Dataset", "Source", "Split", "load_dataset", "locate"]


@dataclass(frozen=True)
class Source:
    """A named data set: its title, classes, customary augmentation, and its reader or the layouts to look for."""

    title: str
    class_names: tuple[str, ...]
    augmentation: tuple[str, ...] = ()
    embedded: Callable[[], tuple[Split, Split]] | None = None
    layouts: tuple[Callable[[Path], Found | None], ...] = ()
    size: tuple[int, int] = (0, 0)


DIGIT_NAMES = tuple("0123456789")

DATASETS: dict[str, Source] = {
    "digits": Source("Digits 8×8", DIGIT_NAMES, embedded=digits.read),
    "moons": Source("Two moons", ("upper", "lower"), embedded=moons.read),
    "cifar10": Source(
        "CIFAR-10", DIGIT_NAMES, ("crop", "flip"), layouts=(parquet.find,), size=(50_000, 10_000)
    ),
    "cifar100": Source(
        "CIFAR-100",
        tuple(map(str, range(100))),
        ("crop", "flip"),
        layouts=(parquet.find,),
        size=(50_000, 10_000),
    ),
    "svhn": Source("SVHN", DIGIT_NAMES, ("crop",), layouts=(parquet.find,), size=(73_257, 26_032)),
}


def load_dataset(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Load a data set by name; `data_dir` defaults to $LOWCURVE_DATA or the cache.

    >>> load_dataset("digits").input_size
    (1, 8, 8)
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    source = DATASETS[name]
    train, test = source.embedded() if source.embedded else locate(name, data_dir).read()
    whole = source.size in ((0, 0), (len(train), len(test)))
    title = source.title if whole else subset_title(source.title, len(train), len(test))
    return Dataset(name, title, train, test, source.class_names, source.augmentation)


def locate(name: str, data_dir: Path | str | None = None) -> Found:
    """Find the files of a named set in DIR/NAME."""
    folder = data_directory(data_dir) / name
    for layout in DATASETS[name].layouts:
        if found := layout(folder):
            return found
    raise UserError(f"{DATASETS[name].title} is not in {folder}; set LOWCURVE_DATA or --data-dir")
