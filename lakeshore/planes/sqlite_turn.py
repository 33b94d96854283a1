"""Whose turn it is to write: a fair order among threads and processes before SQLite's own lock.

SQLite's busy timeout starves: with four writers one may get nothing. So writers queue at a turnstile,
two record locks on a side file: whoever waits to write holds the turnstile, so the last writer cannot
come round again before it. The locks only order; safety stays SQLite's. Record locks belong to the
process, are not inherited by fork, and vanish with it. A holder that was stopped delays others by at
most a second.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from lakeshore.planes.sqlite_files import make_private

try:
    import fcntl
except ImportError:  # Windows: threads are ordered, processes are left to SQLite's busy handler
    fcntl = None  # type: ignore[assignment]

PATIENCE = 1.0
_TURNSTILE, _WRITER = 0, 1
_SHORT, _LONG = 0.00005, 0.001


class Turn:
    """The order of writers on one file.

    One object serves all planes of a process on one file, since closing any descriptor of the side
    file would drop the process's locks; get it from `turn_for`. Take a turn as::

        turn.announce()
        with turn.lock:
            try:
                turn.queue_up()
                ...  # write
            finally:
                turn.leave()
        turn.yield_to_others()

    `lock` is a plain lock, since only entering one of those cannot be torn apart by Ctrl-C.
    """

    def __init__(self, side: Path | None) -> None:
        self.lock = threading.Lock()
        self._side = side
        self._fd = -1
        self._announced: dict[int, None] = {}

    def announce(self) -> None:
        """Say that this thread waits for a turn."""
        self._announced[threading.get_ident()] = None

    def leave(self) -> None:
        """Let other processes have their turn."""
        if self._fd >= 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _WRITER)

    def yield_to_others(self) -> None:
        """Let a waiting thread have the lock, which of itself does not queue."""
        if self._announced:
            time.sleep(_SHORT)

    def queue_up(self) -> None:
        """Wait for this process's turn, at most about `PATIENCE`; within `lock`."""
        self._announced.pop(threading.get_ident(), None)
        if self._side is None or fcntl is None:
            return
        if self._fd < 0:
            make_private(self._side)
            self._fd = os.open(self._side, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            self._wait(_TURNSTILE, _LONG)
            self._wait(_WRITER, _SHORT)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _TURNSTILE)

    def _try(self, which: int) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, which)
        except OSError:
            return False
        return True

    def _wait(self, which: int, pause: float) -> None:
        if self._try(which):
            return
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(pause)
            if self._try(which):
                return

    def close_for_fork(self) -> None:
        """Close the side file; it opens again at the next turn. Called while no turn is held."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def renew(self) -> None:
        """Begin anew in a forked child, whose other threads are gone."""
        self.lock = threading.Lock()
        self._announced.clear()


_turns: dict[str, Turn] = {}
_turns_lock = threading.Lock()


def turn_for(path: Path | None) -> Turn:
    """Return the process's one `Turn` for a database file; None gives a new one without a side file."""
    if path is None:
        return Turn(None)
    real = str(path.resolve())
    with _turns_lock:
        if real not in _turns:
            _turns[real] = Turn(Path(f"{real}-writers"))
        return _turns[real]


def all_turns() -> list[Turn]:
    """Return every turn of the process that has a side file."""
    return list(_turns.values())
