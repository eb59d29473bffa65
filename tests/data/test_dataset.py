import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lowcurve.data import DATASETS, load_dataset
from lowcurve.data.dataset import Dataset, Split, hold_out, stratified
from lowcurve.errors import UserError


def bytes_split(count=100, classes=10):
    images = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Split(images, torch.arange(count) % classes)


def test_bytes_become_exact_fractions():
    split = Split(torch.arange(256, dtype=torch.uint8).view(256, 1), torch.zeros(256, dtype=torch.int64))
    x, y = split.batch(torch.arange(256))
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    assert np.array_equal(x[:, 0].numpy(), np.arange(256, dtype=np.float32) / np.float32(255))
    assert split.images.dtype == torch.uint8


def test_float_images_are_returned_as_they_are():
    images = torch.rand(5, 2)
    assert torch.equal(Split(images, torch.zeros(5, dtype=torch.int64)).batch(slice(1, 3))[0], images[1:3])


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64)),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
    ],
)
def test_split_refuses_what_is_no_split(images, labels):
    with pytest.raises(UserError, match="a split has"):
        Split(images, labels)


@pytest.mark.parametrize("count", [1, 7, 20, 33, 60])
def test_stratified_shares_differ_by_less_than_one(count):
    labels = torch.tensor([0] * 10 + [1] * 20 + [2] * 30 + [4] * 5)
    chosen = stratified(labels, count, seed=3)
    assert len(chosen) == count == len(chosen.unique())
    shares = torch.bincount(labels[chosen], minlength=5)
    assert (shares - torch.bincount(labels) * count / len(labels)).abs().max() < 1


def test_subset_depends_on_seed_only():
    split = bytes_split()
    first, again, other = (split.subset(30, seed) for seed in (0, 0, 1))
    assert torch.equal(first.images, again.images) and not torch.equal(first.images, other.images)
    assert split.subset(None, 0) is split and split.subset(1000, 0) is split
    with pytest.raises(UserError, match="at least 1"):
        split.subset(0, 0)


def test_subset_of_a_dataset_says_so_in_its_title():
    split = bytes_split()
    dataset = Dataset("some", "Some (90/90 subset)", split, split, tuple("0123456789"))
    smaller = dataset.subset(train=50, test=20)
    assert (len(smaller.train), len(smaller.test)) == (50, 20)
    assert smaller.title == "Some (50/20 subset)"
    assert dataset.subset() is dataset and dataset.subset(train=100) is dataset


def test_dataset_refuses_labels_outside_its_classes():
    split = bytes_split()
    with pytest.raises(UserError, match="0 to 8, got 0 to 9"):
        Dataset("some", "Some", split, split, tuple("012345678"))


def test_dataset_refuses_two_shapes():
    flat = Split(torch.zeros(3, 16), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(UserError, match="one shape"):
        Dataset("some", "Some", bytes_split(), flat, tuple("0123456789"))


def test_hold_out_is_a_partition():
    images = torch.arange(97.0).view(97, 1) / 97
    train, test = hold_out(images, torch.arange(97) % 3)
    assert torch.equal(torch.cat([train.images, test.images]).sort(0).values, images)
    assert len(test) == 19


def test_digits_are_those_of_scikit_learn():
    dataset, source = load_dataset("digits"), load_digits()
    ours = torch.cat([dataset.train.images, dataset.test.images]).flatten(1).numpy() * 16
    labels = torch.cat([dataset.train.labels, dataset.test.labels]).numpy()
    key = np.lexsort(np.column_stack([ours, labels]).T)
    truth = np.lexsort(np.column_stack([source.data, source.target]).T)
    assert np.array_equal(ours[key], source.data[truth])
    assert np.array_equal(labels[key], source.target[truth])
    assert dataset.train.images.max() == 1 and dataset.train.images.min() == 0


def test_who_changes_what_was_loaded_changes_it_for_nobody_else():
    with torch.inference_mode():
        changed = load_dataset("digits")
    for split in (changed.train, changed.test):
        with torch.inference_mode():
            split.images.zero_(), split.labels.zero_()
    fresh = load_dataset("digits")
    assert fresh.train.images.sum() > 0 and fresh.test.labels.sum() > 0
    assert not fresh.train.images.is_inference()


def test_moons_lie_in_the_unit_square_with_the_moons_shape():
    dataset = load_dataset("moons")
    x = (dataset.train.images - 0.5) * 4 + torch.tensor([0.5, 0.25])
    upper, lower = x[dataset.train.labels == 0], x[dataset.train.labels == 1]
    assert dataset.train.images.min() > 0 and dataset.train.images.max() < 1
    assert (upper.norm(dim=1).mean() - 1).abs() < 0.02  # unit circle about (0, 0)
    assert ((lower - torch.tensor([1.0, 0.5])).norm(dim=1).mean() - 1).abs() < 0.02
    assert not torch.equal(dataset.train.images, dataset.test.images)


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.read])
def test_embedded_sets_are_what_the_table_says(name):
    source, dataset = DATASETS[name], load_dataset(name)
    assert (len(dataset.train), len(dataset.test)) == source.size
    assert dataset.input_size == source.input_size
    assert dataset.title == source.title
    assert torch.equal(load_dataset(name).train.images, dataset.train.images)


def test_unknown_name_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        load_dataset("cifar1000")
