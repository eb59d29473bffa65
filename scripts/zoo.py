"""Which networks of others go all the way? `python -m scripts.zoo` takes each through lowcurve and writes docs/zoo.md.

Each network is converted, trained for two steps, measured, attacked, folded, saved, and brought back from its original.
Smallest variants at small images, with new weights. timm needs torchvision's Python code and none of its operators.
"""

import argparse
import os
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.outputs import ask, logits_of
from scripts.zoo_networks import CLASSES, ENTRIES, MAKERS, Entry

STAGES = ("convert", "train", "curvature", "attack", "fold", "reload")
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"


@dataclass
class Row:
    """What became of a network: the stages that it went through, or the reason why one refused it."""

    entry: Entry
    parameters: int = 0
    replaced: str = ""
    left: int = 0
    folded: float = 0.0
    passed: int = 0
    reason: str = ""
    seconds: float = 0.0


def walk(entry: Entry) -> Row:
    """Take a network through all stages; an error that is no refusal is one of ours and is marked so."""
    row, started = Row(entry), time.monotonic()
    try:
        _walk(entry, row)
    except UserError as error:
        row.reason = f"{STAGES[row.passed]}: {error}"
    except Exception as error:
        row.reason = f"{STAGES[row.passed]}: BUG, {type(error).__name__}: {error}"
    row.seconds = time.monotonic() - started
    return row


def _walk(entry: Entry, row: Row) -> None:
    x = torch.rand(4, 3, entry.side, entry.side, generator=torch.Generator().manual_seed(1))
    y = torch.arange(4) % CLASSES
    net = entry.make()
    row.parameters = sum(parameter.numel() for parameter in net.parameters())
    low, report = lc.convert(net, x[:2])
    counts = Counter(change.now for change in report.replaced)
    row.replaced, row.left = ", ".join(f"{count} {kind}" for kind, count in counts.items()), len(report.left)
    row.passed += 1
    _train(low, x, y)
    row.passed += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        geometry = lc.curvature(low, x[:2], y[:2], max_iterations=3)
    _demand(bool(geometry.curvature.isfinite().all()), "curvature is not finite")
    row.passed += 1
    found = lc.attack(low, x, y, "pgd", eps=0.5, steps=2)
    _demand(bool(found.adversarial.isfinite().all()), "attacks are not finite")
    row.passed += 1
    plain = lc.fold(low)
    before, after = _logits(low, x), _logits(plain, x)
    row.folded = float((after - before).abs().max() / before.abs().max().clamp_min(1e-6))
    _demand(row.folded < 1e-4, f"folded logits differ by {row.folded:.1g} of the largest")
    row.passed += 1
    with tempfile.TemporaryDirectory() as folder:
        again = lc.load(lc.save(plain, folder), model=entry.make())
    difference = float((_logits(again, x) - after).abs().max() / after.abs().max().clamp_min(1e-6))
    _demand(difference < 1e-5, f"logits after loading differ by {difference:.1g}")
    row.passed += 1


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Take two steps of the paper's loss, on whatever head the model has."""
    model.train()
    optimizer = torch.optim.SGD(lc.parameter_groups(model), lr=0.01, momentum=0.9)
    torch.manual_seed(0)
    for _ in range(2):
        outputs = ask(model, x)
        logits = logits_of(outputs[0] if isinstance(outputs, tuple) else outputs)
        loss = F.cross_entropy(logits, y) + lc.curvature_penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _demand(bool(loss.isfinite()), f"the loss is {float(loss.detach())}")
    model.eval()


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor) -> Tensor:
    return logits_of(ask(model, x.clone()))


def line(row: Row) -> str:
    """Return the row in Markdown."""
    entry, result = row.entry, "✓" if row.passed == len(STAGES) else _short(row.reason)
    folded = f"{row.folded:.0e}" if row.passed > STAGES.index("fold") else ""
    replaced = row.replaced.replace("spectral norm", "normalized")
    left = row.left if row.passed else ""
    size = f"{row.parameters / 1e6:.2g} M"
    return f"| {title(entry)} | {entry.side} | {size} | {replaced} | {left} | {folded} | {result} |"


def title(entry: Entry) -> str:
    return f"{entry.library} `{entry.name}`"


def page(lines: dict[str, str]) -> str:
    """Return the whole page; `lines` are those of the table, by title."""
    done = sum(text.endswith("| ✓ |") for text in lines.values())
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in MAKERS)
    text = [
        "# Zoo: networks of others",
        "",
        f"`python -m scripts.zoo` takes each network through {' → '.join(STAGES)}: surgery by `lc.convert`,",
        "two training steps with the curvature penalty, `lc.curvature`, `lc.attack`, `lc.fold`, and `lc.save` of the",
        "folded network, which `lc.load` brings back from a new original. New weights, small variants, small images;",
        f"torch {torch.__version__.partition('+')[0]}, {libraries}, one thread.",
        "",
        f"**{done} of {len(lines)} go all the way**; the others are refused for the reason given, and converted where",
        "what it names is left as it is (`skip=…`; for weights that a layer standardizes itself `spectral=False` and",
        "`batchnorm=False`). *folded* is the largest difference of logits, relative to the largest logit; *normalized*",
        "are linear layers and convolutions.",
        "",
        "| network | image | parameters | replaced | left | folded | |",
        "|---|---|---|---|---|---|---|",
        *(lines[name] for name in map(title, ENTRIES) if name in lines),
    ]
    return "\n".join(text) + "\n"


def known() -> dict[str, str]:
    """Return the lines of the table as it is."""
    text = PAGE.read_text().splitlines() if PAGE.exists() else []
    return {row.split(" | ")[0].removeprefix("| "): row for row in text if "`" in row and row.startswith("| ")}


def _short(reason: str) -> str:
    text = " ".join(reason.split()).replace("|", "/")
    return text if len(text) <= 220 else text[:220] + "…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="networks to try again; all if there are none")
    chosen = parser.parse_args().names
    torch.set_num_threads(1)
    lines = known() if chosen else {}
    for entry in ENTRIES:
        if not chosen or entry.name in chosen:
            row = walk(entry)
            print(f"{row.seconds:6.1f} s  {entry.library} {entry.name}: {row.reason[:600] or '✓'}", flush=True)
            lines[title(entry)] = line(row)
            PAGE.write_text(page(lines))


if __name__ == "__main__":
    os.nice(10)
    main()
