"""Small files in every official layout, written without the code under test."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
from PIL import Image

PER_FILE = 4


def samples(count: int, shape=(3, 32, 32), classes: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % classes


def python2_pickle(images: np.ndarray, labels: list[int], key: str = "labels") -> bytes:
    """The very instructions of the official files: protocol 2 of Python 2, NumPy 1."""
    rows = images.reshape(len(images), -1)

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"".join(b"M" + struct.pack("<H", size) for size in rows.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = b"T" + struct.pack("<i", rows.size) + rows.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
    array += b"(K\x01" + shape + dtype + b"\x89" + raw + b"tb"
    fields = text(b"batch_label") + text(b"training batch 1 of 5")
    fields += text(key.encode()) + b"](" + numbers + b"e" + text(b"data") + array
    fields += text(b"filenames") + b"](" + b"".join(text(b"a_s_00000%d.png" % i) for i in range(len(labels))) + b"e"
    return b"\x80\x02}(" + fields + b"u."


def records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    """CIFAR's binary version."""
    columns = [np.asarray(column, dtype=np.uint8)[:, None] for column in labels]
    return np.concatenate([*columns, images.reshape(len(images), -1)], axis=1).tobytes()


def tar(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def cifar10_members(version: str) -> dict[str, bytes]:
    images, labels = samples(6 * PER_FILE)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    members = {}
    for index, name in enumerate(names):
        part = slice(index * PER_FILE, (index + 1) * PER_FILE)
        if version == "python":
            members[f"cifar-10-batches-py/{name}"] = python2_pickle(images[part], labels[part].tolist())
        else:
            members[f"cifar-10-batches-bin/{name}.bin"] = records(images[part], labels[part])
    return members


def cifar100_members(version: str) -> dict[str, bytes]:
    images, labels = samples(12, classes=100)
    members = {}
    for name, part in (("train", slice(0, 8)), ("test", slice(8, 12))):
        if version == "python":
            content = python2_pickle(images[part], labels[part].tolist(), "fine_labels")
            members[f"cifar-100-python/{name}"] = content
        else:
            members[f"cifar-100-binary/{name}.bin"] = records(images[part], labels[part] // 5, labels[part])
    return members


def svhn(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = samples(30)
    for name, part in (("train", slice(0, 20)), ("test", slice(20, 30))):
        digits = np.where(labels[part] == 0, 10, labels[part]).astype(np.uint8)[:, None]
        content = {"X": images[part].transpose(2, 3, 1, 0), "y": digits}
        scipy.io.savemat(folder / f"{name}_32x32.mat", content, do_compression=True)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fashion_mnist(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = samples(30, shape=(28, 28))
    for name, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part].astype(np.uint8))):
            data = idx(array)
            if packed:
                (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))
            else:
                (folder / f"{name}-{kind}-ubyte").write_bytes(data)


def png(pixels: np.ndarray) -> bytes:
    """Encode (C, H, W) or (H, W) bytes."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(path: Path, images, labels, image="img", label="label", metadata=None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": png(pixels), "path": None} for pixels in images]
    struct_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(rows, struct_type), label: pa.array([int(value) for value in labels])})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def folder(root: Path, images: np.ndarray, labels: np.ndarray, names: list[str]) -> None:
    for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        (root / names[label]).mkdir(parents=True, exist_ok=True)
        (root / names[label] / f"{index:03}.png").write_bytes(png(pixels))
