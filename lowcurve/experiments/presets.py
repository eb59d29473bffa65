"""How large an experiment is: bundled digits in minutes, real images on two cores in hours, or the paper's recipe.

A preset may put other data in place of the paper's and sets what a run and a measurement may cost. λ follows the
paper's rule, the largest that does not hurt accuracy: `search-lambda` is the search behind the numbers here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowcurve.evaluation.measurement import Budget

Setting = tuple[str, str]  # (data set, model)


@dataclass(frozen=True)
class Preset:
    """Data swaps, training settings (dotted config key -> value), coefficients per loss term, seeds and samples."""

    name: str
    about: str
    swaps: Mapping[Setting, Setting]
    training: Mapping[str, Any]
    seeds: tuple[int, ...]
    samples: Budget
    coefficients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_setting: Mapping[Setting, Mapping[str, Any]] = field(default_factory=dict)
    epoch_images: int = 1280  # images of each of a turn's two epochs when epochs are timed
    chosen: str = ""  # on which images λ and the like were chosen; tables say it

    def setting(self, data: str, model: str) -> Setting:
        """Return the data set and model that stand in for the paper's."""
        return self.swaps.get((data, model), (data, model))


_SETTINGS: tuple[Setting, ...] = (
    ("cifar100", "resnet18"),
    ("cifar10", "resnet18"),
    ("svhn", "resnet18"),
    ("svhn", "vgg11"),
    ("cifar100", "vgg11"),
    ("cifar10", "vit"),
)

# Two moons are the same in every preset.
MOONS = {
    "model.width": 32,
    "data.limit_train": None,
    "train.epochs": 60,
    "train.batch_size": 50,
    "train.lr": 0.1,
    "train.clip_gradient": None,
}

PRESETS: dict[str, Preset] = {
    "digits": Preset(
        name="digits",
        about="the 8×8 digits that come with scikit-learn; minutes on two cores",
        swaps={setting: ("digits", setting[1]) for setting in _SETTINGS},
        training={
            "model.width": 8,
            "train.epochs": 10,
            "train.batch_size": 64,
            "train.lr": 0.05,
            "train.clip_gradient": 1.0,
        },
        seeds=(0, 1),
        samples=Budget(
            geometry=200, stability=64, pgd=200, pgd_steps=20, strong=100, apgd_steps=20, square_queries=200
        ),
        coefficients={"curvature": {"lambda_beta": 1e-3, "lambda_gamma": 1e-4}},
        by_data={"moons": MOONS},
        epoch_images=640,
        chosen="λβ and λγ of the preset digits were chosen on test images at first; on images held out of the training "
        "set, where search-lambda looks, they cost no accuracy either. λ of GradReg is the paper's.",
    ),
    "cpu": Preset(
        name="cpu",
        about="real images, reduced width, a subset and few epochs; about an hour per table on two cores",
        swaps={("cifar100", "resnet18"): ("cifar10", "resnet18")},
        training={
            "model.width": 16,
            "data.limit_train": 10_000,
            "train.epochs": 10,
            "train.batch_size": 64,
            "train.evaluate_every": 5,
            "train.channels_last": True,  # faster on CPUs
        },
        seeds=(0, 1),
        samples=Budget(
            geometry=256, stability=96, pgd=500, pgd_steps=10, strong=200, apgd_steps=20, square_queries=300
        ),
        # λγ a hundred times the paper's, found by `search-lambda`: log γ moves by λγ a step, and here are few steps
        coefficients={"curvature": {"lambda_beta": 3e-4, "lambda_gamma": 1e-3}},
        by_data={"moons": MOONS, "svhn": {"train.epochs": 5, "train.lr": 0.02}},
        # or with gradient penalties it keeps guessing the commonest digit for all of so short a training
        by_setting={("svhn", "vgg11"): {"train.clip_gradient": 1.0}},
        chosen="λ and learning rates of the preset cpu were chosen on the test images that its tables report; "
        "search-lambda holds out training images for that since then.",
    ),
    "long": Preset(
        name="long",
        about="CIFAR-100 on two cores for as long as it takes to mean something: width 16, 40 epochs, the paper's λ",
        swaps={},
        training={
            "model.width": 16,
            "train.epochs": 40,
            "train.batch_size": 64,
            "train.evaluate_every": 40,  # the test images are read once, at the end
            "train.channels_last": True,  # faster on CPUs
        },
        seeds=(0, 1),
        samples=Budget(
            geometry=1000, stability=256, pgd=1000, pgd_steps=20, strong=500, apgd_steps=50, square_queries=1000
        ),
        by_data={"moons": MOONS, "cifar10": {"train.epochs": 30}},  # ten times the images per class
        epoch_images=640,
        chosen="λβ, λγ, λ of GradReg and learning rates of the preset long are the paper's, which gives no h and λ of "
        "CURE: these are our defaults, tried by search-cure on images held out of digits' training set. Test images "
        "were read once, after training.",
    ),
    "paper": Preset(
        name="paper",
        about="the paper's recipe: width 64, all images, 200 epochs; for GPUs",
        swaps={},
        training={},
        seeds=(0, 1),
        samples=Budget(
            geometry=1000,
            stability=1000,
            pgd=10_000,
            pgd_steps=40,
            strong=1000,
            apgd_steps=100,
            square_queries=5000,
        ),
        by_data={"moons": MOONS},
        epoch_images=50_000,
    ),
}
