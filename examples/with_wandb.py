"""Weights & Biases: follow a run of `lc.train` from its files, while it trains or afterwards."""

import json
from pathlib import Path

import wandb

import lowcurve as lc
from lowcurve.training.config import parse_config


def log_epochs(run, folder, first=0):
    """Send the epochs that `metrics.jsonl` has from `first` on; return where to go on."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    for line in lines[first:]:
        row = json.loads(line)
        flat = {key: value for key, value in row.items() if not isinstance(value, dict)}
        for kind in ("beta", "gamma", "sigma"):
            flat |= {f"{kind}/{name}": value for name, value in row.get(kind, {}).items()}
        run.log(flat, step=row["epoch"])
    return len(lines)


class LogConstants:
    """For a loop of your own: call it after a step."""

    def __init__(self, run):
        self.run = run

    def __call__(self, model, step, **numbers):
        from lowcurve.training.log import constants

        found = {f"{kind}/{name}": v for kind, layers in constants(model).items() for name, v in layers.items()}
        self.run.log({**numbers, **found}, step=step)


def main():
    recipe = {
        "name": "digits-wandb", "data": {"name": "digits", "limit_train": 128, "limit_test": 64},
        "model": {"name": "convnet", "width": 4}, "method": {"name": "lcnn"}, "train": {"epochs": 2, "batch_size": 32},
    }  # fmt: skip
    trained = lc.train(parse_config(recipe))
    with wandb.init(project="lowcurve", config=recipe) as run:
        log_epochs(run, trained.folder)
        LogConstants(run)(lc.load(trained), step=2, accuracy=trained.summary["accuracy"])


if __name__ == "__main__":
    main()
