"""How is a recipe written in a file? Reading TOML, setting one value of it, and writing it."""

import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lowcurve.errors import UserError


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the tree of values in a recipe."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UserError(
            f"cannot read the recipe {path}: {error.strerror}; give the path of a TOML file, or a name such as "
            "cifar10-resnet18-lcnn+gradreg (data, model, method)"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None
    except (RecursionError, ValueError) as error:  # a null character in a path is a ValueError
        raise UserError(
            f"cannot read the recipe {str(path)[:200]!r}: {error}; it has sections of plain values"
        ) from None


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set `a.b=value`."""
    ((key, value),) = parse_pairs([override]).items()
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise UserError(f"{section} in {override!r} is a value, not a section; see the recipe")
    tree[last] = value


def parse_pairs(words: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` words; a value is TOML, or a bare word that stands for itself.

    >>> parse_pairs(["train.epochs=3", "partition=gpu"])
    {'train.epochs': 3, 'partition': 'gpu'}
    """
    pairs: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        if not equals or not key or key.endswith("."):
            raise UserError(f"expected key=value, got {word!r}; for example train.epochs=20")
        try:
            pairs[key] = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            pairs[key] = text
    return pairs


def write_toml(tree: Mapping[str, Any]) -> str:
    """Write plain values, and sections of plain values; what is None in a section is left out.

    >>> print(write_toml({"name": "a", "train": {"lr": 0.1, "seed": None}}), end="")
    name = "a"
    <BLANKLINE>
    [train]
    lr = 0.1
    """
    lines = [f"{key} = {_written(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for section, values in tree.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {_written(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in str(value))
    return f'"{escaped}"'
