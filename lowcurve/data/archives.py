"""How is a downloaded archive read? In place: wanted members go to memory, nothing is ever extracted to disk.

So no member, whatever its name (`../x`, `/etc/x`) or kind (link, device), can write anywhere.
"""

import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lowcurve.data.files import require_file
from lowcurve.errors import UserError

MAX_BYTES = 2**29  # the largest official archive unpacks to 186 MB


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked if it is gzipped."""
    with _unpacked(path) as stream:
        return stream.read()


def read_members(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the named files of a tar archive, gzipped or not, in the archive's order."""
    missing = set(names)
    with _unpacked(archive) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=2**20) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name in missing:
                missing.remove(name)
                yield name, _content(tar, member)
    if missing:
        raise UserError(f"expected a member {min(missing)}, got an archive without it")


@contextmanager
def _unpacked(path: Path) -> Iterator["Limited"]:
    with require_file(path).open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield Limited(gzip.GzipFile(fileobj=raw) if packed else raw)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
    if file is None or member.size > MAX_BYTES:
        raise UserError(f"expected {member.name} to be a file of at most {MAX_BYTES:,} bytes, got something else")
    return file.read()


class Limited(io.RawIOBase):
    """A binary stream that refuses to give more than MAX_BYTES: a small archive cannot fill the memory."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self.stream = stream
        self.left = MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all if negative."""
        data = self.stream.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise UserError(f"expected at most {MAX_BYTES:,} bytes when unpacked, got more")
        return data
