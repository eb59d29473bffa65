"""How is a run of yours made smooth? On its own data, in its own batches, in a tenth of its time, beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowcurve.training.config import Config, change_config
from lowcurve.training.recipes import FINE_TUNE, fine_tuning
from lowcurve.training.runs import load_config

_SHARE = 0.09  # of the epochs: a step of a low-curvature network takes up to a tenth longer
_KEPT = ("batch_size", "channels_last", "device", "seed")


def fine_tuning_of(folder: Path, changes: Sequence[str] = ()) -> Config:
    """Return the recipe that fine-tunes the run in `folder`; where that run says it was written does not matter."""
    source, place = load_config(folder), folder.resolve()
    whole = source.model_dump(by_alias=True)
    tree: dict[str, Any] = fine_tuning(source.data.name)
    tree |= {"name": f"{place.name}-{FINE_TUNE}", "output": place.parent, "data": whole["data"]}
    tree["model"] = {"name": source.model.name, "skip": source.model.skip, "from": str(folder)}
    tree["train"] |= {key: whole["train"][key] for key in _KEPT}
    tree["train"]["epochs"] = max(1, int(_SHARE * source.train.epochs))
    return change_config(tree, changes, f"the fine-tuning of {folder}")
