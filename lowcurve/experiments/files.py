"""How a result is written, and what is worth recording of the machine that computed it."""

import json
from pathlib import Path
from typing import Any

from lowcurve.training.files import write_atomic


def write_json(path: Path, content: Any) -> Path:
    """Write `content` whole or not at all; not-a-number is refused rather than written as no reader takes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def environment() -> dict[str, str]:
    """Return the versions and the processor that a number depends on."""
    import platform

    import numpy
    import torch

    import lowcurve
    from lowcurve.training.runs import git_revision, processor

    return {
        "lowcurve": lowcurve.__version__,
        "commit": git_revision() or "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "processor": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
