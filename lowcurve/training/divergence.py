"""Why did training diverge? The cause as far as the last figures tell it, and the setting that mends it."""

import math
from collections.abc import Mapping

from lowcurve.objectives import TERMS
from lowcurve.training.config import Config

_LARGE_ADAMW = 0.01  # rates of AdamW above it are usually meant for SGD


def advice(config: Config, last: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return cause and remedy in a sentence.

    `last` are the summands of the loss in the step that failed, `before` their means at the last reading that was
    healthy; it is empty where there was none.
    """
    term = _penalty(config, before) or _penalty(config, last)
    if term is not None:
        return _weaken(config, term, {**last, **before})
    if not before and config.model.source is not None and not math.isfinite(last.get("cross_entropy", math.nan)):
        return (
            f"It was so from the start, before any step: {config.model.source} itself gives scores that are no finite "
            "numbers, or wants inputs other than pixels in [0, 1]; mend that network"
        )
    if config.train.precision == "bfloat16" and not all(map(math.isfinite, last.values())):
        return "It may be the precision: train.precision='float32' has 65,000 times finer numbers; " + _slower(config)
    return _slower(config)


def _penalty(config: Config, summands: Mapping[str, float]) -> str | None:
    """Return the term that outweighs cross-entropy ten times, or is no number where cross-entropy is one."""
    entropy = summands.get("cross_entropy", math.nan)
    if not math.isfinite(entropy):
        return None
    for name in config.method.method.terms:
        value = summands.get(name, 0.0)
        if not math.isfinite(value) or value > 10 * max(entropy, 1.0):
            return name
    return None


def _weaken(config: Config, term: str, summands: Mapping[str, float]) -> str:
    keys = [key for key in TERMS[term].model_fields if key.startswith("lambda_")]
    now = (
        ", ".join(f"method.{key} (now {getattr(config.method, key):g})" for key in keys) or "the method's coefficients"
    )
    return (
        f"The term {term!r} drove it: it was {summands.get(term, math.nan):.3g} where cross-entropy was "
        f"{summands.get('cross_entropy', math.nan):.3g}. Try under another name: a smaller {now}"
    )


def _slower(config: Config) -> str:
    settings = config.train
    usual = ", for AdamW usually about 0.001" if settings.optimizer == "adamw" and settings.lr > _LARGE_ADAMW else ""
    text = "No term outweighs cross-entropy, so the steps are too long. Try under another name: "
    text += f"a smaller train.lr (now {settings.lr:g}{usual})"
    more = [] if settings.warmup else ["train.warmup=0.05"]
    more += [] if settings.clip_gradient else ["train.clip_gradient=1"]
    return text + "".join(f", or {setting}" for setting in more)
