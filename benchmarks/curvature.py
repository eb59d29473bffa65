"""How many Hessian-vector products and seconds does a Hessian norm cost, and how wrong is it?

Run `python -m benchmarks.curvature [--output benchmarks/results]`, about eight minutes on one thread. Lanczos (ours)
and power iteration (the paper's estimator, |uᵀHu| after 10 or 20 steps) measure the same samples of the same trained
networks in turn, timed by the processor's clock, which other programs disturb little. "plain" is power iteration with
PyTorch's own double backward, as one would write it; the others share this library's faster products. The truth
is the dense Hessian in float64, column by column, and its eigenvalues.
"""

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import lowcurve as lc

SAMPLES, TIMED, ROUNDS = 16, 48, 3  # samples with a dense truth, samples per timing, timings
STEPS = (3, 5, 7, 10, 20)
NETS = {"softplus β = 1000": 1000.0, "softplus β = 5": 5.0}
METHODS: dict[str, dict[str, Any]] = {
    "Lanczos, default": {},
    "Lanczos, tol 0.1": {"tol": 0.1},
    **{f"Lanczos, {k} steps": {"tol": 1e-12, "max_iterations": k} for k in STEPS},
    **{f"power, {k} steps": {"method": "power", "max_iterations": k} for k in STEPS},
}
PLAIN = "power, 20 steps, plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    report: dict[str, Any] = {"command": "python -m benchmarks.curvature", "torch": torch.__version__, "nets": {}}
    for name, beta in NETS.items():
        net, x, y = trained(beta)
        truth = dense_norms(net, x[:SAMPLES], y[:SAMPLES])
        rows = compare(net, x, y, truth)
        report["nets"][name] = {"accuracy": accuracy(net), "rows": rows, **verdict(rows)}
        print_table(name, report["nets"][name])
    output.mkdir(parents=True, exist_ok=True)
    (output / "curvature.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    chart(report["nets"], output / "curvature.png")
    print(f"written to {output}")


def images() -> tuple[Tensor, Tensor]:
    """Digits at 3 × 16 × 16 with a little noise in the three channels."""
    bunch = load_digits()
    small = torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1)
    large = F.interpolate(small, scale_factor=2, mode="bilinear").expand(-1, 3, -1, -1)
    noise = torch.randn(large.shape, generator=torch.Generator().manual_seed(0))
    return (large + 0.05 * noise).clamp(0, 1), torch.tensor(bunch.target)


def trained(beta: float) -> tuple[nn.Module, Tensor, Tensor]:
    """A narrow ResNet-18 after a few epochs, and test samples."""
    torch.manual_seed(0)
    x, y = images()
    net = lc.MODELS["resnet18"](width=16, activation=lambda: nn.Softplus(beta))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(6):
        for rows in torch.randperm(1500).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval(), x[1500 : 1500 + TIMED], y[1500 : 1500 + TIMED]


def accuracy(net: nn.Module) -> float:
    x, y = images()
    with torch.no_grad():
        return float((net(x[1500:]).argmax(dim=1) == y[1500:]).float().mean())


