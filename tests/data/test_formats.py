"""Each layout gives back the very pixels and labels that were written."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lowcurve.data import DATASETS, load_dataset, locate
from lowcurve.data.parquet import read_split
from lowcurve.errors import UserError
from tests.data import makers

CIFAR = {
    "cifar10": {"python": "cifar-10-python.tar.gz", "binary": "cifar-10-binary.tar.gz"},
    "cifar100": {"python": "cifar-100-python.tar.gz", "binary": "cifar-100-binary.tar.gz"},
}
MEMBERS = {"cifar10": makers.cifar10_members, "cifar100": makers.cifar100_members}


def assert_holds(dataset, images, labels, train):
    """Compare with the arrays that were written, of which the first `train` samples are for training."""
    assert dataset.train.images.dtype == torch.uint8
    found = torch.cat([dataset.train.images, dataset.test.images]).numpy()
    assert np.array_equal(found, images)
    assert np.array_equal(torch.cat([dataset.train.labels, dataset.test.labels]).numpy(), labels)
    assert len(dataset.train) == train


def assert_cifar(dataset):
    if dataset.name == "cifar10":
        assert_holds(dataset, *makers.samples(24), train=20)
        assert dataset.title == "CIFAR-10 (20/4 subset)"
    else:
        assert_holds(dataset, *makers.samples(12, classes=100), train=8)


def test_our_imitation_of_the_official_pickle_is_a_pickle():
    images, labels = makers.samples(3)
    content = pickle.loads(makers.python2_pickle(images, labels.tolist()), encoding="latin1")
    assert np.array_equal(content["data"], images.reshape(3, -1)) and content["labels"] == [0, 1, 2]
    assert content["filenames"][2] == "a_s_000002.png"


@pytest.mark.parametrize("place", ["named folder", "data directory"])
@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
class TestCifar:
    def folder(self, root, name, place):
        return root / name if place == "named folder" else root

    def test_archive(self, tmp_path, name, version, place):
        makers.tar(self.folder(tmp_path, name, place) / CIFAR[name][version], MEMBERS[name](version))
        assert locate(name, tmp_path).layout == f"{version} archive"
        assert_cifar(load_dataset(name, tmp_path))

    def test_extracted(self, tmp_path, name, version, place):
        for member, data in MEMBERS[name](version).items():
            file = self.folder(tmp_path, name, place) / member
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        assert locate(name, tmp_path).layout == f"{version} files"
        assert_cifar(load_dataset(name, tmp_path))


def test_uncompressed_archive_with_dotted_names(tmp_path):
    members = {f"./{name}": data for name, data in makers.cifar10_members("binary").items()}
    makers.tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", members, mode="w")
    assert_cifar(load_dataset("cifar10", tmp_path))


@pytest.mark.parametrize("protocol", range(5))
def test_pickles_rewritten_by_python_3(tmp_path, protocol):
    images, labels = makers.samples(12, classes=100)
    (tmp_path / "cifar100").mkdir()
    for name, part in (("train", slice(0, 8)), ("test", slice(8, 12))):
        content = {"data": images[part].reshape(-1, 3072), "fine_labels": labels[part].tolist()}
        (tmp_path / "cifar100" / name).write_bytes(pickle.dumps(content, protocol=protocol))
    assert_cifar(load_dataset("cifar100", tmp_path))


def test_svhn_zero_is_zero(tmp_path):
    makers.svhn(tmp_path / "svhn")
    dataset = load_dataset("svhn", tmp_path)
    assert_holds(dataset, *makers.samples(30), train=20)
    assert dataset.augmentation == ("crop",)


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path, packed):
    makers.fashion_mnist(tmp_path / "fashion-mnist", packed)
    images, labels = makers.samples(30, shape=(28, 28))
    assert_holds(load_dataset("fashion-mnist", tmp_path), images[:, None], labels, train=20)


@pytest.mark.parametrize(("name", "label"), [("cifar10", "label"), ("cifar100", "fine_label"), ("svhn", "label")])
def test_named_sets_in_parquet(tmp_path, name, label):
    images, labels = makers.samples(30)
    makers.parquet(tmp_path / name / "train-00000.parquet", images[:8], labels[:8], label=label)
    makers.parquet(tmp_path / name / "train-00001.parquet", images[8:20], labels[8:20], label=label)
    makers.parquet(tmp_path / name / "test.parquet", images[20:], labels[20:], image="image", label=label)
    dataset = load_dataset(name, tmp_path)
    assert_holds(dataset, images, labels, train=20)
    assert dataset.class_names == DATASETS[name].class_names


def test_a_named_set_has_its_own_shape(tmp_path):
    images, labels = makers.samples(20, shape=(3, 16, 16))
    for split in ("train", "test"):
        makers.parquet(tmp_path / f"cifar10/{split}.parquet", images, labels)
    with pytest.raises(UserError, match=r"cifar10: expected samples of shape \(3, 32, 32\), got \(3, 16, 16\)"):
        load_dataset("cifar10", tmp_path)


def test_parquet_by_path(tmp_path):
    images, labels = makers.samples(20, shape=(12, 10), classes=2)
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    metadata = {"huggingface": json.dumps(names)}
    makers.parquet(tmp_path / "pets/train.parquet", images[:15], labels[:15], metadata=metadata)
    makers.parquet(tmp_path / "pets/test.parquet", images[15:], labels[15:], metadata=metadata)
    dataset = load_dataset(f"parquet:{tmp_path}/pets")
    assert_holds(dataset, images[:, None], labels, train=15)
    assert (dataset.title, dataset.class_names) == ("pets", ("cat", "dog"))


def test_one_parquet_file_is_split(tmp_path):
    images, labels = makers.samples(20, shape=(3, 12, 10), classes=4)
    file = makers.parquet(tmp_path / "some.parquet", images, labels)
    dataset = load_dataset(f"parquet:{file}")
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (16, 4, 4)
    assert torch.equal(dataset.test.labels.sort().values, torch.arange(4))


@pytest.mark.parametrize("split", [True, False])
def test_folder_of_images(tmp_path, split):
    images, labels = makers.samples(20, shape=(3, 12, 10), classes=2)
    if split:
        makers.folder(tmp_path / "train", images[:16], labels[:16], ["cat", "dog"])
        makers.folder(tmp_path / "test", images[16:], labels[16:], ["cat", "dog"])
    else:
        makers.folder(tmp_path, images, labels, ["cat", "dog"])
    (tmp_path / ("train/cat" if split else "cat") / "notes.txt").write_text("not an image")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert (len(dataset.train), len(dataset.test), dataset.class_names) == (16, 4, ("cat", "dog"))
    written = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for part in (dataset.train, dataset.test):
        for image, label in zip(part.images, part.labels, strict=True):
            assert written[image.numpy().tobytes()] == label


def test_gray_and_color_images_together_are_color(tmp_path):
    gray, labels = makers.samples(6, shape=(5, 5), classes=2)
    color, _ = makers.samples(6, shape=(3, 5, 5), classes=2, seed=1)
    file = makers.parquet(tmp_path / "mixed.parquet", [*gray, *color], [*labels, *labels])
    dataset = load_dataset(f"parquet:{file}")
    found = {image.numpy().tobytes() for part in (dataset.train, dataset.test) for image in part.images}
    assert dataset.input_size == (3, 5, 5)
    assert found == {np.stack([image] * 3).tobytes() for image in gray} | {image.tobytes() for image in color}


def test_data_directory_by_environment(tmp_path, monkeypatch):
    makers.svhn(tmp_path / "svhn")
    monkeypatch.setenv("LOWCURVE_DATA", str(tmp_path))
    assert load_dataset("svhn").num_classes == 10
    monkeypatch.setenv("LOWCURVE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=r"elsewhere/svhn.*lowcurve data fetch svhn"):
        load_dataset("svhn")
    assert load_dataset("svhn", tmp_path).num_classes == 10
    monkeypatch.delenv("LOWCURVE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="cache/lowcurve/data/svhn"):
        load_dataset("svhn")


def test_a_parquet_file_in_several_row_groups_whose_dictionaries_overflow(tmp_path: Path) -> None:
    """As a hub writes CIFAR: distinct images in groups of rows, encoded as a dictionary until that is full."""
    images = np.random.default_rng(0).integers(0, 256, (700, 3, 8, 8), dtype=np.uint8)
    path = makers.parquet(tmp_path / "all.parquet", images, np.arange(700) % 5)
    pq.write_table(pq.read_table(path), path, row_group_size=300, dictionary_pagesize_limit=4096)
    split = read_split((path,))
    assert torch.equal(split.images, torch.from_numpy(images))
