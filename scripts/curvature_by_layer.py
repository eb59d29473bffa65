"""Which activation makes a trained LCNN bend? Its margin's curvature with all other activations linearized.

    python scripts/curvature_by_layer.py RUN [SAMPLES]

The Hessian of a network is a sum over its activations, each with the slopes in front of it; this prints the normalized
norm of every summand, the activation's β and, for each γ-BN, its slope. Data come from the run's own test split.
"""

import sys

import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.training.runs import load_config


def linearize(layer: lc.CenteredSoftplus, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """Return the tangent of the activation at its present input, of the same value and slope."""
    (z,) = inputs
    slope = torch.sigmoid(layer.beta.detach() * z.detach())
    return output.detach() + slope * (z - z.detach())


def main(run: str, samples: int = 24) -> None:
    model, data = lc.load(run), load_config(run).data
    x, y = load_dataset(data.name, data.dir).test.subset(samples, seed=0).batch(slice(None))
    whole = lc.curvature(model, x, y, of="margin")
    print(f"curvature of the margin: {whole.curvature.mean():.2f} (mean of {samples} samples)")
    layers: dict[str, nn.Module] = dict(model.named_modules())
    activations = {name: layer for name, layer in layers.items() if isinstance(layer, lc.CenteredSoftplus)}
    for name, layer in activations.items():
        hooks = [other.register_forward_hook(linearize) for other in activations.values() if other is not layer]
        alone = lc.curvature(model, x, y, of="margin", tol=5e-2).hessian_norm / whole.gradient_norm
        for hook in hooks:
            hook.remove()
        print(f"  {name:24s} beta {float(layer.beta.detach()):6.2f}  alone {alone.mean():6.2f}")
    for name, layer in layers.items():
        if isinstance(layer, LipschitzBatchNorm1d | LipschitzBatchNorm2d):
            print(
                f"  {name:24s} slope {float(layer.lipschitz().detach()):5.1f}  gamma {float(layer.gamma.detach()):5.1f}"
            )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
