"""How are files written? Whole or not at all, through no link, and what the disk refuses is a message.

Every writer of the package goes through here. Temporary names are unpredictable and opened exclusively; a link at the
final path is replaced, not followed; folders that the user names may be links, folders inside a run may not.
"""

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from lowcurve.errors import UserError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
_LAST_BREATH = 2.0  # seconds
_PARTIAL = re.compile(r"\..*\.partial")
_SPACE, _RIGHTS = "free some space or choose another folder", "choose a folder that you may write to"
_SHAPE = "a file and a folder cannot have the same name; choose another place or remove what is there"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: _SHAPE,
    errno.EISDIR: _SHAPE,
    errno.EEXIST: _SHAPE,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "links are not followed there; remove it",
    errno.EIO: "check the disk, or choose another folder",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system has against writing `path` into a `UserError` with the path and a remedy."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "choose another folder")
        raise UserError(f"cannot write {path}: {error.strerror or error}; {remedy}") from error


def make_folder(path: Path) -> Path:
    """Make a folder that the user has named, and those above it; return it."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def own_folder(parent: Path, name: str) -> Path:
    """Make the folder `name` of a run or result; a link there would lead the writer elsewhere and is refused."""
    path = parent / name
    if path.is_symlink():
        raise UserError(f"expected {path} to be a folder, got a link to {path.readlink()}; remove it")
    return make_folder(path)


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a new file beside `path`; when the block ends well it takes the place of `path`, else it goes."""
    partial = path.parent / f".{path.name[:40]}.{secrets.token_hex(8)}.partial"
    with writing(path):
        handle = os.open(partial, _NEW, 0o666)  # the umask takes away what the user wants taken away
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(handle)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        sync_folder(path.parent)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` beside `path`, force it to the disk, then rename: the old file stays meanwhile."""
    with atomically(path) as file:
        file.write(encode(content) if isinstance(content, str) else content)


def write_json(path: Path, content: Any) -> Path:
    """Write `content`, whole or not at all; not-a-number is refused rather than written as no reader takes it."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    make_folder(path.parent)
    write_atomic(path, text)
    return path


def write_csv(path: Path, names: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write headings and rows of numbers and plain words, whole or not at all."""
    write_atomic(path, "".join(",".join(map(str, row)) + "\n" for row in (names, *rows)))


def encode(text: str) -> bytes:
    r"""Return UTF-8; half a surrogate pair, which JSON may hold and UTF-8 may not, is written as its escape.

    >>> encode("β\ud800")
    b'\xce\xb2\\ud800'
    """
    return text.encode("utf-8", "backslashreplace")


def append(path: Path, content: str) -> None:
    """Add whole lines to a file and force them to the disk; where the disk refuses, the file keeps its old length.

    A last line without its end, as a kill leaves it, is cut off first: files that grow are read by `read_lines`.
    """
    data = memoryview(encode(content))
    with writing(path), _kept(path) as handle:
        length = _cut_torn_line(handle)
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, length)
            raise


def _cut_torn_line(handle: int) -> int:
    """Return where the last whole line ends, which then is the end of the file."""
    end = os.lseek(handle, 0, os.SEEK_END)
    if end and os.pread(handle, 1, end - 1) != b"\n":
        end = os.pread(handle, end, 0).rfind(b"\n") + 1
        os.ftruncate(handle, end)
        os.lseek(handle, end, os.SEEK_SET)
    return end


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that grows; one without its end is none, and where there is no file there are none."""
    try:
        return read_bytes(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def read_bytes(path: Path) -> bytes:
    """Read a regular file; a pipe or a device of that name is refused, not waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def sync_folder(folder: Path) -> None:
    """Force a rename in `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the system lets go of it however the process ends.

    Who holds a folder is its only writer, so what writers that were killed have left there is removed.
    """
    with ExitStack() as held:
        with writing(folder):
            _hold(held.enter_context(_kept(folder / ".lock")), folder)
            for path in folder.iterdir():
                if _PARTIAL.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        yield


def _hold(handle: int, folder: Path) -> None:
    """Take the lock; wait a moment for a process that was killed: it lets go when its memory and threads are gone."""
    import fcntl  # POSIX only, as are the signals that end a run

    deadline = time.monotonic() + _LAST_BREATH
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                busy = f"another process is at work in {folder}; wait for it, or choose another folder"
                raise UserError(busy) from None
        time.sleep(0.05)


@contextmanager
def _kept(path: Path) -> Iterator[int]:
    """Open a regular file that stays what it is, and make it where there is none; links are not followed."""
    handle = os.open(path, _KEPT, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield handle
    finally:
        os.close(handle)
