"""A sample's gradient or attack means nothing where its answer depends on the rest of the batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError

VERBS: dict[str, Callable[[nn.Module, Tensor, Tensor], object]] = {
    "curvature": lc.curvature,
    "stability": lambda model, x, y: lc.gradient_stability(model, x, y, [0.1]),
    "linearity": lambda model, x, y: lc.local_linearity(model, x, y, [0.1]),
    "attack": lambda model, x, y: lc.attack(model, x, y, "pgd", eps=0.1),
    "certify": lc.certify,
}


@pytest.mark.parametrize("verb", VERBS)
def test_batch_norm_without_running_statistics_is_refused(verb: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)).eval()
    with pytest.raises(UserError, match="track_running_stats=True"):
        VERBS[verb](model, torch.rand(3, 3), torch.tensor([0, 1, 0]))


@pytest.mark.parametrize("verb", ["curvature", "stability", "linearity", "attack"])
def test_an_instance_norm_has_each_sample_by_itself(verb: str) -> None:
    model = nn.Sequential(nn.InstanceNorm1d(2), nn.Flatten(), nn.Linear(8, 2))
    VERBS[verb](model, torch.rand(3, 2, 4), torch.tensor([0, 1, 0]))
