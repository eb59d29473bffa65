"""Data files are hostile until read: no code runs, nothing is written, memory stays bounded."""

import gzip
import io
import os
import pickle
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from lowcurve.data import archives, load_dataset, pickles
from lowcurve.errors import UserError
from tests.data import makers


class Runs:
    """A pickle of this calls `function(*arguments)` when it is loaded without care."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def evil(marker):
    touch = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return [
        Runs(os.system, f"touch {marker}"),
        Runs(eval, touch),
        Runs(exec, touch),
        Runs(__import__, "os"),
        Runs(open, str(marker), "w"),
        Runs(subprocess.Popen, ["touch", str(marker)]),
        Runs(np.load, str(marker)),
        Runs(getattr, {}, "clear"),
        Runs(bytearray, 10),
        Runs(np.empty, 10),
    ]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("number", range(10))
def test_no_pickle_runs_code(tmp_path, protocol, number):
    marker = tmp_path / "was-here"
    data = pickle.dumps({"labels": [0], "data": evil(marker)[number]}, protocol=protocol)
    with pytest.raises(UserError, match="expected arrays, lists, bytes and strings only, got the name"):
        pickles.loads(data)
    assert not marker.exists()


def test_stand_ins_cannot_be_changed_by_a_pickle():
    """BUILD (`b`) on a name instead of an object would set attributes of our own classes."""
    before = [dict(vars(stand_in)) for stand_in in pickles.STAND_INS.values()]
    for module, name in pickles.STAND_INS:
        for state in (b"}U\x05numpyK\x01s", b"N}U\x05numpyK\x01s\x86", b"}U\x08__code__K\x01s"):
            data = b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b."
            with pytest.raises(Exception):  # noqa: B017 - any refusal will do, the next line counts
                pickles.loads(data)
    assert [dict(vars(stand_in)) for stand_in in pickles.STAND_INS.values()] == before


@pytest.mark.parametrize("dtype", ["O", "i8", "f4", "U3", [("a", "u1")]])
def test_arrays_of_anything_but_bytes_are_refused(dtype):
    data = pickle.dumps(np.zeros(3, dtype=dtype), protocol=2)
    with pytest.raises(UserError, match="expected an array of bytes"):
        pickles.loads(data)


BOMBS = r"""
import pathlib, resource, struct, sys
from lowcurve.data import archives, pickles

def bounded(action, argument):
    try:
        action(argument)
    except MemoryError:
        return False
    except Exception:
        pass
    return True

used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20,) * 2)
archives.MAX_BYTES, pickles.MAX_INSTRUCTIONS = 2**24, 10**5
text = b"X" + struct.pack("<I", 2**20) + bytes(2**20)
encode = b"h\x00h\x01X" + struct.pack("<I", 6) + b"latin1\x86R"
assert bounded(pickles.loads, b"\x80\x02K\x01r" + struct.pack("<I", 2**31 - 1) + b".")
assert bounded(pickles.loads, b"\x80\x02c_codecs\nencode\nq\x00" + text + b"q\x01" + encode * 1000 + b".")
assert bounded(pickles.loads, b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b".")
assert bounded(pickles.loads, b"\x80\x02(" + b"}" * 10_000_000 + b"l.")
assert bounded(archives.read_bytes, pathlib.Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
def test_bombs_do_not_fill_the_memory(tmp_path):
    """A huge memo index, 1,000 copies of a text, 8 GB in advance, many small objects, 400 MB of zeros gzipped."""
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        for _ in range(400):
            file.write(bytes(2**20))
    result = subprocess.run([sys.executable, "-c", BOMBS, bomb], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr


def hostile_tar(path, member_type, name, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type = member_type
        for key, value in fields.items():
            setattr(info, key, value)
        archive.addfile(info)
        for member, data in makers.cifar10_members("binary").items():
            plain = tarfile.TarInfo(member)
            plain.size = len(data)
            archive.addfile(plain, io.BytesIO(data))


def everything(root):
    return sorted(str(path) for path in root.rglob("*"))


@pytest.mark.parametrize(
    ("member_type", "name", "fields"),
    [
        (tarfile.REGTYPE, "../../escaped", {}),
        (tarfile.REGTYPE, "{root}/escaped", {}),
        (tarfile.SYMTYPE, "cifar-10-batches-bin", {"linkname": "/tmp"}),
        (tarfile.LNKTYPE, "other", {"linkname": "/etc/passwd"}),
        (tarfile.CHRTYPE, "device", {}),
        (tarfile.FIFOTYPE, "pipe", {}),
    ],
)
def test_archives_write_nothing(tmp_path, member_type, name, fields):
    hostile_tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", member_type, name.format(root=tmp_path), **fields)
    before = everything(tmp_path)
    assert len(load_dataset("cifar10", tmp_path).train) == 20
    assert everything(tmp_path) == before


@pytest.mark.parametrize("member_type", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_wanted_member_must_be_a_file(tmp_path, member_type):
    archive = tmp_path / "cifar10/cifar-10-binary.tar.gz"
    hostile_tar(archive, member_type, "cifar-10-batches-bin/test_batch.bin", linkname="/etc/passwd")
    with pytest.raises(UserError, match=r"cifar-10-binary\.tar\.gz: expected .*test_batch\.bin to be a file"):
        load_dataset("cifar10", tmp_path)


def test_unpacked_size_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_BYTES", 2**20)
    bomb = {"padding": bytes(2**22), **makers.cifar10_members("binary")}
    makers.tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", bomb)
    with pytest.raises(UserError, match="at most 1,048,576 bytes when unpacked"):
        load_dataset("cifar10", tmp_path)
