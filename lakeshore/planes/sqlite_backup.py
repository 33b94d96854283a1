"""A copy of a SQLite plane while others write to it: SQLite's online backup, verified before it is named.

The copy is of one moment. It is written under a name of its own beside the target, and only a sound one
gets the name that was asked for, so no backup is ever half of one.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes.engine import Transaction
from lakeshore.planes.sqlite import Dispatch
from lakeshore.planes.sqlite_connection import Connection
from lakeshore.planes.sqlite_files import make_private

_STEP_PAGES: Final = 500
_VM_STEPS: Final = 100_000
"""How often a long check looks whether Ctrl-C was pressed, in SQLite's own instructions."""

Progress = Callable[[int, int], object]


def back_up(plane: Dispatch, target: Path, *, progress: Progress | None = None) -> int:
    """Copy `plane` to the file `target` while others go on writing; returns its size in bytes.

    Parameters
    ----------
    plane : Dispatch
        What is copied: every namespace of its file, as of one moment.
    target : Path
        The file to make, mode 0600, whatever the umask. It must not exist.
    progress : callable, optional
        Told ``(pages copied, pages in all)`` as it goes.

    Raises
    ------
    ValueError
        When `target` exists, or its directory does not; nothing is written.
    PlaneUnavailable
        When the disk is full or the copy is damaged; nothing is left behind.
    """
    target = target.expanduser().absolute()
    refuse_target(target)
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        make_private(part)
        failed = plane._read(lambda tx: _copy(tx, part, progress))
        if failed is not None:
            raise failed
        _verify(part)
        size = part.stat().st_size
        _name(part, target)
    except apsw.Error as error:
        raise PlaneUnavailable(
            f"backup: {plane!r} to {str(target)!r}: {error}. Nothing was kept of it. Make space, or name a "
            "file on another disk."
        ) from error
    except OSError as error:
        if isinstance(error, FileExistsError):
            refuse_target(target)
        raise PlaneUnavailable(
            f"backup: {str(target)!r}: {error.strerror or error}. Name a file on a writable disk."
        ) from error
    finally:
        for leftover in (part, part.with_name(part.name + "-journal"), part.with_name(part.name + "-wal")):
            leftover.unlink(missing_ok=True)
    return size


def refuse_target(target: Path) -> None:
    """Refuse a name that is taken, or lies in no directory.

    Raises
    ------
    ValueError
        Naming it.
    """
    if target.is_symlink() or target.exists():
        raise ValueError(f"backup: {str(target)!r} exists, and is not overwritten. Name another file.")
    if not target.parent.is_dir():
        raise ValueError(
            f"backup: the directory {str(target.parent)!r} does not exist. Make it, or name another file."
        )


def _copy(source: Transaction, part: Path, progress: Progress | None) -> apsw.Error | None:
    """Copy to `part`; returns what SQLite failed with, which `_read` would take for a fault of the plane."""
    assert isinstance(source, Connection)
    made: apsw.Connection | None = None
    try:
        made = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
        # Within a read transaction every step sees one moment. Without it each write of another process
        # would start the copy anew, and a busy plane could never be copied.
        source.execute("BEGIN")
        try:
            source.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            with made.backup("main", source.raw, "main") as copying:
                while not copying.done:
                    copying.step(_STEP_PAGES)
                    if progress is not None:
                        progress(copying.page_count - copying.remaining, copying.page_count)
        finally:
            source.execute("ROLLBACK")
        made.pragma("journal_mode", "delete")  # one file, whole without a WAL; a plane sets its own again
    except apsw.Error as error:
        return error
    finally:
        if made is not None:
            made.close()
    return None


def _verify(part: Path) -> None:
    made = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        made.set_progress_handler(lambda: False, _VM_STEPS)
        found = [str(row[0]) for row in made.execute("PRAGMA integrity_check(3)")]
    finally:
        made.close()
    if found != ["ok"]:
        raise PlaneUnavailable(
            f"backup: the copy is damaged ({'; '.join(found)}), so it was not kept. The plane's file, or the "
            "disk, is at fault: keep the file, and restore an older backup."
        )


def _name(part: Path, target: Path) -> None:
    """Give the copy its name, unless the name was taken meanwhile."""
    try:
        target.hardlink_to(part)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        make = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)  # a disk without hard links
        os.close(make)
        part.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
