"""How are files written? So that a crash leaves the old one or the new one, never half of it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowcurve.errors import UserError


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write beside `path`, force it to the disk, then rename: the old file stays meanwhile."""
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; free some space or choose another folder") from error


def write_json(path: Path, content: Any) -> Path:
    """Write `content`, whole or not at all; not-a-number is refused rather than written as no reader takes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def sync_folder(folder: Path) -> None:
    """Force a rename in `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the system lets go of it however the process ends."""
    import fcntl  # POSIX only, as are the signals that end a run

    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process is training in {folder}; wait for it, or give this run another name"
            ) from None
        yield
