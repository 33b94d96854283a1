"""Whether an open database still lies where it was opened: who writes to a deleted file loses what he writes.

SQLite goes on with a file that was deleted, renamed or replaced, and nobody else would see it. So before
each transaction the folder is looked at, which costs a microsecond: while its time of change stays, every
name in it means the file that it meant.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from lakeshore.errors import PlaneUnavailable

_BESIDE = ("-wal", "-shm")
_SETTLED_NS = 100_000_000
"""A change may come so soon after another that the folder's time does not tell them apart, nanoseconds."""
_COARSE_NS = 1_000_000_000
_stat = os.stat  # a Path would cost as much as the call


class Place:
    """Where a database's files are.

    Parameters
    ----------
    path : Path
        The database, which exists.
    """

    def __init__(self, path: Path) -> None:
        real = path.resolve()
        self._path, self._real = str(path), str(real)
        self._folder = str(real.parent)
        self._plain = self._path == self._real
        self._files = {self._path: _mark(_stat(self._path))}
        self._sound: tuple[int, int, int] | None = None

    def check(self) -> None:
        """Do nothing while all files are where they were.

        Raises
        ------
        PlaneUnavailable
            When one was moved, replaced or deleted.
        """
        try:
            folder = _stat(self._folder)
            if (folder.st_mtime_ns, folder.st_ino, folder.st_dev) == self._sound:
                return
            for name, mark in self._files.items():
                if _mark(_stat(name)) != mark:
                    raise _moved(name, "another file is in its place")
        except OSError as error:
            raise _moved(str(error.filename), error.strerror or str(error)) from error
        # A link leads through folders whose changes this folder does not tell of.
        settled = time.time_ns() - folder.st_mtime_ns > _SETTLED_NS and folder.st_mtime_ns % _COARSE_NS
        if self._plain and settled:
            self._sound = (folder.st_mtime_ns, folder.st_ino, folder.st_dev)

    def opened(self) -> None:
        """Note the files beside the database, which a connection has just opened; raises as `check` does."""
        for suffix in _BESIDE:
            name = f"{self._real}{suffix}"
            with contextlib.suppress(FileNotFoundError):  # not in use while the database is no WAL yet
                self._files.setdefault(name, _mark(_stat(name)))
        self._sound = None
        self.check()

    def closed(self) -> None:
        """Forget the files beside the database: no connection is open, and the next may make new ones."""
        self._files = {self._path: self._files[self._path]}
        self._sound = None


def _mark(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _moved(name: str, why: str) -> PlaneUnavailable:
    return PlaneUnavailable(
        f"{name!r}: the file was moved or deleted while open ({why}): nobody else would see what is written "
        "to it, so nothing was. Put it back, or restart this program (make a new Dispatch) to go on with "
        "what is there now. Jobs in the old file are in the old file still."
    )
