"""Figure of gradient robustness: relative change of the gradient under random noise, and the predicted trend."""

from collections.abc import Mapping
from typing import Any

from lowcurve.evaluation.measurement import PER_SAMPLE, Budget, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import Column, Curve, Experiment, rows


def measure(subject: Subject, settings: Settings) -> Values:
    """Measure the relative change of the loss's gradient under random noise, and the predicted r·C_f."""
    from lowcurve.geometry.stability import gradient_stability

    x, y = subject.samples(settings["samples"])
    found = gradient_stability(subject.model, x, y, settings["radii"], samples=settings["draws"], seed=SEED)
    change, predicted = found.mean.tolist(), found.predicted.tolist()
    middle = len(change) // 2
    places = {"stability_small": 0, "stability_middle": middle, "stability_large": -1}
    changes = found.values.nanmean(dim=1)  # over directions
    return {
        "stability_radii": settings["radii"],
        "stability_curve": change,
        "stability_predicted": predicted,
        "stability_theory": predicted[middle],
        **{name: change[place] for name, place in places.items()},
        PER_SAMPLE: {
            "stability_theory": written(found.quadratic[middle]),
            **{name: written(changes[place]) for name, place in places.items()},
        },
    }


def over_theory(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the change in units of the predicted one, at the middle radius.

    >>> over_theory({"stability_middle": 0.1, "stability_theory": 0.4})
    {'stability_over_theory': 0.25}
    """
    predicted = values.get("stability_theory")
    return {"stability_over_theory": values["stability_middle"] / predicted} if predicted else {}


def _settings(samples: Budget) -> Settings:
    from lowcurve.geometry.stability import RADII

    return {"samples": samples.stability, "radii": list(RADII), "draws": 4}


STABILITY = Measurement("stability", measure, _settings)
CURVE = Curve(
    "stability_radii",
    "stability_curve",
    "‖ε‖₂ of the noise",
    "‖∇f(x+ε) − ∇f(x)‖ / ‖∇f(x)‖",
    log=True,
    predicted="stability_predicted",
)


def _figure(data: str, name: str, title: str) -> Experiment:
    return Experiment(
        name=name,
        title="Gradient robustness: how far noise turns the gradient",
        source=f"Figure 2, {title}",
        data=data,
        rows=rows("standard", "lcnn", "gradreg", "lcnn+gradreg", "cure", "softplus-wd", "adv"),
        measurements=(STABILITY,),
        columns=(
            Column("stability_small", "change at ‖ε‖ = 0.001", 4),
            Column("stability_middle", "change at ‖ε‖ = 0.01", 4),
            Column("stability_large", "change at ‖ε‖ = 0.1", 4),
            Column("stability_over_theory", "change / ‖ε‖ C_f at 0.01", 3, "none"),
        ),
        curves=(CURVE,),
        derive=over_theory,
        claims=(
            Claim(
                "LCNN + GradReg's gradients are an order of magnitude more stable at ‖ε‖ = 0.1",
                "stability_large[lcnn+gradreg] / stability_large[standard] <= 0.1",
            ),
            Claim("LCNN's gradients are more stable", "stability_large[lcnn] / stability_large[standard] <= 0.5"),
            Claim("Theory's ‖ε‖ C_f lies above what is measured (LCNN)", "stability_over_theory[lcnn] <= 1"),
        ),
        notes=("The paper shows curves without numbers; the claims are those of its text and caption.",),
    )


EXPERIMENTS = (
    _figure("cifar100", "figure-gradient-robustness", "CIFAR-100"),
    _figure("cifar10", "figure-gradient-robustness-cifar10", "CIFAR-10"),
)
