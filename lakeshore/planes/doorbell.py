"""Doorbells: how a commit in one thread or process wakes who waits for it in another.

A waiter hangs up a bell for one topic before the look that counts; whoever commits something of that
topic rings every bell of it. A wait is one system call that Ctrl-C ends. A lost ring costs only the
waiter's slow safety look, never correctness.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import select
import stat
import time
import weakref
import zlib
from pathlib import Path
from threading import Lock
from typing import Protocol

_RACY_NS = 40_000_000
"""A folder listing this young may miss a bell hung up within the same tick of its time stamp."""
_RACY_WHOLE_NS = 2_100_000_000
"""As above, where the file system stamps whole seconds (or every two)."""
_POLL_WITHOUT_PIPES = 0.02
_SWEEP_SECONDS = 30.0
_ENDS_KEPT = 64
_NEW = "new-"
_SHAPE = re.compile(r"[0-9a-f]{8}\.[0-9]+\.[0-9]+")
"""A bell's name: topic, process, number."""
_fifos: weakref.WeakSet[FifoBell] = weakref.WeakSet()


class _NotOurs(PermissionError):
    """Somebody else has put something where the bells are."""


class Bell(Protocol):
    """One waiter's bell."""

    def clear(self) -> None:
        """Forget rings so far; call before looking."""

    def wait(self, timeout: float) -> None:
        """Block until a ring or for `timeout` seconds."""

    def close(self) -> None:
        """Take the bell down."""


class Belfry(Protocol):
    """Where the bells of one plane hang."""

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`."""

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics; never raises, never blocks."""

    def close(self) -> None:
        """Let go of what the rings keep open."""

    def renew(self) -> None:
        """Begin anew in a forked child, whose other threads are gone."""


class MemoryBell:
    """A bell within this process: a lock that a ring releases and a waiter takes again."""

    def __init__(self) -> None:
        self._silent = Lock()
        self._silent.acquire()

    def clear(self) -> None:
        """Forget rings so far."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout: float) -> None:
        """Block until a ring or for `timeout` seconds."""
        self._silent.acquire(timeout=timeout)

    def ring(self) -> None:
        """Wake the waiter."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silent.release()

    def close(self) -> None:
        """Nothing to take down: the belfry holds bells weakly."""


class MemoryBelfry:
    """Bells of a `:memory:` plane."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_topic: dict[str, weakref.WeakSet[MemoryBell]] = {}

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`."""
        bell = MemoryBell()
        with self._lock:
            self._by_topic.setdefault(topic, weakref.WeakSet()).add(bell)
        return bell

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics."""
        for topic in topics:
            if topic in self._by_topic:
                with self._lock:
                    bells = list(self._by_topic.get(topic, ()))
                    if not bells:
                        self._by_topic.pop(topic, None)
                for bell in bells:
                    bell.ring()

    def close(self) -> None:
        """Nothing is kept open."""

    def renew(self) -> None:
        """Forget the parent's bells."""
        self._lock, self._by_topic = Lock(), {}


class FifoBell:
    """A bell on a FIFO, for waiters and ringers in different processes; `close` removes its path."""

    _path: str | None = None
    _fd = -1

    def __init__(self, path: str, fd: int) -> None:
        self._fd, self._path = fd, path
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        _fifos.add(self)

    def clear(self) -> None:
        """Forget rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 65536)

    def wait(self, timeout: float) -> None:
        """Block until a ring or for `timeout` seconds."""
        self._poll.poll(int(timeout * 1000 + 0.999))

    def close(self) -> None:
        """Take the bell down; a second call does nothing."""
        if self._path is not None:
            try:  # noqa: SIM105 - suppress is Python, where Ctrl-C could strike
                os.unlink(self._path)  # noqa: PTH108 - as above
            except OSError:
                pass  # swept already, or the folder is gone
            self._path = None
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def abandon(self) -> None:
        """In a forked child: close the inherited end, leave the parent's path alone."""
        self._path = None
        self.close()


class SleepBell:
    """A bell that never rings, where there are no FIFOs or none can be made: a wait is a short sleep."""

    def clear(self) -> None:
        """Nothing to forget."""

    def wait(self, timeout: float) -> None:
        """Sleep for `timeout`, at most 20 ms."""
        time.sleep(min(timeout, _POLL_WITHOUT_PIPES))

    def close(self) -> None:
        """Nothing to take down."""


