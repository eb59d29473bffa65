"""What a data file may cost, and what may stand in its place: bombs, pipes, devices, folders and empty files."""

import os
import struct
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lowcurve.data import Split, files, images, load_dataset
from lowcurve.errors import UserError
from tests.data import makers


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width, height):
    """A PNG of so many black pixels in some bytes."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + width)) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture
def root(tmp_path):
    pixels, labels = makers.samples(10, shape=(3, 6, 6), classes=2)
    makers.folder(tmp_path / "images", pixels, labels, ["a", "b"])
    return tmp_path / "images"


def test_the_header_is_enough_to_refuse_a_bomb(root, monkeypatch):
    """Nothing is decoded: a decoder that is never called cannot take minutes."""
    from PIL import ImageFile

    (root / "a" / "000.png").write_bytes(bomb(12_000, 1000))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("was decoded"))
    with pytest.raises(UserError, match=r"000\.png: expected at most 4,194,304 pixels, got 12,000 × 1,000"):
        load_dataset(f"folder:{root}")


def test_a_jpeg_of_many_scans_is_refused():
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    Image.new("L", (64, 64)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    assert images._pixels(data).shape == (1, 64, 64)
    last = data.rindex(b"\xff\xda")
    with pytest.raises(UserError, match="64 scans"):
        images._pixels(data[:last] + data[last:-2] * 100 + data[-2:])


def put_pipe(path):
    os.mkfifo(path)


def put_folder(path):
    path.mkdir()


def put_device(path):
    path.symlink_to("/dev/zero")


def put_nothing(path):
    path.touch()


def put_dangling(path):
    path.symlink_to("nowhere")


def put_loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize("put", [put_pipe, put_folder, put_device, put_nothing, put_dangling, put_loop])
@pytest.mark.parametrize("kind", ["folder", "parquet", "named", "file"])
def test_only_regular_files_are_read(root, tmp_path, put, kind):
    if kind == "folder":
        put(root / "a" / "zzz.png")
        name, expected = f"folder:{root}", "zzz.png"
    else:
        pixels, labels = makers.samples(10)
        makers.parquet(tmp_path / "cifar10/train.parquet", pixels, labels)
        put(tmp_path / "cifar10/test.parquet")
        expected = "test.parquet"
        name = {
            "parquet": f"parquet:{tmp_path}/cifar10",
            "named": "cifar10",
            "file": f"parquet:{tmp_path}/cifar10/test.parquet",
        }[kind]
    with pytest.raises(UserError, match=expected):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("put", [put_pipe, put_device, put_nothing, put_folder])
def test_official_files_are_regular_too(tmp_path, put):
    for name, maker in (
        ("svhn", lambda: makers.svhn(tmp_path / "svhn")),
        ("fashion-mnist", lambda: makers.fashion_mnist(tmp_path / "fashion-mnist", packed=True)),
        ("cifar10", lambda: makers.tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", makers.cifar10_members("binary"))),
    ):
        maker()
        for file in (tmp_path / name).iterdir():
            file.unlink()
            put(file)
        with pytest.raises(UserError):
            load_dataset(name, tmp_path)


def test_links_to_files_are_followed(root):
    """As the Hugging Face cache has them."""
    file = root / "a" / "000.png"
    file.rename(root.parent / "blob")
    file.symlink_to(root.parent / "blob")
    assert len(load_dataset(f"folder:{root}").train) == 8


def test_a_set_must_fit_into_memory(root, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PHYS_PAGES" else 2000)
    with pytest.raises(UserError, match="fit into half of the memory"):
        load_dataset(f"folder:{root}")


def test_the_number_of_files_is_bounded(root, monkeypatch):
    from lowcurve.data import folder

    monkeypatch.setattr(folder, "MAX_IMAGES", 3)
    with pytest.raises(UserError, match="at most 3 images"):
        load_dataset(f"folder:{root}")


def test_a_file_of_equal_rows_does_not_fill_the_memory(tmp_path, monkeypatch):
    """One image of 1 MB a thousand times is 1 MB in the file: it must not become 1 GB here."""
    image = np.random.default_rng(0).bytes(1_000_000)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([image], pa.binary()))
    table = {"img": pa.StructArray.from_arrays([column], ["bytes"]), "label": pa.array([0, 1] * 500)}
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table(table), path, store_schema=False)
    assert path.stat().st_size < 2_000_000
    before = pa.total_allocated_bytes()
    seen = []

    def watch(encoded):
        seen.append(pa.total_allocated_bytes() - before)
        return np.zeros((1, 8, 8), dtype=np.uint8)

    monkeypatch.setattr(images, "_pixels", watch)
    assert len(load_dataset(f"parquet:{path}").train) == 800
    assert len(seen) == 1000
    assert max(seen) < 20_000_000


def test_rows_are_counted_before_labels_are_read(tmp_path, monkeypatch):
    pixels, labels = makers.samples(10)
    path = makers.parquet(tmp_path / "many.parquet", pixels, labels)
    monkeypatch.setattr(images, "MAX_IMAGES", 9)
    with pytest.raises(UserError, match="at most 9 rows"):
        load_dataset(f"parquet:{path}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.01, 300.0])
def test_float_images_are_in_the_unit_interval(value):
    pixels = torch.rand(3, 1, 2, 2)
    Split(pixels, torch.arange(3))
    pixels[1, 0, 1, 1] = value
    with pytest.raises(UserError, match=r"expected (values|inputs) in \[0, 1\]"):
        Split(pixels, torch.arange(3))


def test_a_split_says_what_it_wants():
    for pixels, labels, message in (
        ([[1]], torch.tensor([0]), "tensors"),
        (torch.zeros(1, 2), [0], "tensors"),
        (torch.zeros(1, 2), torch.tensor([-1]), "count from 0"),
    ):
        with pytest.raises(UserError, match=message):
            Split(pixels, labels)


def test_an_error_about_a_file_travels_between_processes(tmp_path):
    import pickle

    error = files.FileError(tmp_path, "expected this", "do that")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices of POSIX")
