"""How is one network held against one oracle, and what is counted? `judge` returns what was found, or nothing."""

import random
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lowcurve.errors import UserError
from tests.fuzz.build import Case, Unfit, build
from tests.fuzz.findings import Finding
from tests.fuzz.oracles import ORACLES
from tests.fuzz.recipes import draw

REFUSED = "refused"


@dataclass(frozen=True)
class Found:
    """A network on which the library is wrong, with the oracle that says so and its words."""

    oracle: str
    case: Case
    message: str
    place: str = ""  # the last line of the library in the traceback of an exception

    @property
    def kind(self) -> str:
        """What must stay the same while the network is shrunk: the oracle and the first words, or the place."""
        return self.place or re.sub(r"\d[-+.e\d]*", "#", self.message)[:40]

    def __str__(self) -> str:
        return f"{self.case.program()}{ORACLES[self.oracle].call}\n# {self.oracle}: {self.message.strip()}"


@dataclass
class Counts:
    """What was seen: networks per oracle, refusals, and how often each operation and oddity took part."""

    networks: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)

    def see(self, oracle: str, case: Case, refused: bool) -> None:
        """Count one network."""
        self.networks[oracle] += 1
        self.refused[oracle] += refused
        recipe = case.recipe
        self.features.update([recipe["dtype"], recipe["layout"], "training" if recipe["training"] else "eval"])
        for node in recipe["nodes"]:
            self.features.update([node["op"], *(key for key in node if key not in ("op", "from", "settings"))])


def judge(oracle: str, case: Case) -> Found | str | None:
    """Ask one oracle; return what it found, `REFUSED` (by the library, or by PyTorch), or None where all is well."""
    before = {name: value.clone() for name, value in case.net.state_dict().items()}
    seed_state, inputs = torch.get_rng_state(), case.x.clone()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ORACLES[oracle].check(case)
    except (UserError, Unfit):
        return REFUSED
    except Finding as finding:
        return Found(oracle, case, str(finding))
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "lowcurve" in f.filename]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__
        return Found(oracle, case, f"{type(error).__name__}: {error} ({place})", place)
    after = case.net.state_dict()
    if any(not torch.equal(value, after[name]) for name, value in before.items()):
        return Found(oracle, case, "state: the model's parameters or buffers have changed")
    if not torch.equal(seed_state, torch.get_rng_state()):
        return Found(oracle, case, "state: the global random numbers have moved")
    if not torch.equal(inputs, case.x):
        return Found(oracle, case, "state: the inputs have changed")
    return None


def drawn(oracle: str, seed: int) -> Case:
    """Return the network of this number, drawn for this oracle."""
    settings = ORACLES[oracle]
    return draw(random.Random(f"{oracle} {seed}").getrandbits(48), settings.preferred, settings.dtypes)


def hunt(oracle: str, seeds: range, counts: Counts, report: Callable[[Found], None]) -> None:
    """Ask one oracle about many networks and report every finding."""
    for seed in seeds:
        case = drawn(oracle, seed)
        found = judge(oracle, case)
        counts.see(oracle, case, found == REFUSED)
        if isinstance(found, Found):
            report(found)


def rebuilt(found: Found, recipe: dict) -> Found | None:  # type: ignore[type-arg]
    """Ask the same oracle about another recipe; return its finding if it is of the same kind."""
    try:
        again = judge(found.oracle, build(recipe))
    except (Unfit, RuntimeError):  # what is simpler may be no network: channels_last without images
        return None
    return again if isinstance(again, Found) and again.kind == found.kind else None
