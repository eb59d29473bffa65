"""Which methods are there? The rows of the paper's tables as data: architecture switches and loss terms.

A method is what it changes in a plain network and a plain loss. `a+b+c` joins such changes, so every
combination has a meaning: `lcnn+gradreg` is the paper's, `relu+gradreg` needs no further code.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from lowcurve.errors import UserError, unknown_name
from lowcurve.layers.gated import LearnedGELU
from lowcurve.layers.maxmin import MaxMin
from lowcurve.layers.traits import constants
from lowcurve.models import MODELS
from lowcurve.objectives import TERMS, Term
from lowcurve.surgery.convert import convert

SectionKind = TypeVar("SectionKind", bound=BaseModel)


class FirstValues(BaseModel):
    """What surgery starts the learned numbers from, with the paper's values; terms have the other coefficients."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    init_beta: float = Field(default=5.0, gt=0, description="first β of every centered softplus")
    init_gamma: float = Field(default=10.0, gt=0, description="first γ of every γ-BN")


@dataclass(frozen=True)
class Method:
    """What a method changes: the activation, parts of the surgery, loss terms, its own coefficients.

    `activation` is None for the paper's stand-in for ReLU (softplus with β = 1000) or a key of `ACTIVATIONS`;
    "learned" is the centered softplus with a trained β, "learned-gelu" GELU with one. With `spectral`, linear layers
    have unit norm, the last one too if `last_layer` is "unit". `terms` are keys of `TERMS`, `coefficients` those of
    their coefficients that differ from the terms' defaults.
    """

    title: str
    activation: str | None = None
    spectral: bool = False
    last_layer: str = "free"
    batchnorm: bool = False
    terms: tuple[str, ...] = ()
    coefficients: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def converts(self) -> bool:
        """Whether the network needs surgery."""
        return self.activation in SURGERY or self.spectral or self.batchnorm


Coefficients = dict[str, Any]  # a method's numbers by name, where they differ from the terms' defaults

ACTIVATIONS: dict[str | None, Callable[[], nn.Module]] = {
    None: partial(nn.Softplus, beta=1000.0),
    "relu": nn.ReLU,
    "softplus-10": partial(nn.Softplus, beta=10.0),
    "maxmin": MaxMin,
    "gelu": nn.GELU,
    "learned-gelu": LearnedGELU,
    "learned": nn.ReLU,  # surgery puts a centered softplus in its place
}

# What surgery does to a network that was not made with its activation: softplus for all, or a β for what is smooth.
SURGERY: dict[str | None, bool | str] = {"learned": True, "learned-gelu": "learn"}

METHODS: dict[str, Method] = {
    "standard": Method("Standard"),
    "relu": Method("ReLU", activation="relu"),
    "lcnn": Method("LCNN", activation="learned", spectral=True, batchnorm=True, terms=("curvature",)),
    "gradreg": Method("GradReg", terms=("gradient",)),
    "cure": Method("CURE", terms=("cure",)),
    "softplus-wd": Method("Softplus + weight decay", activation="softplus-10"),
    "adv": Method("Adversarial training", terms=("adversarial",)),
    "convsn-only": Method("Spectral norm only", spectral=True),
    "gbn-only": Method("γ-BN only", batchnorm=True, terms=("curvature",)),
    "csoftplus-only": Method("Centered softplus only", activation="learned", terms=("curvature",)),
    "minimal": Method(
        "Minimal",
        activation="learned",
        terms=("curvature", "gradient"),
        coefficients=MappingProxyType({"lambda_beta": 1e-2}),
    ),
    "certified": Method(
        "Certified",
        activation="learned",
        spectral=True,
        last_layer="unit",
        terms=("curvature", "certified"),
        coefficients=MappingProxyType({"init_beta": 0.1, "lambda_beta": 0.1}),
    ),
    "maxmin": Method("MaxMin", activation="maxmin", spectral=True, last_layer="unit", terms=("margin",)),
    "margin": Method("Margin", spectral=True, last_layer="unit", terms=("margin",)),
    "gelu": Method("GELU", activation="gelu"),
    "learned-gelu": Method("Learned GELU", activation="learned-gelu", terms=("curvature",)),
    "lipschitz": Method(
        "Lipschitz", activation="learned", spectral=True, last_layer="unit", terms=("curvature", "margin")
    ),
}


def find_method(name: str) -> Method:
    """Return a method by its name, or the union of several joined by `+`.

    >>> find_method("lcnn+gradreg").terms
    ('curvature', 'gradient')
    """
    parts = name.split("+")
    for part in parts:
        if part not in METHODS:
            raise unknown_name("method", part, METHODS)
    joined = METHODS[parts[0]]
    for part in parts[1:]:
        joined = _join(joined, METHODS[part], name)
    return joined