def dense_norms(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """‖∇²ℓ‖ of each sample: the Hessian's columns by plain double backward in float64, its eigenvalues by LAPACK."""
    net, x = copy.deepcopy(net).double(), x.double().requires_grad_()
    z = net(x)
    others = z.scatter(1, y[:, None], -torch.inf) - z.gather(1, y[:, None])
    loss = torch.log1p(others.exp().sum(dim=1)).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    gradient = gradient.flatten(1)
    columns = [torch.autograd.grad(g.sum(), x, retain_graph=True)[0].flatten(1) for g in gradient.unbind(dim=1)]
    hessian = torch.stack(columns, dim=2)
    return torch.linalg.eigvalsh((hessian + hessian.mT) / 2).abs().amax(dim=1)


def plain_power_iteration(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Tensor:
    """|uᵀHu| of each sample by plain double backward on one retained graph."""
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(net(x), y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        u = F.normalize(u.flatten(1), dim=1).view_as(x)
        (product,) = torch.autograd.grad(gradient, x, u, retain_graph=True)
        quotient = (u * product).flatten(1).sum(dim=1)
        u = product
    return quotient.abs()


def compare(net: nn.Module, x: Tensor, y: Tensor, truth: Tensor) -> dict[str, dict[str, float]]:
    """Errors of each method, and the median of rounds in which all methods take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in (*METHODS, PLAIN)}
    rows = {}
    for _ in range(ROUNDS):
        for name, options in METHODS.items():
            start = time.process_time()
            found = lc.curvature(net, x, y, **options)
            seconds[name].append((time.process_time() - start) / len(x))
            error = ((found.hessian_norm[:SAMPLES].double() - truth) / truth).abs()
            rows[name] = {
                "products": float(found.iterations.double().mean()),
                "mean_error": float(error.mean()),
                "largest_error": float(error.max()),
            }
        start = time.process_time()
        error = ((plain_power_iteration(net, x, y, 20)[:SAMPLES].double() - truth) / truth).abs()
        seconds[PLAIN].append((time.process_time() - start) / len(x))
        rows[PLAIN] = {"products": 20.0, "mean_error": float(error.mean()), "largest_error": float(error.max())}
    return {name: row | {"seconds_per_sample": statistics.median(seconds[name])} for name, row in rows.items()}


def verdict(rows: dict[str, dict[str, float]]) -> dict[str, float | str]:
    """The fastest Lanczos that is at least as exact as 20 power steps; default errors against 10 power steps."""
    ten, twenty, default = rows["power, 10 steps"], rows["power, 20 steps"], rows["Lanczos, default"]
    exact = [
        name
        for name, row in rows.items()
        if name.startswith("Lanczos")
        and row["mean_error"] <= twenty["mean_error"] * 1.001
        and row["largest_error"] <= twenty["largest_error"] * 1.001
    ]
    best = min(exact, key=lambda name: rows[name]["seconds_per_sample"], default="Lanczos, default")
    return {
        "equal_accuracy": best,
        "times_faster_than_20_power_steps": twenty["seconds_per_sample"] / rows[best]["seconds_per_sample"],
        "default_times_faster_than_20_power_steps": twenty["seconds_per_sample"] / default["seconds_per_sample"],
        "default_times_faster_than_plain": rows[PLAIN]["seconds_per_sample"] / default["seconds_per_sample"],
        "largest_error_10_power_steps_over_default": ten["largest_error"] / default["largest_error"],
    }


def print_table(name: str, net: dict[str, Any]) -> None:
    print(f"\n{name} (ResNet-18, width 16, digits at 3 × 16 × 16, accuracy {net['accuracy']:.3f}, {SAMPLES} samples)\n")
    print("| method | products | mean error | largest error | ms/sample |\n|---|---|---|---|---|")
    for method, row in net["rows"].items():
        figures = f"{row['products']:.1f} | {row['mean_error']:.1e} | {row['largest_error']:.1e}"
        print(f"| {method} | {figures} | {1000 * row['seconds_per_sample']:.1f} |")
    print(f"\nat least as exact as 20 power steps: {net['equal_accuracy']}, ", end="")
    print(f"{net['times_faster_than_20_power_steps']:.1f}× faster; ", end="")
    print(f"default {net['default_times_faster_than_20_power_steps']:.1f}× faster ", end="")
    print(f"({net['default_times_faster_than_plain']:.1f}× than plain), its largest error ", end="")
    print(f"{net['largest_error_10_power_steps_over_default']:.0f}× smaller than that of 10 power steps", flush=True)


def chart(nets: dict[str, Any], path: Path) -> None:
    """Largest error against Hessian-vector products."""
    figure, axes = plt.subplots(1, len(nets), figsize=(4 * len(nets), 3.2), sharey=True, layout="constrained")
    for axis, (name, net) in zip(axes, nets.items(), strict=True):
        for kind, color in (("power", "tab:orange"), ("Lanczos", "tab:blue")):
            rows = [net["rows"][f"{kind}, {k} steps"] for k in STEPS]
            errors = [max(row["largest_error"], 1e-8) for row in rows]
            axis.semilogy([row["products"] for row in rows], errors, "o-", color=color, label=kind)
        default = net["rows"]["Lanczos, default"]
        axis.semilogy(default["products"], max(default["largest_error"], 1e-8), "k*", markersize=12, label="default")
        axis.set(title=name, xlabel="Hessian-vector products")
    axes[0].set_ylabel("largest relative error")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
