"""Is the installed package whole? Run outside the clone: `python check_installed.py [--loops]`.

The release workflow runs it on every wheel, and `tests/test_wheel.py` on the one that it builds. `--loops` asks for the
compiled loops, which are optional elsewhere.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import torch

import lowcurve as lc
from lowcurve.kernels.cpu.library import LIBRARY
from lowcurve.report.page import render
from lowcurve.training.config import read_config


def main() -> None:
    clone = Path(__file__).resolve().parents[1]
    assert clone not in Path(lc.__file__).resolve().parents, f"{lc.__file__} is the clone's, not an installed one"
    assert version("lowcurve") == lc.__version__
    assert LIBRARY is not None or "--loops" not in sys.argv, "the compiled loops are missing"
    assert "<html" in render([], {})
    assert read_config("cifar10-resnet18-lcnn+gradreg").method.name == "lcnn+gradreg"
    net = lc.MODELS["mlp"](num_classes=3, in_channels=1, image_size=4, width=8)
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    model, _ = lc.convert(net, x)
    assert lc.curvature(model, x, y).curvature.isfinite().all()
    print(f"lowcurve {lc.__version__} in {Path(lc.__file__).parent}: whole, loops {'yes' if LIBRARY else 'no'}")


if __name__ == "__main__":
    main()
