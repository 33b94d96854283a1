"""Whose turn it is to write: a fair order among threads and processes before SQLite's own lock.

SQLite's busy timeout starves: with four writers one may get nothing. So writers wait for a record lock
on a side file, in the kernel, which wakes who waits at once and in order: looking again and again would
cost more than a write, and come late. To wake another process costs more than a write too: of those that
write without a pause one writes for a slice of time, while the others queue for a second lock. The locks
only order; safety stays SQLite's. Record locks belong to the process, are not inherited by fork, and
vanish with it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from lakeshore.planes.sqlite_files import make_private

try:
    import fcntl
except ImportError:  # Windows: threads are ordered, processes are left to SQLite's busy handler
    fcntl = None  # type: ignore[assignment]

PATIENCE = 1.0
"""How long a writer waits for its turn, seconds; then it goes on without (the holder may be stopped)."""
_SIDE = "-writers"
_WRITER, _QUEUE = 1, 2
"""The bytes of the side file that are locked: by who writes, and by who is next of those in a hurry."""
_SLICE = 0.001
"""How long who is next lets another process write on, seconds."""
_PAUSE = 0.0006
"""Who comes back this soon, seconds, writes without a pause: whoever waits meanwhile gains by a slice."""
_YIELD = 0.00005


class Turn:
    """The order of writers on one file.

    One object serves all planes of a process on one file, since closing any descriptor of the side
    file would drop the process's locks; get it from `turn_for`. Take a turn as::

        turn.waiting[get_ident()] = None
        try:
            with turn.lock:
                try:
                    turn.take()
                    ...  # write
                finally:
                    turn.leave()
        finally:
            turn.waiting.pop(get_ident(), None)
        turn.yield_to_others()

    An exception may strike between any two steps (Ctrl-C, a cancelled body). So `lock` is a plain lock,
    which a ``with`` takes and frees in one step, and `leave` is no Python function, which could be
    interrupted before its first line.

    Attributes
    ----------
    lock : Lock
        The order among this process's threads.
    waiting : dict
        The threads that wait for `lock` or hold it, which of itself does not queue.
    leave : callable
        Lets other processes have their turn.
    left : float
        When this process last ended a write, by the monotonic clock.
    """

    def __init__(self, side: Path | None) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[int, None] = {}
        self.leave: Callable[[], object] = bool
        self.left = 0.0
        self._side = None if fcntl is None else side
        self._fd = -1
        self._asker: _Asker | None = None

    def take(self) -> None:
        """Wait for this process's turn, at most about `PATIENCE`; within `lock`."""
        if self._side is None:
            return
        if self._fd < 0:
            try:
                fd = _open_side(self._side)
            except OSError:  # a full or read-only disk, or not ours: go on unordered, the locks only order
                return
            self.leave = functools.partial(fcntl.lockf, fd, fcntl.LOCK_UN, 2, _WRITER)  # both bytes
            self._fd = fd
        if self._get(_WRITER):
            return
        now = time.monotonic()
        if now - self.left < _PAUSE:
            if not self._wait(_QUEUE, now + PATIENCE):
                return
            time.sleep(_SLICE)
        self._wait(_WRITER, now + PATIENCE)

    def _get(self, byte: int) -> bool:
        """Lock `byte` unless another process has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def _wait(self, byte: int, end: float) -> bool:
        """Wait for `byte` until `end`; False when to go on unordered, since a holder may be stopped."""
        if self._get(byte):
            return True
        if self._asker is None:
            try:
                self._asker = _Asker(self._fd)
            except RuntimeError:  # the interpreter is going down, or has no thread to give
                return False
        return not self._asker.late and self._asker.ask(byte, end - time.monotonic())

    def yield_to_others(self) -> None:
        """Let a waiting thread have `lock`."""
        if self.waiting:
            time.sleep(_YIELD)

    def close(self) -> None:
        """Close the side file; it opens again at the next turn. Called while no turn is held."""
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.end()
        fd, self._fd, self.leave = self._fd, -1, bool
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def renew(self) -> None:
        """Begin anew in a forked child, whose other threads are gone."""
        self.lock = threading.Lock()
        self.waiting.clear()


class _Asker:
    """A thread that waits for a record lock, since that wait knows no time limit and its caller must.

    Started by the first writer that finds the lock taken; it ends with its `Turn`. When nobody waits for
    its answer any more, it gives back what it was given.

    Attributes
    ----------
    late : bool
        Whether it still waits for what nobody waited for to the end.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._asked, self._answered, self._state = threading.Lock(), threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._answered.acquire()
        self._wanted = 0
        self.late = self._asking = self._ended = False
        self._thread = threading.Thread(target=self._run, name="lakeshore-turn", daemon=True)
        self._thread.start()

    def ask(self, byte: int, patience: float) -> bool:
        """Wait for the lock on `byte`, at most `patience` seconds; return whether this process has it."""
        try:
            with self._state:
                self._answered.acquire(blocking=False)  # an answer that came too late for who asked before
                self._wanted = byte
                if not self._asking and self._asked.locked():
                    self._asked.release()
            if self._answered.acquire(timeout=max(patience, 0.0)):
                return True
            with self._state:
                self.late = self._asking
            return False
        finally:
            self._wanted = 0

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            with self._state:
                byte = self._wanted
                self._asking = bool(byte)
            while byte and not self._ended:
                with contextlib.suppress(OSError):  # the side file was closed meanwhile
                    fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)
                with self._state:
                    byte = 0 if self._ended else self._answer(byte)
            if self._ended:
                return

    def _answer(self, byte: int) -> int:
        """Hand over the lock on `byte` to who wants it, or give it back; return what else is wanted."""
        self.late = False
        if byte == self._wanted and self._answered.locked():
            self._answered.release()
            self._wanted = 0
        else:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)
        self._asking = bool(self._wanted)
        return self._wanted

    def end(self) -> None:
        """Let the thread go, at once unless it waits for a stopped process; no turn is held."""
        with self._state:
            self._ended = True
            if not self._asking and self._asked.locked():
                self._asked.release()
        if not sys.is_finalizing():
            self._thread.join(0.1)


def _open_side(side: Path) -> int:
    make_private(side)
    fd = os.open(side, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found, database = os.fstat(fd), Path(str(side).removesuffix(_SIDE)).stat()
        if stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), database.st_uid):
            return fd
        raise PermissionError(errno.EPERM, "not a plain file of the database's owner", str(side))
    except BaseException:
        os.close(fd)
        raise


_turns: weakref.WeakValueDictionary[str, Turn] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


def turn_for(path: Path | None) -> Turn:
    """Return the process's one `Turn` for a database file; None gives a new one without a side file."""
    if path is None:
        return Turn(None)
    real = str(path.resolve())
    with _turns_lock:
        turn = _turns.get(real)
        if turn is None:
            turn = _turns[real] = Turn(Path(f"{real}{_SIDE}"))
        return turn


def all_turns() -> list[Turn]:
    """Return every turn of the process that has a side file."""
    return list(_turns.values())


def renew_in_child() -> None:
    """Replace, in a forked child, the lock that a thread of the parent may have held."""
    global _turns_lock
    _turns_lock = threading.Lock()
