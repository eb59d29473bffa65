"""Files appear whole or not at all, through no link, and what the disk refuses is a message."""

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowcurve import files
from lowcurve.errors import UserError
from lowcurve.files import (
    append,
    atomically,
    lock,
    make_folder,
    own_folder,
    read_bytes,
    read_lines,
    write_atomic,
    write_json,
)

WRITERS: dict[str, Callable[[Path], Any]] = {
    "write_atomic": lambda path: write_atomic(path, "new"),
    "write_json": lambda path: write_json(path, {"new": 1}),
    "append": lambda path: append(path, "new"),
    "lock": lambda path: lock(path).__enter__(),
    "make_folder": make_folder,
}


def test_a_link_planted_at_the_old_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".summary.json.partial").symlink_to(victim)
    write_json(folder / "summary.json", {"accuracy": 1})
    assert victim.read_text() == "precious" and not (folder / "summary.json").is_symlink()


def test_temporary_names_cannot_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def spy(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        opened.append((os.fspath(path), flags))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", spy)
    for _ in range(2):
        write_atomic(tmp_path / "a", "x")
    made = [(path, flags) for path, flags in opened if path.endswith(".partial")]
    assert len({path for path, _ in made}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in made)


def test_a_link_at_the_final_path_is_replaced_and_an_appender_refuses_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("file", "rows", ".lock"):
        (tmp_path / name).symlink_to(victim)
    write_atomic(tmp_path / "file", "mine")
    with pytest.raises(UserError, match="links are not followed"):
        append(tmp_path / "rows", "mine")
    with pytest.raises(UserError, match="links are not followed"), lock(tmp_path):
        pytest.fail("a lock through a link")
    assert victim.read_text() == "precious" and (tmp_path / "file").read_text() == "mine"


def test_a_linked_folder_inside_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "attack").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="got a link to"):
        own_folder(tmp_path, "attack")
    assert own_folder(tmp_path, "measure").is_dir()


def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        append(tmp_path / "pipe", "x")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path)


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            write_atomic(tmp_path / "file", "x")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_in_the_place_of_a_folder_is_a_message(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*; a file and a folder"):
        WRITERS[name](tmp_path / "file" / "x")


@pytest.mark.parametrize("name", ["write_atomic", "write_json"])
def test_a_folder_in_the_place_of_a_file_is_a_message(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="a file and a folder"):
        WRITERS[name](tmp_path / "x")
    assert not list(tmp_path.glob(".*"))


def test_a_name_too_long_and_no_name_are_messages(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shorter name"):
        write_atomic(tmp_path / ("ß" * 200), "x")
    with pytest.raises(UserError, match="cannot write"):
        write_atomic(Path(), "x")
    write_atomic(tmp_path / ("ß" * 127), "x")  # as long as a name may be
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "mkdir"])
def test_each_refusal_of_the_disk_is_a_message_and_leaves_the_old_file(
    tmp_path: Path, number: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old\n")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("write_json", "append", "make_folder"):
        with monkeypatch.context() as patch:
            if call in ("replace", "mkdir"):
                patch.setattr(Path, call, refuse)
            else:
                patch.setattr(files.os, call, refuse)
            try:
                WRITERS[name](tmp_path / "file" if name != "make_folder" else tmp_path / "folder")
            except UserError as error:
                assert os.strerror(number) in str(error) and "; " in str(error)
                assert (tmp_path / "file").read_text() == "old\n"
                assert not list(tmp_path.glob("*.partial"))
        (tmp_path / "file").write_text("old\n")


def test_a_full_device_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No space left.*free some space"), atomically(tmp_path / "x") as file:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")
        file.write(b"never")
    assert list(tmp_path.iterdir()) == []


def test_an_append_that_the_disk_refuses_leaves_no_torn_line(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from lowcurve.files import append\n"
        "path = Path(sys.argv[1]); append(path, 'first\\n')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "append(path, 'second, much longer\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "rows")], capture_output=True, text=True)
    assert "free some space" in done.stderr
    assert (tmp_path / "rows").read_text() == "first\n"


@pytest.mark.parametrize("torn", [b"", b"half", b"0.1,0.2"])
@pytest.mark.parametrize("whole", [b"", b"one\n", b"one\n\n"])
def test_a_line_counts_when_its_end_is_there_and_the_next_begins_on_its_own(tmp_path, whole, torn) -> None:
    path = tmp_path / "rows"
    assert read_lines(path) == []
    path.write_bytes(whole + torn)
    assert read_lines(path) == whole.splitlines()
    append(path, "new\n")
    assert path.read_bytes() == whole + b"new\n"


def test_the_holder_of_a_folder_removes_what_killed_writers_left(tmp_path: Path) -> None:
    for name in (".summary.json.partial", ".x.0123456789abcdef.partial", ".mine", "a.partial"):
        (tmp_path / name).write_text("half")
    with lock(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".mine", "a.partial"]
        with pytest.raises(UserError, match="another process"), lock(tmp_path):
            pytest.fail("two holders")
    with lock(tmp_path), pytest.raises(OSError, match="of the caller"):
        raise OSError("of the caller")


def test_half_a_surrogate_pair_is_written_as_json_allows(tmp_path: Path) -> None:
    import json

    content = json.loads('{"name": "\\ud800"}')
    assert json.loads(write_json(tmp_path / "x.json", content).read_text()) == content


def test_a_folder_is_waited_for_while_its_last_holder_goes(tmp_path: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock(tmp_path):
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    threading.Timer(0.2, release.set).start()
    with lock(tmp_path):
        assert release.is_set()
    holder.join()
