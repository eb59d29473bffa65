"""How is a file read that may come from anybody? As parts of known types, or it is refused by its name and place.

Results are passed around and mailed: a name in them is a name and never a path, a number is finite and can be drawn,
a text is a text.
"""

import json
import stat
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from lowcurve.errors import UserError
from lowcurve.evaluation.names import NAME

MAX_BYTES = 2**26  # the largest result here has 270 KB
REMEDY = "make it again with `lowcurve reproduce`, or move it away"

Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Text = Annotated[str, Field(max_length=10_000)]
Number = Annotated[int | float, Field(ge=-1e100, le=1e100)]
Numbers = Annotated[list[Number], Field(max_length=100_000)]
Count = Annotated[int, Field(ge=0, le=10**9)]


class Part(BaseModel):
    """A part of a result; keys that are not known are left out."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


Kind = TypeVar("Kind", bound=Part)


def read_json(path: Path) -> Any:
    """Read a JSON file of finite numbers; whatever is wrong with it is a `UserError` that names it."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise UserError(f"{path}: expected a file of at most {MAX_BYTES:,} bytes, got something else; {REMEDY}")
        content = from_json(path.read_bytes(), allow_inf_nan=False)
        json.dumps(content, allow_nan=False)  # 1e999 is read as infinite
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, UserError) else UserError(f"{path}: {error}; {REMEDY}") from None
    return content


def check(kind: type[Kind], content: Any, path: Path) -> dict[str, Any]:
    """Return the known keys of `content` if it is of this kind, else a `UserError` that names file and place."""
    try:
        return kind.model_validate(content).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        problem = str(first["msg"]).removeprefix("Value error, ")
        raise UserError(f"{path}: {place[:200]}: {problem}, got {first['input']!r:.80}; {REMEDY}") from None
