"""lowcurve: train, convert, measure, attack and certify low-curvature neural networks.

Public names are imported on first use, so that `lowcurve --help` needs no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The table of contents: public name -> module that defines it.
_EXPORTS = {
    # layers with known constants
    "CenteredSoftplus": "layers.softplus",
    "LearnedGELU": "layers.gated",
    "LearnedSiLU": "layers.gated",
    "LipschitzBatchNorm1d": "layers.batchnorm",
    "LipschitzBatchNorm2d": "layers.batchnorm",
    "LipschitzResidual": "layers.lipschitz",
    "LipschitzResidual2d": "layers.lipschitz",
    "spectral_norm": "layers.normalized",
    "AveragedResidual": "layers.residual",
    "Normalize": "layers.residual",
    # surgery: any classifier to a low-curvature one, and back to plain torch.nn
    "convert": "surgery.convert",
    "fold": "surgery.fold",
    # loss terms
    "curvature_penalty": "objectives.curvature",
    "gradient_penalty": "objectives.gradient",
    "fast_double_backward": "kernels.replace",
    # geometry: what is measured
    "curvature": "geometry.curvature",
    "block_geometry": "geometry.blocks",
    "gradient_stability": "geometry.stability",
    "local_linearity": "geometry.stability",
    # guarantees: what is proven
    "operator_norm": "guarantees.operator_norm",
    "operator_norm_bound": "guarantees.operator_norm",
    "bounds": "guarantees.summary",
    "certify": "guarantees.certificate",
    "explanation_bound": "guarantees.explanation",
    # attacks: what is refuted
    "attack": "attacks",
    # training
    "parameter_groups": "training.optimizer",
    "train": "training.loop",
    "load": "training.runs",
    "save": "training.saving",
    # what a training method is made of
    "Method": "methods",
    "Term": "objectives.term",
    "Batch": "objectives.passes",
    # tables of everything that has a name
    "TERMS": "objectives",
    "METHODS": "methods",
    "MODELS": "models",
    "DATASETS": "data",
    "ATTACKS": "attacks",
    "EXPERIMENTS": "experiments",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from lowcurve.attacks import ATTACKS as ATTACKS
    from lowcurve.attacks import attack as attack
    from lowcurve.data import DATASETS as DATASETS
    from lowcurve.experiments import EXPERIMENTS as EXPERIMENTS
    from lowcurve.geometry.blocks import block_geometry as block_geometry
    from lowcurve.geometry.curvature import curvature as curvature
    from lowcurve.geometry.stability import gradient_stability as gradient_stability
    from lowcurve.geometry.stability import local_linearity as local_linearity
    from lowcurve.guarantees.certificate import certify as certify
    from lowcurve.guarantees.explanation import explanation_bound as explanation_bound
    from lowcurve.guarantees.operator_norm import operator_norm as operator_norm
    from lowcurve.guarantees.operator_norm import operator_norm_bound as operator_norm_bound
    from lowcurve.guarantees.summary import bounds as bounds
    from lowcurve.kernels.replace import fast_double_backward as fast_double_backward
    from lowcurve.layers.batchnorm import LipschitzBatchNorm1d as LipschitzBatchNorm1d
    from lowcurve.layers.batchnorm import LipschitzBatchNorm2d as LipschitzBatchNorm2d
    from lowcurve.layers.gated import LearnedGELU as LearnedGELU
    from lowcurve.layers.gated import LearnedSiLU as LearnedSiLU
    from lowcurve.layers.lipschitz import LipschitzResidual as LipschitzResidual
    from lowcurve.layers.lipschitz import LipschitzResidual2d as LipschitzResidual2d
    from lowcurve.layers.normalized import spectral_norm as spectral_norm
    from lowcurve.layers.residual import AveragedResidual as AveragedResidual
    from lowcurve.layers.residual import Normalize as Normalize
    from lowcurve.layers.softplus import CenteredSoftplus as CenteredSoftplus
    from lowcurve.methods import METHODS as METHODS
    from lowcurve.methods import Method as Method
    from lowcurve.models import MODELS as MODELS
    from lowcurve.objectives import TERMS as TERMS
    from lowcurve.objectives.curvature import curvature_penalty as curvature_penalty
    from lowcurve.objectives.gradient import gradient_penalty as gradient_penalty
    from lowcurve.objectives.passes import Batch as Batch
    from lowcurve.objectives.term import Term as Term
    from lowcurve.surgery.convert import convert as convert
    from lowcurve.surgery.fold import fold as fold
    from lowcurve.training.loop import train as train
    from lowcurve.training.optimizer import parameter_groups as parameter_groups
    from lowcurve.training.runs import load as load
    from lowcurve.training.saving import save as save


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lowcurve' has no attribute {name!r}")
    value = getattr(import_module(f"lowcurve.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
