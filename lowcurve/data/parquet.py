"""How are parquet files of encoded images read? The layout of the Hugging Face hub, files per split.

An image column holds struct{bytes, path}, a label column holds integers; class names may be in the schema's
metadata under the key `huggingface`.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowcurve.data import images
from lowcurve.data.cache import decoded
from lowcurve.data.dataset import Dataset, Split, hold_out
from lowcurve.data.files import FileError, Found, reading, require_file, require_labels
from lowcurve.errors import UserError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
MAX_CLASSES = 100_000
BATCH = 8  # rows in memory at a time
REMEDY = "write it again with an image column struct{bytes, path} and an integer label column"


def find(folder: Path) -> Found | None:
    """Find `train*.parquet` and `test*.parquet` in a folder."""
    train, test = (tuple(sorted(folder.glob(f"{split}*.parquet"))) for split in ("train", "test"))
    return Found("parquet", train + test, partial(_read, train, test)) if train and test else None


def load(path: str) -> Dataset:
    """Load `parquet:PATH`: a folder with train and test files, or one file of which a fifth is held out."""
    root = Path(path).expanduser()
    with reading(root, "number the labels from 0, as the class names in the metadata"):
        found = find(root)
        if found:
            train, test = found.read()
        elif root.is_file():
            split = read_split((root,))
            train, test = hold_out(split.images, split.labels)
        else:
            problem = "expected a parquet file or a folder with train.parquet and test.parquet, got neither"
            raise FileError(root, problem, "check the path")
        highest = int(max(train.labels.max(), test.labels.max()))
        names = class_names(found.files[0] if found else root) or tuple(map(str, range(highest + 1)))
        return Dataset(f"parquet:{path}", root.resolve().stem, train, test, names)


def _read(train: tuple[Path, ...], test: tuple[Path, ...]) -> tuple[Split, Split]:
    return read_split(train), read_split(test)


def read_split(files: tuple[Path, ...]) -> Split:
    """Decode all images of the files, in order, to one uint8 tensor (N, C, H, W)."""
    parts = [_read_file(file) for file in files]
    with reading(files[0], "store all images of a split in one size and mode"):
        return Split(torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))


def class_names(file: Path) -> tuple[str, ...] | None:
    """Return the class names in the file's metadata, if it has any."""
    import pyarrow.parquet as pq

    with reading(file, REMEDY):
        schema = pq.read_schema(require_file(file))
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        names = features.get(_column(schema, LABEL_COLUMNS), {}).get("names")
        return tuple(str(name) for name in names) if names else None


def _read_file(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(file, REMEDY):
        schema = pq.read_schema(require_file(file))
        image, label = (schema.field(_column(schema, known)) for known in (IMAGE_COLUMNS, LABEL_COLUMNS))
        if not pa.types.is_struct(image.type) or not pa.types.is_integer(label.type):
            raise UserError(f"expected struct and integer columns, got {image.type} and {label.type}")
        if pq.read_metadata(file).num_rows > images.MAX_IMAGES:  # a run of equal labels takes a few bytes
            raise UserError(f"expected at most {images.MAX_IMAGES:,} rows, got more")
        labels = pq.read_table(file, columns=[label.name])[label.name]
        if not len(labels) or labels.null_count:
            raise UserError(f"expected a label in each row, got {len(labels)} rows, {labels.null_count} without")
        require_labels(labels.to_numpy(), 0, MAX_CLASSES - 1)
        pixels = decoded(file, len(labels), partial(_decode, file, image.name))
        return pixels, torch.from_numpy(labels.to_numpy().astype(np.int64))


def _decode(file: Path, column: str) -> torch.Tensor:
    import pyarrow.parquet as pq

    # A few rows at a time: a file can hold one image a million times in the room of one, and memory cannot.
    with pq.ParquetFile(file) as content:
        parts = content.iter_batches(batch_size=BATCH, columns=[f"{column}.bytes"])
        encoded = (value.as_py() for part in parts for value in part.column(0).field("bytes"))
        return images.decode(map(_present, encoded), content.metadata.num_rows, file)


def _present(encoded: object) -> bytes:
    if not isinstance(encoded, bytes):
        raise UserError("expected an image in each row, got a row without")
    return encoded


def _column(schema: Any, known: tuple[str, ...]) -> str:
    for name in known:
        if name in schema.names:
            return name
    raise UserError(f"expected a column {' or '.join(known)}, got {', '.join(schema.names)}")
