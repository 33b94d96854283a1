"""Checks of a SQLite plane's file and of the SQLite that opens it, each with how to mend what it finds.

The file, its -wal and its -shm are never opened here: they are told by `stat`, or asked through the plane.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import statements
from lakeshore.planes.doorbell import is_own_folder, open_bell
from lakeshore.planes.engine import Transaction
from lakeshore.planes.health import Finding
from lakeshore.planes.measures import Measure
from lakeshore.planes.sqlite_connection import WAL_LIMIT_BYTES, Connection, refuse_old_sqlite
from lakeshore.planes.sqlite_files import bells_of, file_system, refuse_network

if TYPE_CHECKING:
    from lakeshore.planes.sqlite import Dispatch

LARGE_BYTES: Final = 1024**3
FREE_BYTES: Final = 256 * 1024**2
_MIB: Final = 1024**2
_PIPES: Final = "wake-up pipes"
_ROWS: Final = {"invocation": "jobs", "journal": "journals", "frame": "frames", "payload": "payloads"}
"""What people call the rows of a table."""


def sqlite_version() -> Finding:
    """Check that the SQLite in use has no WAL-reset bug."""
    version = apsw.sqlite_lib_version()
    try:
        refuse_old_sqlite()
    except PlaneUnavailable:
        found = f"{version} can lose committed writes when processes share a file"
        return Finding("sqlite", "fault", found, "pip install -U apsw")
    return Finding("sqlite", "ok", f"{version} (apsw {apsw.apsw_version()})")


def file_checks(path: Path) -> Iterator[Finding]:
    """Check the file of a plane, its directory and its disk."""
    if not path.exists():
        fix = "end every process that uses it, then restore a backup, or go on with a new file"
        yield Finding("file", "fault", f"{path} was removed while it is in use", fix)
        return
    yield _file_system(path)
    yield _disk(path)
    yield _permissions(path)
    yield _size(path)
    yield _wal(path)
    yield _bells(bells_of(path))


def row_checks(plane: Dispatch) -> Iterator[Finding]:
    """Check what is in a plane's file, by a few pages of it."""
    seen = _look(plane)
    (size, reusable), rows = seen["pages"][0], dict(seen["estimates"])
    counts = [f"{n:,} {_ROWS[table]}" for table, n in rows.items() if n]
    found = f"about {', '.join(counts)}" if counts else "none"
    if reusable:
        found += f"; {reusable / _MIB:,.1f} of {size / _MIB:,.1f} MiB are free for new rows"
    oldest = seen["oldest_finished"][0][0]
    if oldest is not None:
        found += f"; the oldest ended job ended {max(time.time() - oldest, 0.0) / 86400:,.1f} days ago"
    yield Finding("rows", "ok", found)


def measures(plane: Dispatch) -> Iterator[Measure]:
    """Yield what can be measured of a plane's file and of the disk that it is on."""
    seen, path = _look(plane), plane.path
    if path is None:
        yield Measure("bytes", seen["pages"][0][0], ("file",))
    else:
        yield Measure("bytes", _bytes(path), ("file",))
        yield Measure("bytes", _bytes(path.with_name(f"{path.name}-wal")), ("wal",))
        yield Measure("free_bytes", shutil.disk_usage(path.parent).free)
    yield Measure("reusable_bytes", seen["pages"][0][1])
    for table, rows in seen["estimates"]:
        yield Measure("rows", rows, (table,))
    oldest = seen["oldest_finished"][0][0]
    if oldest is not None:
        yield Measure("oldest_finished_timestamp_seconds", oldest)
    yield Measure("schema_version", seen["version"][0][0])


def _look(plane: Dispatch) -> dict[str, list[tuple[Any, ...]]]:
    def work(tx: Transaction) -> dict[str, list[tuple[Any, ...]]]:
        assert isinstance(tx, Connection)
        return {name: list(tx.raw.execute(sql)) for name, sql in statements.load("sqlite_health.sql").items()}

    return plane._read(work)


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _file_system(path: Path) -> Finding:
    kind = file_system(path.parent) or "unknown"
    try:
        refuse_network(path.parent)
    except PlaneUnavailable:
        found = f"{kind}: a network file system, taken because LAKESHORE_ALLOW_NETWORK_FS=1"
        fix = "its locks may not hold: use a local directory (LAKESHORE_HOME), or a control plane"
        return Finding("file system", "fault", found, fix)
    return Finding("file system", "ok", kind)


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    found = f"{free / _MIB:,.0f} MiB free"
    if free < FREE_BYTES:
        fix = (
            f"make space on the disk of {path.parent} (lakeshore prune --older-than 30d lets rows be reused)"
        )
        return Finding("disk", "fault", found, fix)
    return Finding("disk", "ok", found)


def _permissions(path: Path) -> Finding:
    """Whether others may read what jobs say, or write, and so run code as this user."""
    file, folder = path.stat(), path.resolve().parent.stat()
    others_write = stat.S_IWGRP | stat.S_IWOTH
    problems = []
    if file.st_uid != os.geteuid():
        problems.append("the file belongs to another user")
    if file.st_mode & 0o077:
        verb = "write to" if file.st_mode & others_write else "read"
        problems.append(f"others may {verb} the file (mode {stat.S_IMODE(file.st_mode):04o})")
    if folder.st_mode & others_write and not folder.st_mode & stat.S_ISVTX:
        problems.append(f"others may write to its directory (mode {stat.S_IMODE(folder.st_mode):04o})")
    if problems:
        fix = f"chmod 600 {path}; chmod go-w {path.parent}"
        return Finding("permissions", "fault", "; ".join(problems), fix)
    return Finding("permissions", "ok", f"yours alone ({stat.S_IMODE(file.st_mode):04o})")


def _size(path: Path) -> Finding:
    size = path.stat().st_size
    found = f"{size / _MIB:,.1f} MiB in {path}"
    if size > LARGE_BYTES:
        fix = "lakeshore prune --older-than 30d, and LAKESHORE_KEEP=30d so that idle workers do it"
        return Finding("file size", "fault", found, fix)
    return Finding("file size", "ok", found)


def _wal(path: Path) -> Finding:
    size = _bytes(path.with_name(f"{path.name}-wal"))
    found = f"{size / _MIB:,.1f} MiB"
    if size > WAL_LIMIT_BYTES:
        fix = "a reader holds it open: end backups, database viewers and stopped processes that use the file"
        return Finding("wal", "fault", found, fix)
    return Finding("wal", "ok", found)


def _bells(folder: Path) -> Finding:
    """Whether killed processes left wake-up pipes behind, which each writer then looks at."""
    stale = total = 0
    try:
        if not is_own_folder(folder):
            found = f"{folder} is not a folder of yours alone, so it is not used; waits look again and again"
            return Finding(_PIPES, "fault", found, f"remove it: rm -r {folder}")
        bells = list(folder.iterdir())
    except FileNotFoundError:
        bells = []
    except OSError as error:
        found = f"{folder} cannot be read: {error.strerror}; waits are found out by looking again"
        return Finding(_PIPES, "fault", found, f"chown it to yourself, or remove it: rm -r {folder}")
    for bell in bells:
        try:
            if not stat.S_ISFIFO(bell.lstat().st_mode):
                continue
            total += 1
            os.close(open_bell(bell))
        except OSError as error:
            stale += error.errno == errno.ENXIO  # no process has it open; other errors: gone meanwhile
    if stale:
        found = f"{stale} of {total} left by killed processes"
        fix = "nothing to do: the next waiting process sweeps them"
        return Finding(_PIPES, "note", found, fix)
    return Finding(_PIPES, "ok", f"{total} in use, none left behind")
