"""Code that travels with its job: a real server, daemons elsewhere, and two commits of one module."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from integration.served import Process

from lakeshore import HttpDispatch, InvocationFailed, SyncQueue, run_worker, thunk

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with Process(tmp_path_factory.mktemp("server"), "--no-auth", "--log", "off") as process:
        yield process


@pytest.fixture
def q(server: Process, request: pytest.FixtureRequest) -> Iterator[SyncQueue]:
    with closing(HttpDispatch(server.url, timeout=10)) as plane:
        yield SyncQueue(request.node.name, dispatch=plane)


class Repo:
    """A git repository with one module, on this process's path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"travelling_{os.urandom(4).hex()}"
        self.git("init", "-q", "-b", "main")

    def git(self, *args: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.com")
        subprocess.run(["git", "-C", str(self.folder), *who, *args], check=True, capture_output=True)

    def write(self, text: str, name: str | None = None, *, commit: bool = True):
        path = self.folder / f"{name or self.name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if commit:
            self.git("add", "-A")
            self.git("commit", "-qm", "change")
        sys.modules.pop(self.name, None)
        importlib.invalidate_caches()
        return importlib.import_module(self.name) if name is None else None


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one size within a second
    folder = tmp_path / "repo"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = Repo(folder)
    yield made
    for name in [name for name in sys.modules if name.startswith(made.name)]:
        del sys.modules[name]


class Daemon:
    """Runs daemons in a folder of their own, with a home of their own."""

    def __init__(self, q: SyncQueue, url: str, folder: Path) -> None:
        self.q, self.url, self.folder, self.home = q, url, folder, folder / "home"
        self.root = folder / "root"
        self.root.mkdir(parents=True)

    def command(self, *flags: str) -> tuple[list[str], dict[str, str]]:
        args = ["--queue", self.q.name, "--url", self.url, "--root", str(self.root), *flags]
        return [sys.executable, "-m", "lakeshore.daemon", *args], {
            **os.environ,
            "LAKESHORE_HOME": str(self.home),
        }

    def once(self, *flags: str) -> str:
        command, env = self.command("--once", *flags)
        done = subprocess.run(command, env=env, cwd=self.root, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stderr


@pytest.fixture
def daemon(q: SyncQueue, server: Process, tmp_path: Path) -> Daemon:
    return Daemon(q, server.url, tmp_path / "worker")


TEXT = """
import os, sys, threading
import {name}_part as part

STATE = []

def f(x):
    STATE.append(x)
    return "{word}", part.WORD, x, len(STATE), os.getpid(), os.path.dirname(os.path.dirname(__file__))
"""


def write(repo: Repo, word: str, *, commit: bool = True):
    sys.modules.pop(f"{repo.name}_part", None)
    repo.write(f"WORD = {word!r}\n", f"{repo.name}_part", commit=False)
    return repo.write(TEXT.format(name=repo.name, word=word), commit=commit)


def test_two_commits_run_side_by_side_in_one_worker(q: SyncQueue, repo: Repo, daemon: Daemon) -> None:
    ids = []
    first = write(repo, "one")
    ids += [q.submit(thunk(first.f, n)) for n in range(2)]
    second = write(repo, "two")
    ids += [q.submit(thunk(second.f, n)) for n in range(2)]
    third = write(repo, "new", commit=False)  # a dirty tree
    ids += [q.submit(thunk(third.f, 0)), q.submit(thunk(first.f, 9))]
    assert q.status(ids[-1])
    command, env = daemon.command()
    process = subprocess.Popen(command, env=env, cwd=daemon.root, stderr=subprocess.PIPE, text=True)
    try:
        results = [q.result(id, timeout=60) for id in ids[:-1]]
        # the first module's file is not what it was when it was imported, so `auto` sent it by value
        with pytest.raises(InvocationFailed, match="PickleRefused"):
            q.result(ids[-1], timeout=60)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
    words = [(word, part, x, n) for word, part, x, n, _, _ in results]
    assert words == [
        ("one", "one", 0, 1),
        ("one", "one", 1, 2),  # what was loaded stays loaded
        ("two", "two", 0, 1),
        ("two", "two", 1, 2),
        ("new", "new", 0, 1),
    ]
    assert len({pid for *_, pid, _ in results}) == 3
    assert {Path(folder) for *_, folder in results} == {daemon.home / "code"}
    assert len(list((daemon.home / "code").iterdir())) == 3


def test_inline_two_commits_run_one_after_the_other_and_leave_nothing(
    q: SyncQueue, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESHORE_HOME", str(tmp_path / "home"))
    ids = []
    for word in ("one", "two"):
        ids.append(q.submit(thunk(write(repo, word).f, 0)))
    here = sys.modules[repo.name]
    before = list(sys.path)
    for _ in ids:
        assert run_worker(q, once=True, root=tmp_path) == 1
    assert [q.result(id)[:2] for id in ids] == [("one", "one"), ("two", "two")]
    assert sys.modules[repo.name] is here
    assert sys.path == before
    assert here.STATE == []


def test_a_package_under_src_with_data_beside_it(q: SyncQueue, repo: Repo, daemon: Daemon) -> None:
    package = f"{repo.name}_pkg"
    (repo.folder / "src" / package).mkdir(parents=True)
    (repo.folder / "src" / package / "__init__.py").write_text("")
    (repo.folder / "src" / package / "words.txt").write_text("data")
    (repo.folder / "src" / package / "mod.py").write_text(
        "from pathlib import Path\nfrom lakeshore import udf\n\n"
        "@udf(retries=0)\ndef g():\n    yield Path(__file__).with_name('words.txt').read_text()\n"
    )
    repo.git("add", "-A")
    sys.path.insert(0, str(repo.folder / "src"))
    try:
        module = importlib.import_module(f"{package}.mod")
        inv = module.g.submit(_queue=q)
        daemon.once()
        assert list(q.stream(inv)) == ["data"]
    finally:
        sys.path.remove(str(repo.folder / "src"))


def test_the_switch_turns_code_mounts_off(q: SyncQueue, repo: Repo, daemon: Daemon) -> None:
    inv = q.submit(thunk(write(repo, "one").f, 0))
    daemon.once("--no-code-mounts", "--retries", "0")
    with pytest.raises(InvocationFailed, match="is not of a package installed on this worker"):
        q.result(inv)
    assert not (daemon.home / "code").exists()


def test_outside_git_the_function_goes_by_value(q: SyncQueue, repo: Repo, daemon: Daemon) -> None:
    shutil.rmtree(repo.folder / ".git")
    path = repo.folder / f"{repo.name}.py"
    path.write_text("def f(x):\n    return x + 1\n")
    inv = q.submit(thunk(importlib.import_module(repo.name).f, 1))
    daemon.once("--allow-pickled")
    assert q.result(inv) == 2


def test_what_git_ignores_goes_by_value(q: SyncQueue, repo: Repo, daemon: Daemon) -> None:
    (repo.folder / ".gitignore").write_text(f"{repo.name}.py\n")
    module = repo.write("def f(x):\n    return x + 2\n")
    inv = q.submit(thunk(module.f, 1))
    daemon.once("--allow-pickled")
    assert q.result(inv) == 3


def test_a_module_with_a_name_of_the_standard_library_is_told_at_the_submit(
    q: SyncQueue, repo: Repo, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.write("def f(x):\n    return x + 4\n", "wave")
    monkeypatch.setitem(sys.modules, "wave", None)  # put back as it was
    del sys.modules["wave"]
    fn = importlib.import_module("wave").f
    with pytest.warns(UserWarning, match=r"f\(\) does not travel.*standard library.*Rename 'wave'"):
        inv = q.submit(thunk(fn, 1))
    daemon.once("--allow-pickled")
    assert q.result(inv) == 5


def test_a_channel_that_is_down_is_a_warning_and_not_a_failed_submit(
    q: SyncQueue, repo: Repo, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakeshore import PlaneUnavailable

    def away(*args: object, **kwargs: object) -> None:
        raise PlaneUnavailable("no storage today")

    monkeypatch.setattr(HttpDispatch, "put_file", away)
    module = repo.write("def f(x):\n    return x + 3\n")
    with pytest.warns(UserWarning, match=r"the code of f\(\) was not stored.*no storage today"):
        inv = q.submit(thunk(module.f, 1))
    again = q.submit(thunk(module.f, 2))  # not asked again at once
    for _ in range(2):
        daemon.once("--allow-pickled")
    assert (q.result(inv), q.result(again)) == (4, 5)


def test_a_tree_over_the_limit_fails_the_submit_and_names_the_files(
    q: SyncQueue, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakeshore import TransportError

    monkeypatch.setattr("lakeshore.codebase.git.TREE_BYTES", 1000)
    (repo.folder / "weights.bin").write_bytes(b"0" * 2000)
    module = repo.write("def f(x):\n    return x\n")
    with pytest.raises(TransportError, match=r"'weights.bin' \(2,000 bytes\).*lakeshoreignore"):
        q.submit(thunk(module.f, 1))
    assert q.count() == 0


# ---- hostile code through the server


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue())


BODY = b"def f(x):\n    return 'ran'\n"
HOSTILE = {
    "climbs": archive(("evil.py", tarfile.REGTYPE, BODY), ("../../up.py", tarfile.REGTYPE, BODY)),
    "absolute": archive(("evil.py", tarfile.REGTYPE, BODY), ("/tmp/up.py", tarfile.REGTYPE, BODY)),
    "link": archive(("evil.py", tarfile.REGTYPE, BODY), ("link", tarfile.SYMTYPE, b"")),
    "hard link": archive(("evil.py", tarfile.REGTYPE, BODY), ("link", tarfile.LNKTYPE, b"")),
    "pipe": archive(("evil.py", tarfile.REGTYPE, BODY), ("pipe", tarfile.FIFOTYPE, b"")),
    "case": archive(("evil.py", tarfile.REGTYPE, BODY), ("EVIL.py", tarfile.REGTYPE, BODY)),
    "bomb": gzip.compress(gzip.decompress(archive(("evil.py", tarfile.REGTYPE, bytes(40 << 20))))),
    "cut": archive(("evil.py", tarfile.REGTYPE, BODY))[:-10],
    "garbage": os.urandom(2000),
}


@pytest.fixture(scope="module")
def evil(server: Process, tmp_path_factory: pytest.TempPathFactory):
    """One worker that is given every hostile archive in turn."""
    with closing(HttpDispatch(server.url, timeout=10)) as plane:
        q = SyncQueue("hostile", dispatch=plane)
        yield q, Daemon(q, server.url, tmp_path_factory.mktemp("evil") / "worker")


def submit_stamped(q: SyncQueue, data: bytes, *, digest: str | None = None, **stamp: object) -> str:
    from lakeshore.wire import Envelope, pack

    found = hashlib.sha256(data).hexdigest()
    q.plane.put_file("code", f"{found}.tar.gz", io.BytesIO(data), len(data), found)  # type: ignore[attr-defined]
    code = {
        "digest": f"sha256:{digest or found}",
        "storageName": "code",
        "archiveKey": f"{found}.tar.gz",
        "roots": ["."],
        **stamp,
    }
    fn = {"kind": "ref", "module": "evil", "qualname": "f"}
    id = f"evil-{os.urandom(6).hex()}"
    envelope = Envelope(id=id, fn=fn, args=pack([1]), kwargs=pack({}), cfg={"code": code, "retries": 0})
    return q.submit(envelope=envelope.to_bytes(), id=id)


def test_hostile_archives_are_refused_whole_and_the_worker_goes_on(evil) -> None:
    q, daemon = evil
    ids = {what: submit_stamped(q, data) for what, data in HOSTILE.items()}
    good = archive(("evil.py", tarfile.REGTYPE, BODY))
    ids["another digest"] = submit_stamped(q, good, digest="0" * 64)
    ids["digest climbs"] = submit_stamped(q, good, digest="../" * 20)
    ids["root climbs"] = submit_stamped(q, good, roots=["../.."])
    ids["not stored"] = submit_stamped(q, good, archiveKey="absent.tar.gz", digest="1" * 64)
    last = submit_stamped(q, good)
    command, env = daemon.command("--retries", "3", "--isolation", "inline")
    process = subprocess.Popen(command, env=env, cwd=daemon.root, stderr=subprocess.DEVNULL)
    try:
        assert q.result(last, timeout=60) == "ran"
    finally:
        process.terminate()
        process.wait(30)
    for what, id in ids.items():
        row = q.status(id)
        assert row is not None
        assert (row["state"], row["attempt"]) == ("failed", 1), what
        assert row["error"].startswith("ArchiveRefused"), (what, row["error"])
    assert [p.name for p in (daemon.home / "code").iterdir()] == [hashlib.sha256(good).hexdigest()]
    assert not list(daemon.folder.rglob("up.py"))
    assert not Path("/tmp/up.py").exists()


def test_a_source_that_is_not_the_one_submitted_is_refused(q: SyncQueue, repo: Repo, daemon: Daemon) -> None:
    from lakeshore.wire import Envelope

    inv = q.submit(thunk(write(repo, "one").f, 0))
    envelope = Envelope.from_bytes(q.plane.envelope(inv))  # type: ignore[attr-defined]
    assert envelope.cfg["code"]["dirty"] is False
    envelope.fn["src_hash"] = "sha256:" + "0" * 16
    envelope.id = f"{inv}X"
    stale = q.submit(envelope=envelope.to_bytes(), id=envelope.id)
    for _ in range(2):
        daemon.once()
    with pytest.raises(InvocationFailed, match="StaleSource"):
        q.result(stale)
    assert q.result(inv)[0] == "one"
