"""May this run start here? The folder must be writable, free, and hold the same recipe or none."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from lowcurve.errors import UserError
from lowcurve.factory import Factory
from lowcurve.files import lock, make_folder, own_folder, write_atomic
from lowcurve.training.config import Config, dump_config, read_config
from lowcurve.training.distributed import World
from lowcurve.training.network import own_factory
from lowcurve.training.runs import Run

Resume = Literal["auto", "never"]
# What may differ when a run goes on: where it is, how it lies in memory (which changes rounding, and the order of noise
# where there is any) and how it is watched, not what it computes.
MAY_DIFFER = {
    "name",
    "output",
    "data.dir",
    "train.device",
    "train.channels_last",
    "train.evaluate_every",
    "train.checkpoint_seconds",
}


@contextmanager
def hold_folder(config: Config, resume: Resume, world: World, factory: Factory | None = None) -> Iterator[Run]:
    """Hold the run's folder for this training, or say why not; every process learns of a refusal."""
    problem: UserError | None = None
    shared = {key: value for key, value in _settings(config).items() if key not in ("data.dir", "train.device")}
    if not world.agree(repr(shared)):
        raise UserError(
            f"expected one recipe for the {world.size} processes that train together, got several; "
            "to train alone, each its own, set WORLD_SIZE=1"
        )
    with ExitStack() as held:
        if world.first:
            try:
                _claim(config, resume, held)
            except UserError as error:
                problem = error
        if world.any(problem is not None):
            raise problem or UserError(f"the first process could not start in {config.folder}; see its message")
        yield Run(config.folder, factory or own_factory(config))


def _claim(config: Config, resume: Resume, held: ExitStack) -> None:
    folder = config.folder
    held.enter_context(lock(make_folder(folder)))
    own_folder(folder, "checkpoints")
    begun = any((folder / "checkpoints").glob("*.json")) or Run(folder).finished
    if begun and resume == "never":
        raise UserError(f"{folder} holds a run already; go on with --resume auto, or give this one another name")
    if begun:
        _compare(read_config(folder / "config.toml"), config, folder)
    else:
        write_atomic(folder / "config.toml", dump_config(config))


def _compare(before: Config, now: Config, folder: Path) -> None:
    old, new = _settings(before), _settings(now)
    changed = [
        f"{key}: {old[key]!r} before, {new[key]!r} now" for key in old if old[key] != new[key] and key not in MAY_DIFFER
    ]
    if changed:
        raise UserError(
            f"{folder} was begun with another recipe ({'; '.join(changed)}); "
            "go on with the same values, or give this run another name"
        )


def _settings(config: Config) -> dict[str, Any]:
    return _flat(config.model_dump(mode="json", by_alias=True))


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
