"""How are parquet files of encoded images read? The layout of the Hugging Face hub, one or more files per split.

An image column holds struct{bytes, path}, a label column holds integers; class names are in the schema's metadata
under the key `huggingface`.
"""

import io
import json
from pathlib import Path

import numpy as np
import torch

from lowcurve.data.dataset import Split
from lowcurve.data.files import Found, reading
from lowcurve.errors import UserError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
REMEDY = "write it again with an image column struct{bytes, path} and an integer label column"


def find(folder: Path) -> Found | None:
    """Find `train*.parquet` and `test*.parquet` in a folder."""
    train, test = (tuple(sorted(folder.glob(f"{split}*.parquet"))) for split in ("train", "test"))
    if not (train and test):
        return None
    return Found("parquet", train + test, lambda: (read_split(train), read_split(test)))


def read_split(files: tuple[Path, ...]) -> Split:
    """Decode all images of the files, in order, to one uint8 tensor (N, C, H, W)."""
    parts = [_read_file(file) for file in files]
    with reading(files[0], "store all images of a split in one size and mode"):
        return Split(torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))


def class_names(file: Path) -> tuple[str, ...] | None:
    """Return the class names in the file's metadata, if it has any."""
    import pyarrow.parquet as pq

    with reading(file, REMEDY):
        schema = pq.read_schema(file)
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        names = features.get(_column(schema.names, LABEL_COLUMNS), {}).get("names")
        return tuple(str(name) for name in names) if names else None


def _read_file(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    import pyarrow.parquet as pq

    with reading(file, REMEDY):
        names = pq.read_schema(file).names
        image, label = _column(names, IMAGE_COLUMNS), _column(names, LABEL_COLUMNS)
        table = pq.read_table(file, columns=[image, label])
        if not table.num_rows:
            raise UserError("expected at least one row, got none")
        encoded = table[image].combine_chunks().field("bytes").to_pylist()
        labels = table[label].to_numpy()
        if labels.dtype.kind not in "iu":
            raise UserError(
                f"expected integers in column {label!r}, got {table[label].type} or missing values"
            )
        return decode_images(encoded), torch.from_numpy(labels.astype(np.int64))


def decode_images(encoded: list[bytes]) -> torch.Tensor:
    """Decode PNG, JPEG, ... bytes of equally sized images to one uint8 tensor (N, C, H, W), gray (C = 1) or RGB."""
    from PIL import Image

    first = Image.open(io.BytesIO(encoded[0]))
    mode = "L" if first.mode in ("1", "L") else "RGB"
    shape = (first.height, first.width, *((3,) if mode == "RGB" else ()))
    images = np.empty((len(encoded), *shape), dtype=np.uint8)
    for index, data in enumerate(encoded):
        image = Image.open(io.BytesIO(data))
        if image.size != first.size:
            raise UserError(
                f"expected images of {first.size} pixels as in row 0, got {image.size} in row {index}"
            )
        images[index] = image if image.mode == mode else image.convert(mode)
    pixels = torch.from_numpy(images)
    return pixels.unsqueeze(1) if mode == "L" else pixels.permute(0, 3, 1, 2).contiguous()


def _column(names: list[str], known: tuple[str, ...]) -> str:
    for name in known:
        if name in names:
            return name
    raise UserError(f"expected a column {' or '.join(known)}, got {', '.join(names)}")
