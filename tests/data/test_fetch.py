"""Downloads against a loopback server that can be as bad as the real ones."""

import fcntl
import hashlib
import http.server
import os
import re
import threading
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.data import fetch as module
from lowcurve.data import load_dataset
from lowcurve.data.fetch import DOWNLOADS, Download, checksums, fetch, fetch_file
from lowcurve.errors import UserError
from tests.data import makers

CONTENT = os.urandom(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `cut` ends each response after so many bytes; `ranges` says whether Range is honored."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = {"/file.bin": CONTENT}, []
        self.cut, self.ranges, self.length, self.status = None, True, True, None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and self.server.ranges else 0
        self.server.requests.append(start)
        data = self.server.files.get(self.path)
        if self.server.status or data is None:
            self.send_error(self.server.status or 404)
        elif start >= len(data):
            self.send_error(416)
        else:
            self.send_range(data, start)

    def send_range(self, data, start):
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.server.length:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = len(data) if self.server.cut is None else start + self.server.cut
        self.wfile.write(data[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module.time, "sleep", lambda _: None)


def test_download(server, tmp_path):
    path = tmp_path / "new" / "file.bin"
    assert fetch_file(f"{server.url}/file.bin", path, MD5).read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file.bin"]


def test_a_sound_file_is_not_fetched_again(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert server.requests == []


def test_a_damaged_file_is_replaced(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1] + b"?")
    assert fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5).read_bytes() == CONTENT


@pytest.mark.parametrize("kept", [1, 100_000, 299_999])
def test_a_partial_file_is_continued(server, tmp_path, kept):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:kept])
    assert fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5).read_bytes() == CONTENT
    assert server.requests == [kept]


def test_a_complete_partial_file_needs_its_checksum_only(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5).read_bytes() == CONTENT


def test_connections_that_break_are_resumed_where_they_broke(server, tmp_path):
    server.cut = 70_000
    assert fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5).read_bytes() == CONTENT
    assert server.requests == [0, 70_000, 140_000, 210_000, 280_000]


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 400_000)
    assert fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5).read_bytes() == CONTENT


def test_a_server_that_never_gets_further_is_given_up(server, tmp_path):
    server.cut = 0
    with pytest.raises(UserError, match=r"ended early; 0 bytes are kept.*run the command again"):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert len(server.requests) == module.ATTEMPTS and not (tmp_path / "file.bin").exists()


def test_without_a_length_the_checksum_tells_a_cut(server, tmp_path):
    server.length, server.cut = False, 1000
    with pytest.raises(UserError, match=r"expected a file with MD5 .* got .*; it was discarded"):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert list(tmp_path.iterdir()) == []


def test_wrong_content_is_discarded(server, tmp_path):
    server.files["/file.bin"] = CONTENT[::-1]
    with pytest.raises(UserError, match=MD5):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_without_end_is_cut(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="at most 1,000 bytes"):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (500, 5), (503, 5)])
def test_server_errors_are_told_and_only_temporary_ones_retried(server, tmp_path, status, requests):
    server.status = status
    with pytest.raises(UserError, match=f"the server says {status}"):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert len(server.requests) == requests


def test_no_server(tmp_path):
    with pytest.raises(UserError, match="Check the network"):
        fetch_file("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", MD5)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/x", "/etc/passwd", ""])
def test_only_http(tmp_path, url):
    with pytest.raises(UserError, match="expected an address http"):
        fetch_file(url, tmp_path / "file.bin", MD5)


def test_two_processes_do_not_write_one_file(server, tmp_path):
    with (tmp_path / "file.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process"):
            fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert server.requests == []


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="choose another --data-dir"):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file" / "file.bin", MD5)


def test_a_full_disk_is_told_and_the_rest_kept(server, tmp_path, monkeypatch):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:10])

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", no_space)
    with pytest.raises(UserError, match=r"No space left on device.*make room"):
        fetch_file(f"{server.url}/file.bin", tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT and not (tmp_path / "file.bin").exists()


def test_checksums_are_md5_sums_of_distinct_files():
    sums = [md5 for name in DOWNLOADS for md5 in checksums(name).values()]
    assert len(sums) == 10 == len(set(sums)) and checksums("digits") == {}
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in sums)
    with pytest.raises(UserError, match="did you mean 'svhn'"):
        fetch("svnh")


def test_what_was_fetched_can_be_loaded_and_checked(server, tmp_path, monkeypatch):
    makers.svhn(tmp_path / "origin")
    downloads = []
    for name in ("train_32x32.mat", "test_32x32.mat"):
        server.files[f"/{name}"] = data = (tmp_path / "origin" / name).read_bytes()
        downloads.append(Download(f"http://127.0.0.1:9/{name}", hashlib.md5(data).hexdigest()))
    monkeypatch.setitem(DOWNLOADS, "svhn", tuple(downloads))
    place = ["--data-dir", str(tmp_path / "data")]
    result = CliRunner().invoke(app, ["data", "fetch", "svhn", "--mirror", f"{server.url}/", *place])
    assert result.exit_code == 0 and result.output.count("ok") == 2
    assert len(load_dataset("svhn", tmp_path / "data").train) == 20
    result = CliRunner().invoke(app, ["data", "check", "svhn", *place])
    assert result.exit_code == 0 and "matlab files with the official checksums" in result.output
    broken = replace(downloads[1], md5="0" * 32)
    monkeypatch.setitem(DOWNLOADS, "svhn", (downloads[0], broken))
    result = CliRunner().invoke(app, ["data", "check", "svhn", "digits", *place])
    assert result.exit_code == 1
    assert "fail  svhn" in result.output and "ok    digits: Digits 8×8, 1,438 + 359 samples" in result.output


def test_list_shows_every_set_and_what_is_here(tmp_path):
    makers.fashion_mnist(tmp_path / "fashion-mnist", packed=True)
    result = CliRunner().invoke(app, ["data", "list", "--data-dir", str(tmp_path)])
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert "idx files" in rows["fashion-mnist"] and "embedded" in rows["digits"]
    assert rows["cifar100"].rstrip().endswith("no") and "50,000/10,000" in rows["cifar100"]
