import torch
from scipy import stats

from lowcurve.attacks import randomness


def test_numbers_of_a_sample_do_not_depend_on_its_batch() -> None:
    x = torch.rand(20, 3, 4)
    order = torch.randperm(20)
    whole = randomness.uniform(randomness.keys(x, 7), 11)
    assert torch.equal(randomness.uniform(randomness.keys(x[order], 7), 11), whole[order])
    assert torch.equal(randomness.uniform(randomness.keys(x[3:4], 7), 11), whole[3:4])
    assert torch.equal(randomness.uniform(randomness.keys(x, 7), 5), whole[:, :5])


def test_seed_content_type_and_trial_each_give_another_stream() -> None:
    x = torch.rand(50, 6)
    changed = x.clone()
    changed[:, 5] = torch.nextafter(changed[:, 5], torch.tensor(1.0))
    swapped = x[:, [1, 0, 2, 3, 4, 5]]
    key = randomness.keys(x, 0)
    others = [
        randomness.keys(x, 1),
        randomness.keys(changed, 0),
        randomness.keys(swapped, 0),
        randomness.derive_keys(key, 0),
    ]
    others += [randomness.derive_keys(key, 1), randomness.keys(x.double(), 0)]
    assert all(not bool((key == other).any()) for other in others)
    assert len(torch.cat([key, *others]).unique()) == 50 * 7


def test_numbers_are_uniform_normal_and_fair() -> None:
    key = randomness.keys(torch.rand(200, 2), 3)
    uniform = randomness.uniform(key, 200)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert stats.kstest(uniform.flatten(), "uniform").pvalue > 1e-3
    assert stats.kstest(randomness.normal(key, 200).flatten(), "norm").pvalue > 1e-3
    signs = randomness.signs(key, 200)
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((signs > 0).sum()), signs.numel()).pvalue > 1e-3


def test_neighbouring_numbers_samples_and_trials_are_uncorrelated() -> None:
    x = (torch.arange(4000.0) / 4000)[:, None]  # keys of inputs that differ in few bits
    key = randomness.keys(x, 0)
    first = randomness.uniform(key, 2)
    pairs = [
        (first[:, 0], first[:, 1]),
        (first[1:, 0], first[:-1, 0]),
        (first[:, 0], randomness.uniform(randomness.derive_keys(key, 1), 1)[:, 0]),
        (
            randomness.uniform(randomness.derive_keys(key, 1), 1)[:, 0],
            randomness.uniform(randomness.derive_keys(key, 2), 1)[:, 0],
        ),
    ]
    for a, b in pairs:
        assert stats.pearsonr(a, b).pvalue > 1e-3
