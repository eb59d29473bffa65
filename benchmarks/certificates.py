"""How large are certified radii at what accuracy, how tight are they, and does any attack contradict one?

Designs on scikit-learn's digits, each at several sharpnesses κ (1/κ is the radius in pixels that counts as safe):

    certified   spectral norm, low β, cross-entropy of κ·z/‖∇m‖ (the method `certified`); second-order radius
    plain       spectral norm, β = 10, cross-entropy of κ·z/L; Lipschitz radius only (the design that most papers use)
    linear      one linear layer with the objective of `certified`: its radius is exact, so it is the reference

Medians are over all test samples, misclassified ones counting 0. Every radius, of test and training samples, is then
attacked: nearest boundary over all of space, and APGD-T inside the certified ball. One violation would be a bug.

    python -m benchmarks.certificates [--quick] [--output benchmarks/results]
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from benchmarks.steps import circumstances
from lowcurve.attacks.boundary import boundary_distance
from lowcurve.data import load_dataset
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.layers.normalized import converge
from lowcurve.methods import Method, build, find_method
from lowcurve.objectives.certified import logits_over_slope

PLAIN = Method("Plain Lipschitz", activation="softplus-10", spectral=True)
# (design, model, sharpnesses)
GRID: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("certified", "convnet", (4.0, 8.0, 12.0)),
    ("plain", "convnet", (4.0, 8.0, 12.0)),
    ("certified", "mlp", (6.0, 12.0, 24.0)),
    ("plain", "mlp", (3.0, 6.0, 12.0)),
    ("linear", "linear", (6.0, 12.0)),
)
MORE = 700  # training samples whose certificates are attacked as well


@dataclass(frozen=True)
class TrainedNet:
    """One trained net: accuracy, median radii by argument, and the attack's distance."""

    design: str
    model: str
    sharpness: float
    seed: int
    accuracy: float
    lipschitz: float
    combined: float
    local: float
    attack: float
    certified_samples: int
    violations: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one sharpness, few epochs: a look, not a figure")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    rows = []
    print(
        f"{'design':10} {'model':8} {'κ':>4} {'acc':>6} {'Lip':>6} {'comb':>6} {'local':>6} {'attack':>6}  used/attack"
    )
    for design, model, sharpnesses in GRID:
        for sharpness in sharpnesses[:1] if options.quick else sharpnesses:
            rows.append(examine(design, model, sharpness, epochs=5 if options.quick else 40))
            _print(rows[-1])
    certified, violations = sum(r.certified_samples for r in rows), sum(r.violations for r in rows)
    print(f"\n{violations} violations in {certified:,} certified samples of {len(rows)} nets")
    options.output.mkdir(parents=True, exist_ok=True)
    report = {
        "command": "python -m benchmarks.certificates",
        "environment": circumstances(),
        "violations": violations,
        "certified_samples": certified,
        "rows": [asdict(row) for row in rows],
    }
    (options.output / "certificates.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(rows, options.output / "certificates.png")


def used_radius(row: TrainedNet) -> float:
    """The radius that the design is judged by."""
    return row.lipschitz if row.design == "plain" else row.local


def examine(design: str, model_name: str, sharpness: float, epochs: int, seed: int = 0) -> TrainedNet:
    """Train a net, certify it and attack its certificates."""
    data = load_dataset("digits")
    (x, y), (test_x, test_y) = (split.batch(slice(None)) for split in (data.train, data.test))
    started = time.perf_counter()
    torch.manual_seed(seed)
    model = make(design, model_name)
    fit(model, objective(design, model, sharpness), x, y, epochs, seed)
    seconds = time.perf_counter() - started
    plain = lc.certify(model, test_x, test_y)
    local = plain if design == "plain" else lc.certify(model, test_x, test_y, local=True)
    x, y = x[:MORE], y[:MORE]
    more = lc.certify(model, x, y)
    nearest = boundary_distance(model, test_x, test_y)
    violations = broken(model, test_x, test_y, local.radius, nearest)
    violations += broken(model, x, y, more.radius, boundary_distance(model, x, y))
    return TrainedNet(
        design, model_name, sharpness, seed,
        accuracy=float((model(test_x).argmax(1) == test_y).double().mean()),
        lipschitz=float(plain.lipschitz_radius.median()),
        combined=float(plain.radius.median()),
        local=float(local.radius.median()),
        attack=float(nearest.median()),
        certified_samples=int((local.radius > 0).sum() + (more.radius > 0).sum()),
        violations=violations,
        seconds=seconds,
    )  # fmt: skip


def make(design: str, model_name: str) -> nn.Module:
    """Build an untrained net of 1×8×8 inputs and 10 classes."""
    if design == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    method = PLAIN if design == "plain" else find_method("certified")
    if model_name == "mlp":  # no stretch of the pixels inside: β in the units of the pixels
        return build(method, model_name, (1, 8, 8), 10, width=64, coefficients={"init_beta": 1.0})
    return build(method, model_name, (1, 8, 8), 10, width=16)


def objective(design: str, model: nn.Module, sharpness: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a batch."""
    if design == "plain":
        lipschitz = float(lc.bounds(model, (1, 8, 8)).margin_lipschitz.max())
        return lambda x, y: F.cross_entropy(sharpness * model(x) / lipschitz, y)
    decay = 1e-2 if isinstance(model[0], nn.Flatten) else find_method("certified").coefficients["lambda_beta"]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with fast_double_backward():
            logits = model(x)
        distances = logits_over_slope(logits, x, y)
        return F.cross_entropy(sharpness * distances, y) + lc.curvature_penalty(model, beta=decay)

    return loss


def fit(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, epochs: int, seed: int
) -> None:
    """Train by Adam with one cycle of the learning rate, the same for every design."""
    batch = 64
    steps = epochs * math.ceil(len(x) / batch)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.2)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            optimizer.zero_grad()
            loss(x[rows], y[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    converge(model.eval())


def broken(model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, nearest: Tensor) -> int:
    """Count certified samples that an attack misclassifies inside their ball."""
    chosen = radius > 0
    x, y, radius = x[chosen], y[chosen], radius[chosen]
    result = lc.attack(model, x, y, "apgd-t", eps=radius.float(), steps=10)
    inside = (result.adversarial.double() - x.double()).flatten(1).norm(dim=1) <= radius
    return int(((result.success & inside) | (nearest[chosen] < radius)).sum())


def draw(rows: list[TrainedNet], path: Path) -> None:
    """Plot radius over accuracy: one line per design, the attack's distance dotted above it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for color, key in enumerate(dict.fromkeys((r.design, r.model) for r in rows)):
        line = sorted((r for r in rows if (r.design, r.model) == key), key=lambda r: r.sharpness)
        accuracy = [100 * r.accuracy for r in line]
        axes.plot(accuracy, [used_radius(r) for r in line], "o-", color=f"C{color}", label=" ".join(dict.fromkeys(key)))
        axes.plot(accuracy, [r.attack for r in line], ":", color=f"C{color}", linewidth=1)
    axes.set(xlabel="clean accuracy (%)", ylabel="median radius (pixels); dotted: attack")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def _print(row: TrainedNet) -> None:
    radii = " ".join(f"{value:6.3f}" for value in (row.lipschitz, row.combined, row.local, row.attack))
    print(
        f"{row.design:10} {row.model:8} {row.sharpness:4g} {row.accuracy:6.3f} {radii}  "
        f"{used_radius(row) / row.attack:.0%}  {row.violations}/{row.certified_samples:,}  {row.seconds:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
