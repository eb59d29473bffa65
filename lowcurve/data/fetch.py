"""How do the official files get here? By HTTP with resume, a published checksum and an atomic rename."""

import fcntl
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from lowcurve.data.archives import MAX_BYTES
from lowcurve.data.files import data_directory
from lowcurve.errors import UserError, unknown_name
from lowcurve.progress import visible

ATTEMPTS = 5
CHUNK = 2**18
TIMEOUT = 60.0


@dataclass(frozen=True)
class Download:
    """One official file and the MD5 that its authors (or, for SVHN, the usual loaders) publish."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

# CIFAR comes in the binary version: it holds the same pixels without a pickle.
DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "cifar10": (Download(f"{_TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    "cifar100": (Download(f"{_TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    "svhn": (
        Download(f"{_STANFORD}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download(f"{_STANFORD}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
    "fashion-mnist": (
        Download(f"{_ZALANDO}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Download(f"{_ZALANDO}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Download(f"{_ZALANDO}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Download(f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}

# Official files that can be checked, but come from elsewhere.
_NOT_FETCHED = {
    "cifar10": {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    "cifar100": {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
}


def checksums(name: str) -> dict[str, str]:
    """Return the MD5 of every official file of a data set that can be checked, by the file's name.

    >>> sorted(checksums("cifar10"))
    ['cifar-10-binary.tar.gz', 'cifar-10-python.tar.gz']
    """
    return {download.file: download.md5 for download in DOWNLOADS.get(name, ())} | _NOT_FETCHED.get(name, {})


def fetch(name: str, data_dir: Path | str | None = None, mirror: str | None = None) -> list[Path]:
    """Download the official files of a data set to DIR/NAME; sound files that are there already are kept.

    Args:
        name: a row of DOWNLOADS.
        data_dir: by default $LOWCURVE_DATA, else the cache.
        mirror: address of a folder that holds the same files, instead of the official one.
    """
    if name not in DOWNLOADS:
        raise unknown_name("data set to fetch", name, DOWNLOADS)
    folder = data_directory(data_dir) / name
    paths = []
    for download in DOWNLOADS[name]:
        url = f"{mirror.rstrip('/')}/{download.file}" if mirror is not None else download.url
        paths.append(fetch_file(url, folder / download.file, download.md5))
    return paths


def fetch_file(url: str, path: Path, md5: str) -> Path:
    """Download `url` to `path` through `path`.part, which a later call continues."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"expected an address http:// or https://, got {url!r}; correct --mirror")
    part = path.with_name(path.name + ".part")
    try:
        if path.is_file() and checksum(path) == md5:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as file:
            _download(url, file)
            os.fsync(file.fileno())
            found = checksum(part)
            if found != md5:
                part.unlink()
                raise UserError(
                    f"{url}: expected a file with MD5 {md5}, got {found}; it was discarded. "
                    "Run the command again, and if that does not help, use --mirror with another address"
                )
            part.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error}); choose another --data-dir or make room") from error
    return path


def checksum(path: Path) -> str:
    """Return the MD5 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """Open the partial file to go on writing, unless another process does."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o666), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), part.stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):  # or it has just finished and renamed what we opened
            raise UserError(f"{part}: another process is fetching this file; wait for it") from None
        yield file


def _download(url: str, file: BinaryIO) -> None:
    """Append to `file` what it lacks; a broken connection is resumed, up to ATTEMPTS times in vain."""
    failures, problem = 0, ""
    while failures < ATTEMPTS:
        before = file.tell()
        try:
            if _append(url, file):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 429):  # these two ask for patience
                raise UserError(f"{url}: the server says {error.code} {error.reason}; use --mirror") from error
            problem = f"the server says {error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 1 if file.tell() > before else failures + 1
        time.sleep(0.1 * 2**failures)
    raise UserError(
        f"{url}: {problem}; {file.tell():,} bytes are kept. Check the network and run the command again "
        "to go on, or use --mirror"
    )


def _append(url: str, file: BinaryIO) -> bool:
    """Read one response to the end; return whether the file is complete."""
    request = urllib.request.Request(url, headers={"User-Agent": "lowcurve"})
    if start := file.tell():
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to send: the checksum decides
            return True
        raise
    with response:
        if start and not _continues(response, start):
            start = file.seek(0)  # the server sends all of it again
            file.truncate()
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        with _bar() as display:
            task = display.add_task(url.rpartition("/")[2], completed=start, total=total)
            for chunk in _chunks(response):
                if file.tell() + len(chunk) > MAX_BYTES:
                    raise UserError(f"{url}: expected at most {MAX_BYTES:,} bytes, got more; use --mirror")
                file.write(chunk)
                display.advance(task, len(chunk))
        file.flush()
    return total is None or file.tell() == total


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except OSError as error:  # not to be taken for a full disk
            raise ConnectionError(str(error)) from error
        if not chunk:
            return
        yield chunk


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not visible())
