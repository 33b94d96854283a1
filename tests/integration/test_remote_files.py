"""Files across machines: what one worker wrote, another reads, and the notebook fetches."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from integration.served import Process

from lakeshore import (
    Dispatch,
    HttpDispatch,
    InvocationFailed,
    KeyContractError,
    Queue,
    SyncQueue,
    run,
    run_worker,
    scope,
    thunk,
)
from lakeshore.errors import DispatchError, UnknownInvocation
from lakeshore.planes import files, http_files


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with Process(tmp_path_factory.mktemp("server"), "--no-auth", "--log", "off") as process:
        yield process


@pytest.fixture
def q(server: Process, request: pytest.FixtureRequest) -> Iterator[SyncQueue]:
    ns = request.node.name[:200]
    with closing(HttpDispatch(server.url, namespace=ns, timeout=10)) as plane:
        yield SyncQueue("files", dispatch=plane)


def work(q: SyncQueue, root: Path, **options: object) -> None:
    assert run_worker(q, once=True, root=root, allow_pickled=True, retries=0, **options) == 1  # type: ignore[arg-type]


def by_value(fn):
    return thunk(fn).with_options(transport="pickle")


def write():
    with scope("deep"):
        run.write("model.bin").write_bytes(b"weights" * 1000)
    run.write("out/notes.txt").write_text("notes")
    folder = run.write("tree", dir=True)
    (folder / "sub").mkdir()
    (folder / "sub/leaf").write_text("leaf")
    (folder / "empty").mkdir()
    return {"model": "deep/model.bin", "notes": "out/notes.txt", "tree": "tree"}


def read():
    paths = run.read_all(["deep/model.bin", "out/notes.txt", "tree"])
    leaf = (paths[2] / "sub/leaf").read_text()
    return len(paths[0].read_bytes()), paths[1].read_text(), leaf, (paths[2] / "empty").is_dir()


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_key_written_by_one_worker_is_read_by_another(q: SyncQueue, tmp_path: Path, isolation: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with scope("scene/7"):
        wrote, reads = q.submit(by_value(write)), q.submit(by_value(read))
    work(q, tmp_path / "one", isolation=isolation)
    assert not (tmp_path / "two/scene").exists()
    work(q, tmp_path / "two", isolation=isolation)
    assert q.result(reads) == (7000, "notes", "leaf", True)
    assert (tmp_path / "two/scene/7/out/notes.txt").read_text() == "notes"
    assert not list(tmp_path.rglob(".fetching-*"))
    keys = q.result(wrote)
    assert q.fetch(wrote, keys["model"], tmp_path / "here.bin") == tmp_path / "here.bin"
    assert (tmp_path / "here.bin").read_bytes() == b"weights" * 1000


def test_a_daemon_elsewhere_writes_and_the_notebook_reads(
    q: SyncQueue, server: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inv = q.submit(by_value(write))
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "lakeshore.daemon", "--queue", "files", "--once"]
    more = ["--allow-pickled", "--retries", "0"]
    flags = [*more, "--url", server.url, "--namespace", q.plane.namespace, "--root", str(elsewhere)]  # type: ignore[attr-defined]
    here = str(Path(__file__).parents[1])  # this module is importable there, and so must what it imports be
    env = {**os.environ, "LAKESHORE_HOME": str(tmp_path / "home"), "PYTHONPATH": here}
    assert subprocess.run([*command, *flags], cwd=elsewhere, env=env, capture_output=True).returncode == 0
    assert q.result(inv)["tree"] == "tree"

    path = q.fetch(inv, "out/notes.txt")
    assert path.read_text() == "notes"
    assert q.fetch(inv, "out/notes.txt") == path
    assert (q.fetch(inv, "tree") / "sub/leaf").read_text() == "leaf"
    assert (q.fetch(inv, "tree") / "sub/leaf").read_text() == "leaf"  # again, over what is there
    (tmp_path / "given").mkdir()
    assert q.fetch(inv, "out/notes.txt", tmp_path / "given") == tmp_path / "given/notes.txt"

    async def afetch() -> Path:
        return await Queue("files", dispatch=q.plane).fetch(inv, "deep/model.bin", tmp_path / "m.bin")

    assert asyncio.run(afetch()).stat().st_size == 7000

    from lakeshore.planes.default import set_default_plane

    monkeypatch.setenv("LAKESHORE_URL", server.url)
    set_default_plane(q.plane)
    try:
        assert run.read("out/notes.txt") == tmp_path / "out/notes.txt"
        assert run.read("out/notes.txt").read_text() == "notes"
        with pytest.raises(FileNotFoundError, match="has no file"):
            run.read("absent")
    finally:
        set_default_plane(None)


def test_each_job_keeps_its_own_and_the_key_holds_the_last(q: SyncQueue, tmp_path: Path) -> None:
    def job(n):
        run.write("k").write_text(str(n))
        return "k"

    ids = [q.submit(thunk(job, n).with_options(transport="pickle")) for n in range(2)]
    for _ in ids:
        work(q, tmp_path / "one")
    assert [q.fetch(id, "k", tmp_path / f"{n}").read_text() for n, id in enumerate(ids)] == ["0", "1"]
    last = q.submit(by_value(lambda: run.read("k").read_text()))
    work(q, tmp_path / "two")
    assert q.result(last) == "1"


def test_a_yielded_key_can_be_fetched_while_the_job_runs(q: SyncQueue, tmp_path: Path) -> None:
    def job():
        for n in range(2):
            run.write(f"part{n}").write_text(str(n))
            yield f"part{n}"

    inv = q.submit(by_value(job))
    found = []
    whole = type(q.plane).journal_append

    def spy(plane, id, *args, **kwargs):
        done = whole(plane, id, *args, **kwargs)
        if id == inv and len(found) < 2:
            found.append(q.fetch(inv, f"part{len(found)}", tmp_path / f"{len(found)}").read_text())
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(q.plane), "journal_append", spy)
        work(q, tmp_path / "root")
    assert list(q.stream(inv)) == ["part0", "part1"]
    assert found[0] == "0"
    assert q.fetch(inv, "part1", tmp_path / "last").read_text() == "1"


def test_what_is_not_stored_says_so(q: SyncQueue, tmp_path: Path) -> None:
    inv = q.submit(by_value(lambda: "data that is no key"))
    with pytest.raises(FileNotFoundError, match=r"\(queued\) has stored no file 'k'"):
        q.fetch(inv, "k")
    work(q, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\(succeeded\)"):
        q.fetch(inv, "k")
    with pytest.raises(KeyContractError):
        q.fetch(inv, "../up")
    with pytest.raises(UnknownInvocation):
        q.fetch("01ABSENT", "k")
    with closing(HttpDispatch(q.plane._tries.address.url, namespace="stranger")) as plane:  # type: ignore[attr-defined]
        with pytest.raises(UnknownInvocation):
            SyncQueue("files", dispatch=plane).fetch(inv, "k")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="wants a folder that takes no file, of any user")
def test_a_place_that_takes_no_file_says_so(q: SyncQueue, tmp_path: Path) -> None:
    inv = q.submit(by_value(write))
    work(q, tmp_path)
    with pytest.raises(DispatchError, match=r"nothing can be written in '/proc': .*Name another place"):
        q.fetch(inv, "out/notes.txt", "/proc/x")


def test_a_job_that_fails_stores_nothing(q: SyncQueue, tmp_path: Path) -> None:
    def job():
        run.write("k").write_text("half")
        raise ValueError("after the write")

    inv = q.submit(by_value(job))
    work(q, tmp_path)
    with pytest.raises(FileNotFoundError):
        q.fetch(inv, "k")


def test_a_folder_that_cannot_travel_fails_its_job_with_the_reason(q: SyncQueue, tmp_path: Path) -> None:
    def job():
        folder = run.write("tree", dir=True)
        (folder / "link").symlink_to("/etc/passwd")
        return "tree"

    inv = q.submit(by_value(job))
    work(q, tmp_path)
    with pytest.raises(InvocationFailed, match=r"'tree': the folder cannot travel: 'link' is a link"):
        q.result(inv)


@pytest.mark.parametrize("isolation", ["inline", "process"])
@pytest.mark.parametrize("yields", [False, True], ids=["returned", "yielded"])
def test_only_regular_files_within_the_root_are_stored(
    q: SyncQueue, tmp_path: Path, isolation: str, yields: bool
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("s")
    secret = str(tmp_path / "secret")

    def job(kind):
        import os
        import socket

        path = run.write(kind)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            before = os.getcwd()  # noqa: PTH109
            os.chdir(path.parent)  # a socket's name has room for few letters
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(kind)
            os.chdir(before)
        else:
            path.symlink_to(secret)
        return kind

    def stream(kind):
        yield job(kind)

    kinds = {"pipe": "pipe, a socket", "socket": "socket|No such device", "link": "leads out of the root"}
    for kind, said in kinds.items():
        inv = q.submit(thunk(stream if yields else job, kind).with_options(transport="pickle"))
        work(q, tmp_path / "root", isolation=isolation)
        with pytest.raises(InvocationFailed, match=f"'{kind}'.*({said})"):
            q.result(inv, timeout=5)
        with pytest.raises(FileNotFoundError):
            q.fetch(inv, kind)


@pytest.mark.parametrize("replaced", [False, True], ids=["written", "replaced"])
def test_what_a_body_writes_into_a_path_it_read_is_not_read_by_others(
    q: SyncQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setenv("LAKESHORE_HOME", str(tmp_path / "home"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def job():
        run.write("m").write_text("1")
        (run.write("tree", dir=True) / "leaf").write_text("1")
        return ["m", "tree"]

    def spoil():
        for path in (run.read("m"), run.read("tree") / "leaf"):
            if replaced:
                path.with_name("new").write_text("9")
                path.with_name("new").replace(path)
            else:
                path.write_text("9")

    def seen():
        return run.read("m").read_text(), (run.read("tree") / "leaf").read_text()

    def rewrite():
        run.write("m").write_text(run.read("m").read_text() + "2")
        run.write("tree/leaf").write_text("3")
        return ["m", "tree/leaf"]

    q.submit(by_value(job))
    work(q, tmp_path / "one")
    q.submit(by_value(spoil))
    work(q, tmp_path / "two")
    before = q.submit(by_value(seen))
    work(q, tmp_path / "two")
    assert q.result(before) == ("1", "1")
    assert (tmp_path / "two/.changed-m").read_text() == "9"
    assert (tmp_path / "two/.changed-tree/leaf").read_text() == "9"
    q.submit(by_value(rewrite))
    work(q, tmp_path / "two")
    after = q.submit(by_value(seen))
    work(q, tmp_path / "two")
    assert q.result(after) == ("12", "3")


def test_a_local_plane_fetches_from_where_it_lies(tmp_path: Path) -> None:
    with Dispatch(":memory:") as plane:
        q = SyncQueue("files", dispatch=plane)
        inv = q.submit(by_value(write))
        work(q, tmp_path / "root")
        with scope("", root=tmp_path / "root"):
            assert q.fetch(inv, "out/notes.txt") == tmp_path / "root/out/notes.txt"
            assert (q.fetch(inv, "tree", tmp_path / "copy") / "sub/leaf").read_text() == "leaf"
        with pytest.raises(FileNotFoundError, match="within scope"):
            q.fetch(inv, "out/notes.txt")


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
def test_the_places_of_the_page_are_those_that_it_says(
    remote: bool, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/code-and-files.md").read_text("utf-8")
    lines = re.findall(r'^path = (q\.fetch\(inv, "out/model\.bin".*\))', page, re.MULTILINE)
    assert len(lines) == 3
    root = tmp_path / "root"

    def job():
        run.write("out/model.bin").write_bytes(b"weights")
        (run.write("tree", dir=True) / "leaf").write_text("leaf")
        return ["out/model.bin", "tree"]

    with contextlib.ExitStack() as opened:
        if remote:
            q = request.getfixturevalue("q")
            below = tmp_path / "home"
            monkeypatch.setenv("LAKESHORE_HOME", str(below))
        else:
            q, below = SyncQueue("files", dispatch=opened.enter_context(Dispatch(":memory:"))), root
        monkeypatch.chdir(tmp_path)
        inv = q.submit(by_value(job))
        work(q, root)
        opened.enter_context(scope("", root=root))
        first, *given = [eval(line, {"q": q, "inv": inv}) for line in lines]
        assert first.is_relative_to(below)
        assert given == [tmp_path / "here/model.bin", tmp_path / "best.bin"]
        assert {path.read_bytes() for path in (first, *given)} == {b"weights"}
        assert q.fetch(inv, "out/model.bin", Path("here")) == tmp_path / "here/model.bin"
        for _ in range(2):  # again, over what is there
            tree = q.fetch(inv, "tree", "here/")
            assert tree == tmp_path / "here/tree"
            assert (tree / "leaf").read_text() == "leaf"
        for dest in ("best.bin/", "best.bin/within"):
            with pytest.raises(ValueError, match=r"best\.bin' is a file\. Name a folder"):
                q.fetch(inv, "out/model.bin", dest)
        assert q.fetch(inv, "out/model.bin", root / "out") == root / "out/model.bin"


def test_an_upload_goes_on_after_the_server_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_files, "PART_BYTES", 100_000)
    data = os.urandom(1_000_000)
    digest = hashlib.sha256(data).hexdigest()
    source = tmp_path / "data"
    source.write_bytes(data)
    sent: list[str] = []
    with Process(tmp_path / "home", "--no-auth", "--log", "off") as server:
        with closing(HttpDispatch(server.url, timeout=30)) as plane:
            whole = HttpDispatch._once_more

            def spy(self, verb, method, path, content, headers):
                answer = whole(self, verb, method, path, content, headers)
                if content and method == "PUT":
                    sent.append(headers["Content-Range"])
                    if len(sent) in (3, 7):
                        server.stop(signal.SIGKILL)
                        server.start()
                return answer

            monkeypatch.setattr(HttpDispatch, "_once_more", spy)
            with source.open("rb") as file:
                plane.put_file("files", "big", file, len(data), digest)
            assert len(sent) == len(set(sent)) == 10  # no part was sent twice
            assert files.fetch(plane, "files", "big", tmp_path / "back")
            assert (tmp_path / "back").read_bytes() == data


_UPLOAD = """
import sys
from lakeshore import HttpDispatch
from lakeshore.planes import http_files
http_files.PART_BYTES = 100_000
plane = HttpDispatch(sys.argv[1], timeout=30)
whole = HttpDispatch._once_more
def slow(self, verb, method, path, content, headers):
    answer = whole(self, verb, method, path, content, headers)
    if content and method == "PUT":
        print(headers["Content-Range"], flush=True)
        if sys.argv[4] == "stop":
            sys.stdin.readline()
    return answer
