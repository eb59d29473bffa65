"""What is left of a finished run? Its weights, a summary for machines and a card for people."""

from typing import Any

from torch import nn

from lowcurve.files import write_atomic, write_json
from lowcurve.text import markdown
from lowcurve.training.runs import Run, save_model


def finish(run: Run, model: nn.Module, rows: list[dict[str, Any]], seconds: float) -> None:
    """Write `model.safetensors`, `card.md` and, last, `summary.json`: its presence says that all is there."""
    last = rows[-1]
    summary = {
        "accuracy": last["test_accuracy"],
        "train_accuracy": last["train_accuracy"],
        "loss": last["loss"],
        "test_loss": last["test_loss"],
        "epochs": last["epoch"] + 1,
        "seconds": round(seconds, 3),
        "images_per_second": last["images_per_second"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "beta": last["beta"],
        "gamma": last["gamma"],
        "sigma": last.get("sigma", {}),
        "weights_sha256": save_model(run.folder, model),
    }
    write_atomic(run.folder / "card.md", card(run, summary))
    write_json(run.folder / "summary.json", summary)


def card(run: Run, summary: dict[str, Any]) -> str:
    """Return the model card in Markdown."""
    config, made = run.config, run.environment
    data, train = made["data"], config.train
    shape = "×".join(map(str, data["input_size"]))
    lines = [
        f"# {markdown(config.run_name)}",
        "",
        f"{config.method.method.title} (`{config.method.name}`), "
        f"{markdown(config.model.source or f'{config.model.name}, width {config.model.width}')}, "
        f"{summary['parameters']:,} parameters, trained on {markdown(data['title'])}.",
        "",
        "| | |",
        "|---|---|",
        f"| {config.data.judged} accuracy | {100 * summary['accuracy']:.2f} % of {data['test']:,} |",
        f"| running training accuracy | {100 * summary['train_accuracy']:.2f} % of {data['train']:,} |",
        f"| input | {shape}, pixels in [0, 1], not normalized outside the model |",
        f"| classes | {data['num_classes']} |",
        f"| training | {train.optimizer}, {train.epochs} epochs, batch {train.batch_size}, lr {train.lr:g}, "
        f"weight decay {train.weight_decay:g}, seed {train.seed} |",
        f"| time | {summary['seconds']:.0f} s, {summary['images_per_second']:.0f} images/s |",
        f"| made with | lowcurve {made['lowcurve']} ({made['git'] or 'no git'}), torch {made['torch']}, "
        f"{markdown(made['processor'])}, {made['processes']} process(es) × {made['threads']} thread(s) |",
        "",
        *_constants("β of the centered softplus", summary["beta"]),
        *_constants("γ of the batch norms", summary["gamma"]),
        "Load it with `lowcurve.load(FOLDER)`; `config.toml` is the whole recipe and `lowcurve train "
        "config.toml` trains it again. Accuracy says nothing about robustness: see `lowcurve measure`, `attack` "
        "and `certify`.",
    ]
    return "\n".join(lines) + "\n"


def _constants(title: str, values: dict[str, float]) -> list[str]:
    if not values:
        return []
    numbers = sorted(values.values())
    median = numbers[len(numbers) // 2]
    return [
        f"{title}: {len(numbers)} layers, {numbers[0]:.3g} to {numbers[-1]:.3g}, median {median:.3g}.",
        "",
    ]
