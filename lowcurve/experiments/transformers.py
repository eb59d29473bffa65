"""Study of a small transformer: what gradient penalties and learned smoothness do where there is attention."""

from collections.abc import Mapping
from typing import Any

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.attacks import accuracies
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Experiment, Row
from lowcurve.experiments.geometry import GEOMETRY

RADII = {"l2": 0.2, "linf": 2 / 255}
TURNS = 7  # steps of each method when costs are compared


def measure_attacks(subject: Subject, settings: Settings) -> Values:
    """Attack by PGD and APGD-T at one radius of each norm; all see the same samples."""
    import math

    from lowcurve.attacks.evaluate import evaluate

    chosen = subject.split().subset(settings["samples"], SEED)
    steps = {"pgd": settings["pgd_steps"], "apgd-t": settings["apgd_steps"]}
    values: Values = {"flags": [], PER_SAMPLE: {}}
    for name, norm in (("l2", 2.0), ("linf", math.inf)):
        radius = settings[name]
        found = evaluate(subject.model, chosen, tuple(steps), (radius,), norm=norm, steps=steps, seed=SEED)
        cells = {f"{attack.replace('-', '_')}_{name}": (attack, radius) for attack in steps}
        measured = accuracies(found, {"attacked_accuracy": ("clean", 0.0), **cells})
        kept, flags = values[PER_SAMPLE] | measured[PER_SAMPLE], [*values["flags"], *found.flags]
        values |= {**measured, PER_SAMPLE: kept, "flags": flags}
    return values


def measure_blocks(subject: Subject, settings: Settings) -> Values:
    """Measure the slopes and the curvature of attentions and MLPs of each sample; the median of the steepest blocks."""
    from lowcurve.geometry.blocks import block_geometry

    x, y = subject.samples(settings["samples"])
    names = [name for name, _ in subject.model.named_modules() if name.endswith((".attention.1", ".mlp"))]
    found = block_geometry(subject.model, x, y, of="margin", blocks=names, tol=settings["tol"])
    values: Values = {}
    for kind, end in (("attention", ".attention.1"), ("mlp", ".mlp")):
        rows = [row for row in found if row.name.endswith(end)]
        values |= {f"{kind}_lipschitz_by_block": [float(row.lipschitz.median()) for row in rows]}
        values |= {f"{kind}_curvature_by_block": [float(row.curvature.median()) for row in rows]}
        values |= {f"{kind}_{field}": max(values[f"{kind}_{field}_by_block"]) for field in ("lipschitz", "curvature")}
    return values


def measure_cost(subject: Subject, settings: Settings) -> Values:
    """Compare a training step with a plain one of GELU, in turns, by the processor time of one thread."""
    import statistics
    import time

    import torch

    from lowcurve.methods import build
    from lowcurve.training.runs import load_config
    from lowcurve.training.step import TrainingStep

    assert subject.folder is not None
    config = load_config(subject.folder)
    x, y = subject.dataset.train.batch(slice(settings["batch"]))
    steps = []
    for method, coefficients in (("gelu", {}), (config.method.name, config.method.coefficients)):
        with torch.random.fork_rng(devices=[]):
            shape, classes = subject.dataset.input_size, subject.dataset.num_classes
            net = build(method, config.model.name, shape, classes, config.model.width, coefficients=coefficients)
        steps.append(TrainingStep(net.train(), method, coefficients))
    threads, seconds = torch.get_num_threads(), ([], [])  # type: tuple[int, tuple[list[float], list[float]]]
    torch.set_num_threads(1)
    try:
        for _ in range(TURNS):
            for step, taken in zip(steps, seconds, strict=True):
                start = time.process_time()
                step(x, y)
                taken.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    plain, own = (statistics.median(taken[1:]) for taken in seconds)
    return {"cost": own / plain}


ATTACKS = Measurement(
    "both-norms",
    measure_attacks,
    lambda samples: {
        "samples": samples.strong,
        "pgd_steps": samples.pgd_steps,
        "apgd_steps": samples.apgd_steps,
        **RADII,
    },
)
BLOCKS = Measurement("blocks", measure_blocks, lambda samples: {"samples": 16, "tol": 0.05})
COST = Measurement("step-cost", measure_cost, lambda samples: {"batch": 64})

