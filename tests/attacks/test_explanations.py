import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowcurve.attacks.explanations import EXPLANATIONS, explanation_stability, noisy, plot_explanations
from lowcurve.errors import UserError


def test_the_plain_gradient_is_captums_saliency(nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]) -> None:
    from captum.attr import Saliency

    x, y = samples[0][:20], samples[1][:20]
    ours = explanation_stability(nets["relu"], x, y).before
    theirs = Saliency(nets["relu"]).attribute(x.clone().requires_grad_(), target=y, abs=False)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_integrated_gradients_are_complete(nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]) -> None:
    """They add up to z_y(x) - z_y(0): what the axioms of Sundararajan et al. (2017) demand."""
    x, y = samples[0][:20], samples[1][:20]
    found = explanation_stability(nets["lcnn"], x, y, method="integrated-gradients").before
    with torch.no_grad():
        gain = (nets["lcnn"](x) - nets["lcnn"](torch.zeros_like(x))).gather(1, y[:, None])[:, 0]
    assert torch.allclose(found.flatten(1).sum(1), gain, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("method", EXPLANATIONS)
def test_low_curvature_keeps_explanations(
    method: str, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    low, high = (
        explanation_stability(nets[net], *samples, radius=0.3, method=method, seed=1) for net in ("lcnn", "relu")
    )
    assert low.similarity.mean() > high.similarity.mean()
    assert high.overlap.min() >= 0 and low.overlap.max() <= 1


def test_similarity_falls_with_the_noise_and_is_one_without(
    nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    means = [explanation_stability(nets["relu"], *samples, radius=r).similarity.mean().item() for r in (0, 0.2, 1)]
    assert means[0] == pytest.approx(1) and means[0] > means[1] > means[2]
    moved = noisy(samples[0], 0.2)
    length = torch.linalg.vector_norm((moved - samples[0]).flatten(1), dim=1)
    assert length.max() <= 0.2 + 1e-5 and length.mean() > 0.1


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 4, 4), (2, 7), (9,)], ids=str)
def test_pictures_of_any_input(shape: tuple[int, ...], tmp_path: Path) -> None:
    from PIL import Image

    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    x, y = torch.rand(2, *shape), torch.tensor([0, 1])
    net(x)
    found = {name: explanation_stability(net, x, y) for name in ("first", "second")}
    plot_explanations(x, noisy(x, 0.1), found, tmp_path / "saliency.png")
    width, height = Image.open(tmp_path / "saliency.png").size
    assert width > height > 100


def test_mistakes_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.rand(2, 3), torch.tensor([0, 1])
    with pytest.raises(UserError, match="did you mean 'gradient'"):
        explanation_stability(nn.Linear(3, 2), x, y, method="gradients")
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(UserError, match="pip install captum"):
        explanation_stability(nn.Linear(3, 2), x, y, method="integrated-gradients")
    assert explanation_stability(nn.Linear(3, 2), x, y).similarity.tolist() == pytest.approx([1, 1])
