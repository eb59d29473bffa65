"""Are our attacks as strong as those of other libraries, and how many seconds do they need for it?

Run `python -m benchmarks.attacks [--quick] [--output benchmarks/results]`, half an hour on one idle thread. Each attack
of ours and its oracle get the same trained net, the same test digits (500; 100 for the deeper net), the same radius and
the same budget, one after the other in the same process, timed by the processor's clock, which other programs disturb
little. Robust accuracy is computed anew from the examples that each returns.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lowcurve as lc
from benchmarks.steps import circumstances

SAMPLES, FEWER = 500, 100
RADII = {2: (0.2, 0.5, 0.8), math.inf: (0.03, 0.08, 0.15)}
STEPS = {"apgd-t": 100, "square": 1000, "pgd": 40}
ALLOWED = {"apgd-t": 0.005, "square": 0.02, "pgd": 0.005}  # by how much our robust accuracy may exceed an oracle's
NAMES = {2: "L2", math.inf: "Linf"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 samples and one radius: a look, not a figure")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name, net in trained().items() for row in compare(name, net, options.quick or "ResNet" in name)]
    report = {
        "command": "python -m benchmarks.attacks",
        "environment": circumstances(),
        "steps": STEPS,
        "rows": rows,
        "summary": summary(rows),
    }
    for line in report["summary"]:
        print(line)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "attacks.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {options.output}")


def compare(net_name: str, net: nn.Module, brief: bool) -> Iterator[dict[str, Any]]:
    """Attack one net with everything and print a table line by line; `brief`: fewer samples, the middle radii."""
    print("| net | attack | norm | ε | oracle | accuracy ours | theirs | seconds ours | theirs |\n" + "|---" * 9 + "|")
    x, y = digits(slice(FEWER if brief else SAMPLES))
    grid = [(norm, eps) for norm, radii in RADII.items() for eps in (radii[1:2] if brief else radii)]
    for attack, (norm, eps) in product(ORACLES, grid):
        run = partial(lc.attack, net, x, y, attack, eps=eps, norm=norm, steps=STEPS[attack])
        result, seconds = timed(run)
        for name, oracle in ORACLES[attack].items():
            adversarial, theirs = timed(partial(oracle, net, x, y, norm, eps))
            row = {
                "net": net_name,
                "attack": attack,
                "norm": NAMES[norm],
                "eps": eps,
                "oracle": name,
                "accuracy": result.accuracy,
                "oracle_accuracy": (net(adversarial).argmax(1) == y).double().mean().item(),
                "seconds": seconds,
                "oracle_seconds": theirs,
            }
            figures = f"{row['accuracy']:.3f} | {row['oracle_accuracy']:.3f} | {seconds:.1f} | {theirs:.1f}"
            print(f"| {net_name} | {attack} | {NAMES[norm]} | {eps} | {name} | {figures} |", flush=True)
            yield row


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `run` returns and the processor's seconds that it took."""
    torch.manual_seed(0)
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Say for each attack and oracle how much weaker we are at worst, and the ratio of all seconds together."""
    lines = []
    for attack, oracles in ORACLES.items():
        for name in oracles:
            mine = [row for row in rows if (row["attack"], row["oracle"]) == (attack, name)]
            worst = max(row["accuracy"] - row["oracle_accuracy"] for row in mine)
            mean = sum(row["accuracy"] - row["oracle_accuracy"] for row in mine) / len(mine)
            ratio = sum(row["oracle_seconds"] for row in mine) / sum(row["seconds"] for row in mine)
            verdict = "within" if worst <= ALLOWED[attack] + 1e-9 else "BEYOND"
            lines.append(
                f"{attack} against {name}: robust accuracy {mean:+.1%} in the mean, {worst:+.1%} at worst "
                f"({verdict} +{ALLOWED[attack]:.1%}); {ratio:.1f} times as fast"
            )
    return lines


def digits(part: slice) -> tuple[Tensor, Tensor]:
    """Return part of the shuffled digits: the first 500 are for testing, the others for training."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))[part]
    images = torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1)
    return images[order], torch.tensor(bunch.target)[order]


def trained() -> dict[str, nn.Module]:
    """Train a small net with ReLU, one of low curvature, and a deeper one of low curvature (ResNet-18, width 8)."""
    torch.manual_seed(0)
    small = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    relu = nn.Sequential(*small, nn.Flatten(), nn.Linear(512, 10))
    resnet = lc.MODELS["resnet18"](in_channels=1, width=8)
    example = torch.zeros(2, 1, 8, 8)
    nets = {"ReLU": relu, "LCNN": lc.convert(relu, example)[0], "ResNet-18 LCNN": lc.convert(resnet, example)[0]}
    x, y = digits(slice(500, None))
    for name, net in nets.items():
        epochs, rate = (8, 1e-2) if name.startswith("ResNet") else (25, 3e-3)
        optimizer = torch.optim.Adam(net.parameters(), rate)
        for _ in range(epochs):
            for part in torch.randperm(len(x)).split(64):
                loss = nn.functional.cross_entropy(net.train()(x[part]), y[part]) + lc.curvature_penalty(net)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        net.eval()
        test, labels = digits(slice(500))
        print(f"{name}: {(net(test).argmax(1) == labels).double().mean():.1%} of the test digits are right")
    return nets


def _apgd(net: nn.Module, x: Tensor, y: Tensor, norm: float, eps: float) -> Tensor:
    from pyautoattack.autopgd_base import APGDAttack_targeted

    return APGDAttack_targeted(net, norm=NAMES[norm], eps=eps, n_iter=STEPS["apgd-t"], seed=0).perturb(x, y)


def _square(net: nn.Module, x: Tensor, y: Tensor, norm: float, eps: float) -> Tensor:
    from pyautoattack.square import SquareAttack

    budget = {"n_queries": STEPS["square"], "p_init": 0.8, "resc_schedule": True}
    return SquareAttack(net, norm=NAMES[norm], eps=eps, seed=0, device="cpu", **budget).perturb(x, y)


def _torchattacks(net: nn.Module, x: Tensor, y: Tensor, norm: float, eps: float) -> Tensor:
    import torchattacks

    return torchattacks.APGDT(net, norm=NAMES[norm], eps=eps, steps=STEPS["apgd-t"], n_classes=10)(x, y)


def _torchattacks_square(net: nn.Module, x: Tensor, y: Tensor, norm: float, eps: float) -> Tensor:
    import torchattacks

    return torchattacks.Square(net, norm=NAMES[norm], eps=eps, n_queries=STEPS["square"])(x, y)


def _foolbox(net: nn.Module, x: Tensor, y: Tensor, norm: float, eps: float) -> Tensor:
    import foolbox

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    family = foolbox.attacks.L2PGD if norm == 2 else foolbox.attacks.LinfPGD
    return family(steps=STEPS["pgd"], rel_stepsize=2.5 / STEPS["pgd"])(wrapped, x, y, epsilons=eps)[1]


ORACLES: dict[str, dict[str, Callable[..., Tensor]]] = {
    "pgd": {"foolbox": _foolbox},
    "apgd-t": {"pyautoattack": _apgd, "torchattacks": _torchattacks},
    "square": {"pyautoattack": _square, "torchattacks": _torchattacks_square},
}


if __name__ == "__main__":
    main()