TRAINING: Mapping[str, Any] = {
    "model.width": 64,
    "data.augmentation": ("flip",),
    "train.epochs": 8,
    "train.evaluate_every": 8,
    "train.optimizer": "adamw",
    "train.lr": 2e-3,
    "train.schedule": "cosine",
    "train.warmup": 0.1,
    "train.weight_decay": 0.05,
    "train.clip_gradient": 1.0,
    "train.channels_last": False,
}
L2 = {"method.lambda_grad": 0.07}  # as large a penalty of the plain network as ℓ₁
L1 = {"method.lambda_grad": RADII["linf"], "method.gradient_norm": 1}
FINITE = {"method.gradient": "finite"}  # a smooth network allows it, ReLU does not
BETA = {"method.lambda_beta": 1e-2}  # log β moves little in so few steps otherwise


def _row(key: str, label: str, method: str, *changes: Mapping[str, Any]) -> Row:
    settings = {name: value for change in (TRAINING, *changes) for name, value in change.items()}
    return Row(key, label, method, settings, ours=True)


TABLE = Experiment(
    name="study-transformers",
    title="A small transformer: curvature, robustness in two norms, cost",
    data="cifar10",
    model="vit",
    rows=(
        _row("gelu", "GELU", "gelu"),
        _row("relu", "ReLU", "relu"),
        _row("learned", "Learned GELU", "learned-gelu", BETA),
        _row("lcnn", "LCNN: learned softplus, unit norms outside attention", "lcnn", BETA),
        _row("l2", "GELU + GradReg ℓ₂²", "gelu+gradreg", L2, FINITE),
        _row("l1", "GELU + GradReg ℓ₁", "gelu+gradreg", L1, FINITE),
        _row("relu-l1", "ReLU + GradReg ℓ₁", "relu+gradreg", L1),
        _row("learned-l1", "Learned GELU + GradReg ℓ₁", "learned-gelu+gradreg", BETA, L1, FINITE),
    ),
    measurements=(GEOMETRY, ATTACKS, BLOCKS, COST),
    columns=(
        ACCURACY,
        Column("gradient_norm", "E‖∇f‖₂"),
        Column("curvature_median", "median C_f"),
        Column("margin_curvature_median", "median C_margin"),
        *(
            Column(f"{attack}_{norm}", f"{title}, {label} (%)", 1, "high", 100.0)
            for norm, label in (("l2", "ℓ₂ 0.2"), ("linf", "ℓ∞ 2/255"))
            for attack, title in (("pgd", "PGD"), ("apgd_t", "APGD-T"))
        ),
        Column("attention_lipschitz", "Attention: slope"),
        Column("mlp_lipschitz", "MLP: slope"),
        Column("attention_curvature", "Attention: curvature"),
        Column("mlp_curvature", "MLP: curvature"),
        Column("cost", "Step (× GELU)"),
    ),
    claims=(
        Claim(
            "A learned GELU bends less, by a tenth at least",
            "margin_curvature_median[learned] / margin_curvature_median[gelu] <= 0.9",
            OURS,
        ),
        Claim(
            "An LCNN of the transformer halves the curvature of the margin",
            "margin_curvature_median[lcnn] / margin_curvature_median[gelu] <= 0.5",
            OURS,
        ),
        Claim("GradReg ℓ₁ adds ten points under APGD-T in ℓ∞", "apgd_t_linf[l1] − apgd_t_linf[gelu] >= 10", OURS),
        Claim("GradReg ℓ₁ is more robust than ℓ₂² in ℓ∞", "apgd_t_linf[l1] − apgd_t_linf[l2] >= 0", OURS),
        Claim(
            "The activation decides: GELU is five points more robust than ReLU",
            "apgd_t_linf[l1] − apgd_t_linf[relu-l1] >= 5",
            OURS,
        ),
        Claim("GradReg ℓ₁ costs at most three points of accuracy", "accuracy[l1] − accuracy[gelu] >= -3", OURS),
    ),
    notes=(
        "Attention and layer norms are PyTorch's own in every row; unit norms are those of convolutions and MLPs.",
        "λ of GradReg: ℓ₁ 2/255, the radius of the attack; ℓ₂² 0.07, which gives the network without GradReg as large "
        "a penalty. Smooth networks are trained by finite differences, ReLU by double backprop.",
        "Slopes and curvature of blocks (lc.block_geometry, of the margin) are estimated from below on 16 samples: "
        "the median over samples, of the steepest or most bent of four blocks. An MLP has its layer norm in front.",
        "A step's cost is compared in turns in one process, by the processor time of one thread.",
    ),
    told=False,
    seeds=(0,),
    apart=True,
)
EXPERIMENTS = (TABLE,)
