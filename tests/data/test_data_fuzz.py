"""Hundreds of broken data files: each loads, or gives one error that names the file and says what to do."""

import json
import random
import shutil

import numpy as np
import pytest
import scipy.io

from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from tests.data import makers

ROUNDS = 60  # per layout


def cifar(name, members, archive):
    def write(root):
        if archive:
            makers.tar(root / name / archive, members)
        else:
            for member, data in members.items():
                (root / name / member).parent.mkdir(parents=True, exist_ok=True)
                (root / name / member).write_bytes(data)

    return write


def parquet(root):
    images, labels = makers.samples(12)
    for split in ("train", "test"):
        makers.parquet(root / f"cifar10/{split}.parquet", images, labels)


def image_folder(root):
    images, labels = makers.samples(12, shape=(3, 6, 6), classes=2)
    makers.folder(root / "images", images, labels, ["a", "b"])


LAYOUTS = {
    "cifar10 python": ("cifar10", cifar("cifar10", makers.cifar10_members("python"), None)),
    "cifar10 binary": ("cifar10", cifar("cifar10", makers.cifar10_members("binary"), None)),
    "cifar10 archive": (
        "cifar10",
        cifar("cifar10", makers.cifar10_members("python"), "cifar-10-python.tar.gz"),
    ),
    "cifar100 archive": (
        "cifar100",
        cifar("cifar100", makers.cifar100_members("binary"), "cifar-100-binary.tar.gz"),
    ),
    "svhn": ("svhn", lambda root: makers.svhn(root / "svhn")),
    "fashion": ("fashion-mnist", lambda root: makers.fashion_mnist(root / "fashion-mnist", packed=False)),
    "fashion gz": ("fashion-mnist", lambda root: makers.fashion_mnist(root / "fashion-mnist", packed=True)),
    "parquet": ("cifar10", parquet),
    "folder": ("folder:{root}/images", image_folder),
}


def truncate(data, rng):
    return data[: rng.randrange(len(data))]


def flip_bytes(data, rng):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 4, 64])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def flip_header(data, rng):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 3])):
        changed[rng.randrange(min(200, len(changed)))] = rng.randrange(256)
    return bytes(changed)


def insert(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.randrange(1, 100)) + data[place:]


def remove(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.randrange(1, 100) :]


def repeat(data, rng):
    return data + data[rng.randrange(len(data)) :]


def noise(data, rng):
    return rng.randbytes(rng.choice([1, 16, 1000, len(data)]))


def zeros(data, rng):
    return bytes(len(data))


MUTATIONS = (truncate, flip_bytes, flip_header, insert, remove, repeat, noise, zeros)


