import numpy as np
import pytest
import torch

from lowcurve.data.augment import PADDING, crop, flip
from lowcurve.data.dataset import Split
from lowcurve.data.loader import batches
from lowcurve.errors import UserError


def numbered(count=103, shape=(3, 8, 6)):
    """A split whose labels are the samples' numbers."""
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(1, 256, (count, *shape), dtype=torch.uint8, generator=rng)
    return Split(images, torch.arange(count))


def collect(split, size, **options):
    return list(batches(split, size, **{"seed": 0, "epoch": 0} | options))


def joined(parts):
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@pytest.mark.parametrize("shuffle", [True, False])
def test_one_epoch_has_each_sample_once(shuffle):
    split = numbered()
    x, y = joined(collect(split, 10, shuffle=shuffle))
    assert torch.equal(y.sort().values, torch.arange(103))
    assert torch.equal(x, split.images[y] / 255)
    assert torch.equal(y, torch.arange(103)) != shuffle


def test_length_is_the_number_of_batches():
    for size in (1, 7, 51, 102, 103, 500):
        for shuffle in (True, False):
            loader = batches(numbered(), size, seed=0, epoch=0, shuffle=shuffle)
            assert len(loader) == len(list(loader))


def test_fixed_by_seed_and_epoch_and_free_of_global_state():
    split, both = numbered(), ("crop", "flip")
    state = torch.get_rng_state()
    first = joined(collect(split, 10, augmentation=both, seed=4, epoch=2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    for other, same in (((4, 2), True), ((4, 3), False), ((5, 2), False)):
        x, y = joined(collect(split, 10, augmentation=both, seed=other[0], epoch=other[1]))
        assert (torch.equal(x, first[0]) and torch.equal(y, first[1])) == same


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_share_the_batches_of_one_process(world):
    split, both = numbered(count=96), ("crop", "flip")
    alone = collect(split, 24, augmentation=both)
    ranks = [collect(split, 24, augmentation=both, rank=rank, world=world) for rank in range(world)]
    for step, (x, y) in enumerate(alone):
        together = joined([rank[step] for rank in ranks])
        assert torch.equal(together[0], x) and torch.equal(together[1], y)


@pytest.mark.parametrize("world", [2, 3, 7])
def test_training_ranks_step_together_and_evaluation_counts_each_sample_once(world):
    split = numbered(count=101)
    training = [collect(split, 20, rank=rank, world=world) for rank in range(world)]
    assert len({tuple(len(y) for _, y in parts) for parts in training}) == 1
    evaluated = [y for rank in range(world) for _, y in collect(split, 20, rank=rank, world=world, shuffle=False)]
    assert torch.equal(torch.cat(evaluated).sort().values, torch.arange(101))


def test_training_drops_a_last_batch_of_one():
    assert [len(y) for _, y in collect(numbered(count=21), 10)] == [10, 10]
    assert [len(y) for _, y in collect(numbered(count=22), 10)] == [10, 10, 2]
    assert [len(y) for _, y in collect(numbered(count=1), 10)] == [1]
    assert [len(y) for _, y in collect(numbered(count=3), 1)] == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 8, 6), (1, 5, 5), (2, 1, 9)])
def test_crop_and_flip_equal_loops_over_images(dtype, shape):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, *shape), generator=rng).to(dtype)
    draws = torch.randint(2**31, (200,), generator=rng)
    cropped, flipped = crop(images, draws).numpy(), flip(images, draws).numpy()
    height, width = shape[1:]
    for index, (image, draw) in enumerate(zip(images.numpy(), draws.tolist(), strict=True)):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
        top, left = divmod(draw % 81, 9)
        assert np.array_equal(cropped[index], padded[:, top : top + height, left : left + width])
        assert np.array_equal(flipped[index], image[:, :, ::-1] if draw % 2 else image)


def test_crop_does_not_depend_on_the_memory_format():
    images = torch.rand(6, 3, 8, 8)
    draws = torch.arange(6) * 13
    assert torch.equal(crop(images.contiguous(memory_format=torch.channels_last), draws), crop(images, draws))


def test_all_shifts_and_sides_are_equally_likely_together():
    """Pearson's statistic over 81 × 2 outcomes stays within 5 standard deviations of its mean."""
    count = 162 * 50
    images = torch.zeros(count, 1, 17, 17, dtype=torch.uint8)
    images[:, 0, 8, 8], images[:, 0, 8, 7] = 255, 100  # a bright pixel with a dimmer one at its left
    split = Split(images, torch.zeros(count, dtype=torch.int64))
    x, _ = joined(collect(split, 1000, augmentation=("crop", "flip")))
    place = x.flatten(1).argmax(1)
    mirrored = x.flatten(1).gather(1, place[:, None] + 1)[:, 0] > 0
    observed = torch.bincount((place // 17 - 4) * 18 + (place % 17 - 4) * 2 + mirrored)
    assert PADDING == 4 and len(observed) == 162
    assert ((observed - 50) ** 2 / 50).sum() < 161 + 5 * (2 * 161) ** 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augmentation": ("crop", "filp")}, "did you mean 'flip'"),
        ({"batch_size": 0}, "at least one sample"),
        ({"rank": 2, "world": 2}, "at least one sample"),
        ({"batch_size": 3, "world": 4}, "fewer processes"),
    ],
)
def test_impossible_requests_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        batches(numbered(), **{"batch_size": 10, "seed": 0, "epoch": 0} | change)


def test_vectors_are_not_augmented():
    vectors = Split(torch.rand(10, 2), torch.zeros(10, dtype=torch.int64))
    with pytest.raises(UserError, match="leave it out"):
        batches(vectors, 5, seed=0, epoch=0, augmentation=("flip",))
