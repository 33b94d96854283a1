"""Files and code through a line that is cut anywhere: whole at the end, and little of it sent twice."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lakeshore import Dispatch, HttpDispatch
from lakeshore.errors import DispatchError, PlaneUnavailable, TransportError
from lakeshore.planes import http_files
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

DATA = random.Random(7).randbytes(400_000)


class Line:
    """A TCP line to the server that is cut after so many bytes, as often as it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cuts: list[tuple[str, int]] = []
        self.sent = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._open += [client, server]
            self._start(self._pass, client, server, "up")
            self._start(self._pass, server, client, "down")

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                if way == "up":
                    self.sent += len(data)
                for n, (cut, left) in enumerate(self.cuts):
                    if cut == way:
                        if left <= len(data):
                            del self.cuts[n]
                            target.sendall(data[:left])
                            raise OSError("cut")
                        self.cuts[n] = (cut, left - len(data))
                        break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in self._open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(10)
        for each in self._open:
            each.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with Dispatch(":memory:") as plane:
        with background(create_app(plane, Options(auth=False, storage=str(tmp_path / "storage")))) as url:
            made = Line(int(url.rpartition(":")[2]))
            yield made
            made.close()


@pytest.fixture
def plane(line: Line, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpDispatch]:
    monkeypatch.setattr(http_files, "PART_BYTES", 100_000)
    with closing(HttpDispatch(line.url, timeout=5)) as made:
        yield made


def put(plane: HttpDispatch, key: str, data: bytes = DATA, digest: str | None = None) -> None:
    found = digest or hashlib.sha256(data).hexdigest()
    plane.put_file("files", key, io.BytesIO(data), len(data), found)


def get(plane: HttpDispatch, key: str) -> bytes | None:
    out = io.BytesIO()
    return None if plane.get_file("files", key, out) is None else out.getvalue()


def test_a_file_goes_and_comes(plane: HttpDispatch, line: Line) -> None:
    assert get(plane, "a") is None
    put(plane, "a")
    assert get(plane, "a") == DATA
    sent = line.sent
    put(plane, "b")  # the content is there already
    assert line.sent - sent < 5_000
    put(plane, "empty", b"")
    assert get(plane, "empty") == b""
    put(plane, "a", b"new")
    assert get(plane, "a") == b"new"


def test_an_upload_cut_anywhere_goes_on_where_it_was(plane: HttpDispatch, line: Line) -> None:
    random.seed(1)
    line.cuts = [("up", random.randrange(1, 150_000)) for _ in range(4)]
    line.cuts += [("down", random.randrange(1, 900)) for _ in range(3)]
    put(plane, "cut")
    assert line.cuts == [] or all(way == "down" for way, _ in line.cuts)
    assert line.sent < len(DATA) + 7 * 110_000  # a cut costs one part
    line.cuts = []
    assert get(plane, "cut") == DATA


def test_a_download_cut_anywhere_goes_on_where_it_was(plane: HttpDispatch, line: Line) -> None:
    put(plane, "cut")
    random.seed(2)
    line.cuts = [("down", random.randrange(600, 150_000)) for _ in range(5)]
    assert get(plane, "cut") == DATA
    assert len(line.cuts) < 5


def test_a_key_written_anew_in_mid_download_is_read_anew(
    plane: HttpDispatch, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(plane, "k")
    whole = http_files._take
    new = DATA[::-1]

    def take(*args):
        monkeypatch.setattr(http_files, "_take", whole)
        found = whole(*args)
        put(plane, "k", new)
        return found

    monkeypatch.setattr(http_files, "_take", take)
    line.cuts = [("down", 200_000)]
    assert get(plane, "k") == new


def test_what_changes_while_it_is_sent_is_refused(plane: HttpDispatch) -> None:
    with pytest.raises(DispatchError, match="announced"):
        put(plane, "k", digest="0" * 64)
    with pytest.raises(DispatchError, match="shorter"):
        plane.put_file("files", "k", io.BytesIO(DATA[:1000]), len(DATA), "0" * 64)
    assert get(plane, "k") is None


def test_a_control_plane_that_is_away_is_told(plane: HttpDispatch, line: Line) -> None:
    with closing(HttpDispatch("http://127.0.0.1:9", timeout=0.2)) as away, pytest.raises(PlaneUnavailable):
        put(away, "k")


def test_a_key_that_is_none_is_refused(plane: HttpDispatch) -> None:
    with pytest.raises((DispatchError, ValueError), match="climb"):
        put(plane, "../k")


# ---- push_code


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "repo"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/__init__.py").write_text("")
    (folder / "job.py").write_text("def f(): return 1\n")
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@example.com"]
    for args in (
        ["init", "-q", "-b", "main"],
        ["remote", "add", "origin", "https://user:s3cret@example.com/a.git"],
        ["add", "-A"],
        ["commit", "-qm", "one"],
    ):
        subprocess.run([*git, *args], check=True)
    return folder


def test_code_is_pushed_once_for_each_tree(plane: HttpDispatch, line: Line, repo: Path) -> None:
    stamp = plane.push_code(repo)
    assert stamp is not None
    assert stamp["dirty"] is False
    assert "s3cret" not in repr(stamp)
    out = io.BytesIO()
    assert plane.get_file(stamp["storageName"], stamp["archiveKey"], out)
    assert "sha256:" + hashlib.sha256(out.getvalue()).hexdigest() == stamp["digest"]
    sent = line.sent
    assert plane.push_code(repo / "pkg") == stamp
    assert line.sent == sent
    (repo / "job.py").write_text("def f(): return 2\n")
    dirty = plane.push_code(repo)
    assert dirty is not None
    assert (dirty["dirty"], dirty["base"]) == (True, stamp["commit"])
    assert dirty["digest"] != stamp["digest"]


def test_another_process_finds_the_row_and_sends_nothing(plane: HttpDispatch, line: Line, repo: Path) -> None:
    stamp = plane.push_code(repo)
    sent = line.sent
    with closing(HttpDispatch(line.url, timeout=5)) as other:
        assert other.push_code(repo) == stamp
    assert line.sent - sent < 3_000


def test_outside_git_there_is_no_stamp_and_what_is_left_out_is_told(
    plane: HttpDispatch, tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plane.push_code(tmp_path) is None
    monkeypatch.chdir(tmp_path)
    assert plane.push_code() is None
    (repo / "link").symlink_to("job.py")
    with pytest.warns(UserWarning, match=r"left out of .*'link': a symbolic link"):
        plane.push_code(repo)
    plane.push_code(repo)  # told once
    (repo / "big").write_bytes(b"0" * 100)
    monkeypatch.setattr("lakeshore.codebase.git.TREE_BYTES", 50)
    with pytest.raises(TransportError, match="'big'"):
        plane.push_code(repo)


def test_a_download_is_bounded(plane: HttpDispatch) -> None:
    put(plane, "k", DATA)
    out = io.BytesIO()
    with pytest.raises(DispatchError, match=f"more than the {len(DATA) - 1:,} bytes"):
        plane.get_file("files", "k", out, most=len(DATA) - 1)
    assert len(out.getvalue()) < len(DATA)
    assert plane.get_file("files", "k", io.BytesIO(), most=len(DATA)) is not None
