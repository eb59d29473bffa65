"""A thousand broken recipes, checkpoints and run folders: always a message that says what to do, never a traceback.

Every broken input must either work or raise `UserError`, and a refused resume must leave the folder as it was.
"""

import hashlib
import json
import random
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lowcurve.errors import UserError
from lowcurve.training import loop
from lowcurve.training.checkpoint import latest_checkpoint
from lowcurve.training.config import Config, dump_config, parse_config, read_config
from lowcurve.training.loop import train
from lowcurve.training.runs import Run, load
from tests.training.makers import recipe

VALUES: list[Any] = [None, True, -1, 0, 3, 2**70, -0.5, float("nan"), float("inf"), 1e308, "", "x", "ü\0", [], [1, "a"]]
VALUES += [{}, {"a": {"b": []}}, "lcnn", "lcnn+", "+", "digits", "../..", "/", "cuda:7", "auto", [0.5, 0.2]]


def garbage(chance: random.Random) -> bytes:
    """Break bytes of a valid recipe."""
    data = bytearray(dump_config(Config()).encode())
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(max(len(data) - 1, 1))
        action = chance.randrange(4)
        if action == 0:
            data[place : place + 1] = chance.randbytes(1)
        elif action == 1:
            del data[place : place + chance.randint(1, 40)]
        elif action == 2:
            data[place:place] = "".join(chance.choices(string.printable, k=chance.randint(1, 9))).encode()
        else:
            data = data[: max(place, 1)]
    return bytes(data)


def broken_tree(chance: random.Random) -> Any:
    """Put wrong values and wrong names into a valid tree."""
    tree: Any = Config().model_dump(mode="json", by_alias=True)
    for _ in range(chance.randint(1, 3)):
        section = chance.choice([*(key for key, value in tree.items() if isinstance(value, dict)), None])
        target = tree if section is None else tree[section]
        key = chance.choice([*target, "epoch", "wrong", ""])
        if isinstance(target.get(key), dict) and chance.random() < 0.7:
            continue
        target[key] = chance.choice(VALUES)
    return tree if chance.random() < 0.98 else chance.choice(VALUES)


def test_broken_recipe_files(tmp_path: Path) -> None:
    chance, refused = random.Random(0), 0
    path = tmp_path / "recipe.toml"
    for _ in range(350):
        path.write_bytes(garbage(chance))
        try:
            read_config(path)
        except UserError as error:
            refused += 1
            assert len(str(error)) > 20
    assert refused > 200


def test_broken_recipe_values_and_overrides(tmp_path: Path) -> None:
    chance, refused = random.Random(1), 0
    path = tmp_path / "recipe.toml"
    path.write_text("")
    for _ in range(350):
        try:
            parse_config(broken_tree(chance))
        except UserError as error:
            refused += 1
            assert "mistake(s)" in str(error)
        override = "".join(chance.choices("train.epochs=1[]{}\"'#\n\\ ", k=chance.randint(0, 12)))
        try:
            read_config(path, [override, f"{chance.choice(['train', 'data.name', 'x'])}={chance.choice(VALUES)}"])
        except UserError:
            refused += 1
    assert refused > 400


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that waits to be resumed."""
    config = recipe(tmp_path_factory.mktemp("stopped"), method={"name": "lcnn"})
    real, calls = loop.TrainingStep.__call__, iter(range(5))

    def fail(*arguments: object) -> dict[str, torch.Tensor]:
        if next(calls) == 4:
            raise RuntimeError("stopped here")
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="stopped here"):
        patch.setattr(loop.TrainingStep, "__call__", fail)
        train(config)
    return config.folder


def bend_bytes(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if not data or chance.random() < 0.1:
        path.write_bytes(chance.randbytes(chance.randint(0, 200)))
    elif chance.random() < 0.4:
        path.write_bytes(data[: chance.randrange(len(data))])
    else:
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def bend_json(path: Path, chance: random.Random) -> None:
    """Wrong values under a right checksum: what a bug or another version would write."""
    body = json.loads(path.read_text())
    body.pop("sha256")
    target = chance.choice([body, body["position"]])
    key = chance.choice([*target, "other"])
    if chance.random() < 0.3:
        target.pop(key, None)
    else:
        target[key] = chance.choice(VALUES)
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**body, "sha256": digest}))


def bend_tensors(path: Path, chance: random.Random) -> None:
    """Wrong tensors under right checksums."""
    tensors = load_tensors(path.with_suffix(".safetensors").read_bytes())
    name = chance.choice(sorted(tensors))
    change = chance.randrange(3)
    if change == 0:
        del tensors[name]
    elif change == 1:
        tensors[name] = torch.zeros(chance.choice([(), (1,), (2, 3), (0,)]))
    else:
        tensors["model.other"] = tensors[name].clone()
    data = save_tensors(tensors)
    path.with_suffix(".safetensors").write_bytes(data)
    body = json.loads(path.read_text()) | {"tensors_sha256": hashlib.sha256(data).hexdigest()}
    body.pop("sha256")
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**body, "sha256": digest}))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_broken_checkpoints_are_read_or_refused(tmp_path: Path, stopped: Path) -> None:
    chance, fallbacks = random.Random(2), 0
    for _ in range(200):
        folder = tmp_path / "checkpoints"
        shutil.copytree(stopped / "checkpoints", folder)
        newest = max(folder.glob("*.json"))
        bend: Callable[[Path, random.Random], None] = chance.choice([bend_bytes, bend_json])
        bend(chance.choice([newest, newest.with_suffix(".safetensors")]) if bend is bend_bytes else newest, chance)
        before = snapshot(folder)
        found = latest_checkpoint(folder)
        assert found is not None
        fallbacks += found.position.total == 3
        assert snapshot(folder) == before
        shutil.rmtree(folder)
    assert fallbacks > 100


def test_a_resume_from_anything_broken_works_or_refuses_and_damages_nothing(tmp_path: Path, stopped: Path) -> None:
    chance, refused = random.Random(3), 0
    config = read_config(stopped / "config.toml").model_copy(update={"output": tmp_path, "name": "run"})
    files = ["config.toml", "environment.json", "metrics.jsonl"]
    for _ in range(25):
        shutil.copytree(stopped, config.folder)
        checkpoints = sorted((config.folder / "checkpoints").glob("*.json"))
        if chance.random() < 0.5:
            bend_tensors(checkpoints[-1], chance)
        else:
            bend_bytes(config.folder / chance.choice(files), chance)
        before = snapshot(config.folder)
        try:
            assert train(config, resume="auto").finished
        except UserError as error:
            refused += 1
            assert len(str(error)) > 20
            assert snapshot(config.folder) == before
        shutil.rmtree(config.folder)
    assert refused > 5


def test_loading_a_broken_run_works_or_refuses(tmp_path: Path) -> None:
    run = train(recipe(tmp_path, method={"name": "lcnn"}, train__epochs=1))
    chance, refused = random.Random(4), 0
    files = ["config.toml", "environment.json", "summary.json", "model.safetensors"]
    for _ in range(60):
        copy = tmp_path / "copy"
        shutil.copytree(run.folder, copy)
        bend_bytes(copy / chance.choice(files), chance)
        try:
            load(copy)
            _ = Run(copy).summary, Run(copy).environment, Run(copy).metrics
        except UserError:
            refused += 1
        shutil.rmtree(copy)
    assert refused > 25
