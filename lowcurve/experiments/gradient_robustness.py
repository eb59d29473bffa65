"""Figure of gradient robustness: relative change of the gradient under random noise, and the predicted trend."""

from lowcurve.experiments import paper
from lowcurve.experiments.claims import Claim, ratio
from lowcurve.experiments.experiment import Column, Curve, Experiment, rows

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
        model="resnet18",
        rows=rows(*paper.GEOMETRY),
        measurements=("stability",),
        columns=(
            Column("stability_small", "change at ‖ε‖ = 0.001", 4),
            Column("stability_middle", "change at ‖ε‖ = 0.01", 4),
            Column("stability_large", "change at ‖ε‖ = 0.1", 4),
            Column("stability_over_theory", "change / ‖ε‖ C_f at 0.01", 3, "none"),
        ),
        curves=(CURVE,),
        claims=(
            ratio(
                "LCNN + GradReg's gradients are an order of magnitude more stable at ‖ε‖ = 0.1",
                "stability_large",
                "lcnn+gradreg",
                "standard",
                "<=",
                0.1,
            ),
            ratio("LCNN's gradients are more stable", "stability_large", "lcnn", "standard", "<=", 0.5),
            Claim(
                "Theory's ‖ε‖ C_f lies above what is measured (LCNN)",
                ("lcnn", "stability_over_theory"),
                None,
                "value",
                "<=",
                1.0,
            ),
        ),
        notes=("The paper shows curves without numbers; the claims are those of its text and caption.",),
    )


FIGURES = (
    _figure("cifar100", "figure-gradient-robustness", "CIFAR-100"),
    _figure("cifar10", "figure-gradient-robustness-cifar10", "CIFAR-10"),
)