def assert_clear(error, path):
    """The message names the file (or its folder, where two files disagree) and ends with a remedy."""
    message = str(error)
    assert str(path) in message or str(path.parent) in message.split(":")[0], message
    assert any(word in message for word in ("fetch", "write it again", "store", "replace", "mend")), message
    assert len(message) < 2000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_broken_bytes(layout, tmp_path):
    name, write = LAYOUTS[layout]
    write(tmp_path)
    load_dataset(name.format(root=tmp_path), tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    rng, refused = random.Random(layout), 0
    for round_ in range(ROUNDS):
        path, mutate = rng.choice(files), MUTATIONS[round_ % len(MUTATIONS)]
        sound = path.read_bytes()
        path.write_bytes(mutate(sound, rng))
        try:
            load_dataset(name.format(root=tmp_path), tmp_path)
        except UserError as error:
            refused += 1
            assert_clear(error, path)
        else:
            assert mutate not in (noise, zeros) or layout == "cifar10 binary", (mutate, path)
        path.write_bytes(sound)
    assert refused > ROUNDS // 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_file_or_a_folder_in_its_place(layout, tmp_path):
    name, write = LAYOUTS[layout]
    write(tmp_path)
    path = sorted(path for path in tmp_path.rglob("*") if path.is_file())[0]
    path.write_bytes(b"")
    with pytest.raises(UserError) as caught:
        load_dataset(name.format(root=tmp_path), tmp_path)
    assert_clear(caught.value, path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError):
        load_dataset(name.format(root=tmp_path), tmp_path)
    shutil.rmtree(path)


WRONG_CIFAR = {
    "no dict": b"\x80\x02]q\x00.",
    "no data": b"\x80\x02}U\x06labels](K\x01es.",
    "no labels": makers.python2_pickle(makers.samples(1)[0], [0], key="other"),
    "empty labels": makers.python2_pickle(makers.samples(1)[0], []),
    "short rows": makers.python2_pickle(makers.samples(4, shape=(3, 16, 16))[0], [0, 1, 2, 3]),
    "more labels": makers.python2_pickle(makers.samples(3)[0], [0, 1, 2, 3]),
    "label 11": makers.python2_pickle(makers.samples(1)[0], [11]),
    "a stand-in with no state": b"\x80\x02}(U\x04datacnumpy\nndarray\n)R",
}


@pytest.mark.parametrize("case", WRONG_CIFAR)
def test_wrong_content_of_a_cifar_pickle(case, tmp_path):
    LAYOUTS["cifar10 python"][1](tmp_path)
    path = tmp_path / "cifar10/cifar-10-batches-py/data_batch_3"
    path.write_bytes(WRONG_CIFAR[case])
    with pytest.raises(UserError, match=r"data_batch_3: .*fetch"):
        load_dataset("cifar10", tmp_path)


X = np.zeros((32, 32, 3, 5), dtype=np.uint8)
Y = np.ones((5, 1), dtype=np.uint8)
WRONG_SVHN = {
    "no X": {"y": Y},
    "no y": {"X": X},
    "gray": {"X": X[:, :, :1], "y": Y},
    "three axes": {"X": X[..., 0], "y": Y},
    "channels first": {"X": X.transpose(3, 2, 0, 1), "y": Y},
    "float": {"X": X.astype(float), "y": Y},
    "fewer labels": {"X": X, "y": Y[:4]},
    "label 0": {"X": X, "y": Y * 0},
    "label 11": {"X": X, "y": Y * 11},
    "texts": {"X": X, "y": np.array([["a"]] * 5, dtype=object)},
    "cells": {"X": np.full((32, 32, 3, 5), 0, dtype=object), "y": Y},
    "empty": {"X": X[..., :0], "y": Y[:0]},
}


@pytest.mark.parametrize("case", WRONG_SVHN)
def test_wrong_content_of_an_svhn_file(case, tmp_path):
    makers.svhn(tmp_path / "svhn")
    scipy.io.savemat(tmp_path / "svhn/test_32x32.mat", WRONG_SVHN[case])
    with pytest.raises(UserError, match=r"test_32x32\.mat: .*fetch svhn"):
        load_dataset("svhn", tmp_path)


WRONG_IDX = {
    "floats": bytes([0, 0, 13, 3]) + makers.idx(makers.samples(20, (28, 28))[0])[4:],
    "rank 1": makers.idx(makers.samples(20, ())[0]),
    "huge sizes": bytes([0, 0, 8, 3]) + b"\xff" * 12,
    "header only": bytes([0, 0, 8, 3]),
    "fewer images": makers.idx(makers.samples(19, (28, 28))[0]),
    "no image": makers.idx(makers.samples(0, (28, 28))[0]),
}


@pytest.mark.parametrize("case", WRONG_IDX)
def test_wrong_content_of_an_idx_file(case, tmp_path):
    makers.fashion_mnist(tmp_path / "fashion-mnist", packed=False)
    (tmp_path / "fashion-mnist/train-images-idx3-ubyte").write_bytes(WRONG_IDX[case])
    with pytest.raises(UserError, match=r"train-(images|labels)-idx.*fetch fashion-mnist"):
        load_dataset("fashion-mnist", tmp_path)


def test_wrong_parquet(tmp_path):
    images, labels = makers.samples(4)
    path = tmp_path / "x.parquet"
    cases = [
        {"images": images, "labels": labels, "image": "picture"},
        {"images": images, "labels": labels, "label": "class"},
        {"images": images, "labels": labels - 1},
        {"images": images, "labels": [0, 1, 2, 2**40]},
        {"images": [*images, images[0][:, :16]], "labels": [*labels, 0]},
        {"images": images[:0], "labels": labels[:0]},
        {"images": images, "labels": labels, "metadata": {"huggingface": "{"}},
        {"images": images, "labels": labels, "metadata": {"huggingface": json.dumps([1])}},
        {"images": images, "labels": labels, "metadata": {"huggingface": _names("a", "b")}},
    ]
    for case in cases:
        makers.parquet(path, **case)
        with pytest.raises(UserError, match=r"x\.parquet(/row \d+)?: "):
            load_dataset(f"parquet:{path}")
    with pytest.raises(UserError, match="expected a parquet file or a folder"):
        load_dataset(f"parquet:{tmp_path}/missing")


def _names(*names):
    return json.dumps({"info": {"features": {"label": {"names": names}}}})


def test_wrong_folders(tmp_path):
    images, labels = makers.samples(8, shape=(3, 6, 6), classes=2)
    with pytest.raises(UserError, match="check the path"):
        load_dataset(f"folder:{tmp_path}/missing")
    makers.folder(tmp_path / "one", images, labels * 0, ["only"])
    with pytest.raises(UserError, match="at least 2 classes"):
        load_dataset(f"folder:{tmp_path}/one")
    makers.folder(tmp_path / "two", images, labels, ["a", "b"])
    (tmp_path / "two/c").mkdir()
    with pytest.raises(UserError, match="two/c: expected images"):
        load_dataset(f"folder:{tmp_path}/two")
    for split, names in (("train", ["a", "b"]), ("test", ["a", "z"])):
        makers.folder(tmp_path / "both" / split, images, labels, names)
    with pytest.raises(UserError, match="test/z: expected a class of the train folder"):
        load_dataset(f"folder:{tmp_path}/both")
    makers.folder(tmp_path / "sizes", images, labels, ["a", "b"])
    (tmp_path / "sizes/b/999.png").write_bytes(makers.png(images[0][:, :3]))
    with pytest.raises(UserError, match=r"999\.png: expected \(6, 6\) pixels .*got \(3, 6\)"):
        load_dataset(f"folder:{tmp_path}/sizes")
    (tmp_path / "sizes/b/999.png").write_bytes(makers.png(np.zeros((6, 6), dtype=np.uint16)))
    with pytest.raises(UserError, match=r"999\.png: expected an 8-bit .*got mode I;16"):
        load_dataset(f"folder:{tmp_path}/sizes")
