"""Which data sets are there, and how is one loaded? Named sets are rows of a table, your own go by path."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowcurve.data import cifar, digits, fashion_mnist, folder, moons, parquet, svhn
from lowcurve.data.dataset import Dataset, Split, subset_title
from lowcurve.data.files import ENVIRONMENT, Found, data_directory, reading
from lowcurve.errors import UserError, unknown_name

__all__ = [
    "DATASETS",
    "PATHS",
    "Dataset",
    "Source",
    "Split",
    "data_directory",
    "find",
    "load_dataset",
    "locate",
]


@dataclass(frozen=True)
class Source:
    """A named data set: embedded (`read`), or one of several `layouts` of files, looked for in DIR/NAME."""

    title: str
    class_names: tuple[str, ...]
    input_size: tuple[int, ...]
    size: tuple[int, int]
    augmentation: tuple[str, ...] = ()
    read: Callable[[], tuple[Split, Split]] | None = None
    layouts: tuple[Callable[[Path], Found | None], ...] = ()


NUMERALS = tuple("0123456789")

DATASETS: dict[str, Source] = {
    "digits": Source("Digits 8×8", NUMERALS, (1, 8, 8), (1438, 359), read=digits.read),
    "moons": Source("Two moons", ("upper", "lower"), (2,), (1000, 1000), read=moons.read),
    "cifar10": Source(
        "CIFAR-10",
        cifar.CIFAR10_CLASSES,
        (3, 32, 32),
        (50_000, 10_000),
        ("crop", "flip"),
        layouts=(*(layout.find for layout in cifar.CIFAR10), parquet.find),
    ),
    "cifar100": Source(
        "CIFAR-100",
        cifar.CIFAR100_CLASSES,
        (3, 32, 32),
        (50_000, 10_000),
        ("crop", "flip"),
        layouts=(*(layout.find for layout in cifar.CIFAR100), parquet.find),
    ),
    "svhn": Source("SVHN", NUMERALS, (3, 32, 32), (73_257, 26_032), ("crop",), layouts=(svhn.find, parquet.find)),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        fashion_mnist.CLASSES,
        (1, 28, 28),
        (60_000, 10_000),
        ("crop", "flip"),
        layouts=(fashion_mnist.find, parquet.find),
    ),
}

PATHS: dict[str, Callable[[str], Dataset]] = {"folder": folder.load, "parquet": parquet.load}


def load_dataset(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Load a data set by name, or your own as `folder:PATH` or `parquet:PATH`.

    Args:
        name: a row of DATASETS, or a kind of PATHS, a colon and a path.
        data_dir: where named sets lie; by default $LOWCURVE_DATA, else the cache.

    >>> load_dataset("digits").input_size
    (1, 8, 8)
    """
    check_name(name)
    kind, _, path = name.partition(":")
    if path and kind in PATHS:
        return PATHS[kind](path)
    source = DATASETS[name]
    if source.read:
        return _named(name, *source.read())
    found = locate(name, data_dir)
    train, test = found.read()
    with reading(found.files[0].parent, f"replace the files of {name} (lowcurve data fetch {name})"):
        return _named(name, train, test)


def check_name(name: str) -> None:
    """Refuse a name that is neither a row of DATASETS nor a kind of PATHS, a colon and a path."""
    kind, _, path = name.partition(":")
    if name not in DATASETS and not (path and kind in PATHS):
        raise unknown_name("data set", name, [*DATASETS, *(f"{kind}:PATH" for kind in PATHS)])


def _named(name: str, train: Split, test: Split) -> Dataset:
    source, sizes = DATASETS[name], (len(train), len(test))
    title = source.title if sizes == source.size else subset_title(source.title, *sizes)
    dataset = Dataset(name, title, train, test, source.class_names, source.augmentation)
    if dataset.input_size != source.input_size:
        raise UserError(f"expected samples of shape {source.input_size}, got {dataset.input_size}")
    return dataset


def find(name: str, data_dir: Path | str | None = None) -> Found | None:
    """Find the files of a named data set in DIR/NAME, in the first layout that is there."""
    place = data_directory(data_dir) / name
    return next((found for layout in DATASETS[name].layouts if (found := layout(place))), None)


def locate(name: str, data_dir: Path | str | None = None) -> Found:
    """Find the files of a named data set, or say where they were expected and how to get them."""
    if found := find(name, data_dir):
        return found
    place = data_directory(data_dir) / name
    raise UserError(
        f"{DATASETS[name].title} is not in {place}: expected the official files there, extracted or not, or "
        f"train.parquet and test.parquet. Run `lowcurve data fetch {name}`, or name the directory "
        f"above {name}/ by --data-dir or {ENVIRONMENT}"
    )