def _join(first: Method, second: Method, name: str) -> Method:
    if first.activation and second.activation and first.activation != second.activation:
        raise UserError(
            f"method {name!r} asks for one activation per network, got {first.title} ({first.activation}) "
            f"and {second.title} ({second.activation}); leave one of them out"
        )
    return Method(
        title=f"{first.title} + {second.title}",
        activation=first.activation or second.activation,
        spectral=first.spectral or second.spectral,
        last_layer="unit" if "unit" in (first.last_layer, second.last_layer) else "free",
        batchnorm=first.batchnorm or second.batchnorm,
        terms=tuple(dict.fromkeys(first.terms + second.terms)),
        coefficients=MappingProxyType({**first.coefficients, **second.coefficients}),
    )


def terms_of(method: Method | str, coefficients: Mapping[str, Any] | None = None) -> dict[str, Term]:
    """Return the terms of a method in the order of `TERMS`; `coefficients` go before the method's own.

    >>> terms_of("lcnn", {"lambda_beta": 0.5})
    {'curvature': CurvaturePenalty(lambda_beta=0.5, lambda_gamma=1e-05)}
    """
    method = find_method(method) if isinstance(method, str) else method
    numbers = {**method.coefficients, **(coefficients or {})}
    sections: list[type[BaseModel]] = [FirstValues, *TERMS.values()]
    known = {key for section in sections for key in section.model_fields}
    for name in method.terms:
        if name not in TERMS:
            raise unknown_name("term", name, TERMS)
    for name in numbers:
        if name not in known:
            raise unknown_name("coefficient", name, known)
    return {name: _chosen(TERMS[name], numbers) for name in TERMS if name in method.terms}


def columns(method: Method) -> list[str]:
    """Return the keys of what a training step of the method returns and the log keeps."""
    return ["cross_entropy", *(name for name in method.terms if TERMS[name].adds()), "loss", "accuracy"]


def initial_sharpness(method: Method, init_beta: float) -> float:
    """Return how sharply the method's untrained network bends: β, or four times its activation's curvature constant."""
    if method.activation == "learned":
        return init_beta
    known = constants(ACTIVATIONS[method.activation]())
    return math.inf if known is None else 4 * known.curvature


def _chosen(section: type[SectionKind], numbers: Mapping[str, Any]) -> SectionKind:
    """Make a section of those of its fields that are given."""
    try:
        return section(**{key: numbers[key] for key in section.model_fields if key in numbers})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors()]
        raise UserError(f"a coefficient of the method is out of its range: {'; '.join(problems)}") from None


METHODS |= {name: find_method(name) for name in ("lcnn+gradreg", "cure+gradreg", "lcnn+gradreg+adv")}


def build(
    method: Method | str,
    model_name: str,
    input_size: tuple[int, ...],
    num_classes: int,
    width: int = 64,
    residual: str = "mean",
    coefficients: Mapping[str, Any] | None = None,
    skip: Collection[str] = (),
    last_layer: str | None = None,
) -> nn.Module:
    """Return the untrained network of `method`: a plain net with its activation, then its surgery.

    `input_size` is the shape of one sample, (C, H, W) or (d,). Weights come from the global generator. Surgery leaves
    the modules named in `skip` alone; `coefficients` and `last_layer` go before the method's own.

    >>> build("lcnn", "mlp", (2,), 2, width=8)(torch.zeros(3, 2)).shape
    torch.Size([3, 2])
    """
    method = find_method(method) if isinstance(method, str) else method
    if model_name not in MODELS:
        raise unknown_name("model", model_name, MODELS)
    net = MODELS[model_name](
        num_classes=num_classes,
        in_channels=input_size[0],
        width=width,
        residual=residual,
        activation=ACTIVATIONS[method.activation],
        image_size=tuple(input_size[1:]),
    )
    return apply_surgery(net, method, input_size, coefficients, skip, last_layer)


def apply_surgery(
    net: nn.Module,
    method: Method,
    input_size: tuple[int, ...],
    coefficients: Mapping[str, Any] | None = None,
    skip: Collection[str] = (),
    last_layer: str | None = None,
) -> nn.Module:
    """Return `net` after the part of the surgery that `method` asks for; a trained net keeps its weights."""
    if not method.converts:
        return net
    first = _chosen(FirstValues, {**method.coefficients, **(coefficients or {})})
    parameter = next(net.parameters())
    model, _ = convert(
        net,
        torch.zeros(2, *input_size, device=parameter.device),
        activation=SURGERY.get(method.activation, False),
        batchnorm=method.batchnorm,
        spectral=method.spectral,
        init_beta=first.init_beta,
        init_gamma=first.init_gamma,
        skip=skip,
        last_layer=last_layer or method.last_layer,
    )
    return model
