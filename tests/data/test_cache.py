import os

import numpy as np
import pytest
import torch

from lowcurve.data import cache, load_dataset
from lowcurve.data import images as images_module
from tests.data import makers


@pytest.fixture
def decodings(monkeypatch, tmp_path):
    """Count calls of the decoder, with a cache of our own and nothing too small for it."""
    calls, decode = [], images_module.decode

    def counted(*arguments):
        calls.append(arguments)
        return decode(*arguments)

    monkeypatch.setattr(images_module, "decode", counted)
    monkeypatch.setattr(cache, "WORTHWHILE", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


@pytest.fixture
def file(tmp_path):
    return makers.parquet(tmp_path / "some.parquet", *makers.samples(20, (3, 5, 6), classes=2))


def kept(tmp_path):
    return sorted((tmp_path / "cache/lowcurve/decoded").glob("*"))


def test_the_same_bytes_are_decoded_once(decodings, file, tmp_path):
    first, again = load_dataset(f"parquet:{file}"), load_dataset(f"parquet:{file}")
    assert len(decodings) == 1 and [path.suffix for path in kept(tmp_path)] == [".npy"]
    assert torch.equal(first.train.images, again.train.images) and again.train.images.dtype == torch.uint8


def test_other_bytes_under_the_same_name_are_decoded_anew(decodings, file):
    load_dataset(f"parquet:{file}")
    status = file.stat()
    images, labels = makers.samples(20, (3, 5, 6), classes=2, seed=1)
    makers.parquet(file, images, labels)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    dataset = load_dataset(f"parquet:{file}")
    assert len(decodings) == 2
    assert np.array_equal(torch.cat([dataset.train.images, dataset.test.images]).sum(0), images.astype(int).sum(0))


@pytest.mark.parametrize("damage", ["truncated", "garbage", "pickle", "fewer", "floats"])
def test_a_damaged_cache_is_replaced(decodings, file, tmp_path, damage):
    truth = load_dataset(f"parquet:{file}").train.images
    (path,) = kept(tmp_path)
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-10])
    elif damage == "garbage":
        path.write_bytes(b"garbage")
    elif damage == "pickle":
        np.save(path, np.array([{}] * 20, dtype=object), allow_pickle=True)
    elif damage == "fewer":
        np.save(path, np.load(path)[:-1])
    else:
        np.save(path, np.load(path).astype(np.float32))
    assert torch.equal(load_dataset(f"parquet:{file}").train.images, truth)
    assert len(decodings) == 2 and path.read_bytes() == content


def test_without_a_place_for_the_cache_images_are_decoded(decodings, file, tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    for expected in (1, 2):
        assert len(load_dataset(f"parquet:{file}").train) == 16
        assert len(decodings) == expected


def test_small_files_are_not_kept(decodings, file, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "WORTHWHILE", 21)
    load_dataset(f"parquet:{file}")
    assert not (tmp_path / "cache").exists()