HttpDispatch._once_more = slow
with open(sys.argv[2], "rb") as file:
    plane.put_file("files", "killed", file, 500_000, sys.argv[3])
print("done", flush=True)
"""


def test_an_upload_goes_on_after_its_sender_was_killed(server: Process, tmp_path: Path) -> None:
    data = os.urandom(500_000)
    source = tmp_path / "data"
    source.write_bytes(data)
    args = [sys.executable, "-c", _UPLOAD, server.url, str(source), hashlib.sha256(data).hexdigest()]
    first = subprocess.Popen([*args, "stop"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None and first.stdout is not None
    assert first.stdout.readline() == "bytes 0-99999/500000\n"
    first.stdin.write("\n")
    first.stdin.flush()
    assert first.stdout.readline() == "bytes 100000-199999/500000\n"
    first.kill()
    first.communicate()
    with closing(HttpDispatch(server.url, timeout=10)) as plane:
        assert not files.fetch(plane, "files", "killed", tmp_path / "early")
        again = subprocess.run([*args, "go"], capture_output=True, text=True, timeout=60)
        assert again.stdout.splitlines() == [
            "bytes 200000-299999/500000",
            "bytes 300000-399999/500000",
            "bytes 400000-499999/500000",
            "done",
        ]
        assert files.fetch(plane, "files", "killed", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