class FolderBelfry:
    """Bells of a file plane: FIFOs in a folder beside it, named by topic, seen by every process.

    Parameters
    ----------
    folder : Path
        Made 0700 when missing. One that is not this user's alone (somebody else's, a link, open to
        others) is left alone: nothing is rung there, and waits are short sleeps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = str(folder)
        self._count = itertools.count()
        self._lock = Lock()
        self._listed: dict[str, list[str]] = {}
        self._stamp = (-1, 0)
        self._ends: dict[str, int] = {}
        self._sweep_at = 0.0
        with contextlib.suppress(_NotOurs):
            self._make_folder()

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        else:
            if self._folder.lstat().st_mode & 0o700 != 0o700:  # a umask took our own rights
                self._folder.chmod(0o700)
        if not is_own_folder(self._folder):
            raise _NotOurs(errno.EPERM, "not a folder of this user alone", self._name)

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`; where none can be (a full disk, a foreign folder) one that sleeps."""
        try:
            self._make_folder()
            self._sweep()
            return self._hang(f"{_digest(topic)}.{os.getpid()}.{next(self._count)}")
        except OSError:
            return SleepBell()

    def _hang(self, name: str) -> Bell:
        """Make a FIFO, open it and only then show it, so that a bell on show always has its waiter.

        Of os functions, not of Path's methods: those are Python, where Ctrl-C could strike in the cleaning.
        """
        new, shown = str(self._folder / f"{_NEW}{name}"), str(self._folder / name)
        try:
            os.mkfifo(new, 0o600)
            # Opened for both, so that a writer's going away is never an end of file here.
            bell = FifoBell(shown, os.open(new, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW))
            os.rename(new, shown)  # noqa: PTH104 - as above
        except BaseException:
            try:  # noqa: SIM105 - as above
                os.unlink(new)  # noqa: PTH108 - as above
            except OSError:
                pass  # it was not made, or is on show already
            raise
        return bell

    def _sweep(self) -> None:
        """Remove, now and then, the bells of killed processes, which nobody may ever ring again."""
        now = time.monotonic()
        if now < self._sweep_at:
            return
        self._sweep_at = now + _SWEEP_SECONDS
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):  # taken down meanwhile
                young = time.time() - path.lstat().st_ctime < _SWEEP_SECONDS
                new = path.name.startswith(_NEW)
                if _SHAPE.fullmatch(path.name.removeprefix(_NEW)) and not (new and young):
                    self._remove_if_dead(path)

    def _remove_if_dead(self, path: Path) -> None:
        if not stat.S_ISFIFO(path.lstat().st_mode):
            return
        try:
            os.close(open_bell(path))
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no process has it open
                raise
            path.unlink()

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics."""
        try:
            modified = os.stat(self._name).st_mtime_ns  # noqa: PTH116 - each commit asks, Path costs thrice
            racy = _RACY_NS if modified % 1_000_000_000 else _RACY_WHOLE_NS
            if self._stamp[0] != modified or self._stamp[1] - modified < racy:
                self._list(modified)
        except OSError:
            return  # the folder is gone or not ours: waiters look by themselves
        if not self._listed:
            return
        for topic in topics:
            for name in self._listed.get(_digest(topic), ()):
                self._ring_one(name)

    def _list(self, modified: int) -> None:
        listed: dict[str, list[str]] = {}
        with self._lock:
            now = time.time_ns()
            if not is_own_folder(self._folder):
                self._close_ends()
                self._listed, self._stamp = {}, (-1, 0)
                return
            names = [name for name in os.listdir(self._name) if _SHAPE.fullmatch(name)]  # noqa: PTH208 - as above
            for name in names:
                listed.setdefault(name.partition(".")[0], []).append(name)
            for gone in self._ends.keys() - set(names):
                os.close(self._ends.pop(gone))
            self._listed, self._stamp = listed, (modified, now)

    def _ring_one(self, name: str) -> None:
        path = self._folder / name
        with self._lock:
            try:
                fd = self._ends.get(name)
                if fd is None:
                    fd = open_bell(path)
                    self._keep(name, fd)
                os.write(fd, b"!")
            except BlockingIOError:
                return  # full: it rings already
            except OSError as error:
                stale = self._ends.pop(name, None)
                if stale is not None:
                    os.close(stale)
                if error.errno in (errno.ENXIO, errno.EPIPE):  # its process was killed
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _keep(self, name: str, fd: int) -> None:
        if len(self._ends) >= _ENDS_KEPT:
            self._close_ends()
        self._ends[name] = fd

    def _close_ends(self) -> None:
        while self._ends:
            os.close(self._ends.popitem()[1])

    def close(self) -> None:
        """Close the ends kept open for ringing."""
        with self._lock:
            self._close_ends()
            self._listed, self._stamp = {}, (-1, 0)

    def renew(self) -> None:
        """Forget the parent's ends, and a lock that one of its threads may have held."""
        self._lock = Lock()
        self._sweep_at = 0.0
        self.close()

    def __del__(self) -> None:
        self._close_ends()


class SleepBelfry:
    """No bells at all: every waiter looks again after a short sleep (platforms without FIFOs)."""

    def hang(self, topic: str) -> Bell:
        """Return a bell that only sleeps."""
        return SleepBell()

    def ring(self, topics: list[str]) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to let go of."""

    def renew(self) -> None:
        """Nothing to forget."""


def belfry(folder: Path | None) -> Belfry:
    """Build the belfry for a plane: by folder for a file, within the process for `:memory:` (None)."""
    if folder is None:
        return MemoryBelfry()
    return FolderBelfry(folder) if hasattr(os, "mkfifo") else SleepBelfry()


def is_own_folder(folder: Path) -> bool:
    """Whether `folder` is a directory, not a link to one, that this user alone may look into."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def open_bell(path: Path) -> int:
    """Open a bell for ringing, and nothing that is not this user's FIFO.

    Raises
    ------
    OSError
        ENXIO when nobody waits on it; EPERM or ELOOP when it is no bell.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    found = os.fstat(fd)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise _NotOurs(errno.EPERM, "not a pipe of this user", str(path))
    return fd


def forget_in_child() -> None:
    """Close, in a forked child, the bells its parent waits on."""
    for bell in list(_fifos):
        bell.abandon()


def _digest(topic: str) -> str:
    return f"{zlib.crc32(topic.encode('utf-8', 'surrogatepass')):08x}"
