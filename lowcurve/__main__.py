"""`python -m lowcurve`, for torchrun.

Python puts the working directory first on the import path. That may be the folder of a stranger's run, with a
`torch.py` in it, so it is taken off, unless lowcurve itself was found there.
"""

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path.cwd() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from lowcurve.cli import main

main()
