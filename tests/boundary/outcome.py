"""What came of a call? It was refused by a `UserError`, it was accepted, or it ended in another way, which is a bug."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from lowcurve.errors import UserError

REFUSED, ACCEPTED, RAISED = "refused", "accepted", "raised"


@dataclass(frozen=True)
class Outcome:
    """What happened, and the message."""

    what: str
    message: str = ""

    @property
    def good(self) -> bool:
        """Whether it is an end that a user may see."""
        return self.what != RAISED

    def __str__(self) -> str:
        return f"{self.what} {self.message[:160]}"


def outcome_of(call: Callable[[], object]) -> Outcome:
    """Make a call; what PyTorch warns of besides is of no concern here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except UserError as error:
        if len(str(error)) < 15:
            return Outcome(RAISED, f"a UserError that says too little: {error}")
        return Outcome(REFUSED, str(error))
    except BaseException as error:
        return Outcome(RAISED, f"{type(error).__name__}: {error}")
    return Outcome(ACCEPTED)
