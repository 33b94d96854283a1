"""Doorbells: how a commit in one thread or process wakes who waits for it in another.

A waiter hangs up a bell for one topic before its first look; whoever commits something of that
topic rings every bell of it. A bell is a pipe end, so a wait is one `poll(2)` that Ctrl-C ends. A
lost ring costs only the waiter's slow safety look, never correctness.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import time
import weakref
import zlib
from pathlib import Path
from threading import Lock
from typing import Protocol

_RACY_NS = 40_000_000
"""A folder listing this young may miss a bell hung up within the same tick of its time stamp."""
_POLL_WITHOUT_PIPES = 0.02
_bells: weakref.WeakSet[PipeBell] = weakref.WeakSet()


class Bell(Protocol):
    """One waiter's bell."""

    def clear(self) -> None:
        """Forget rings so far; call before looking."""

    def wait(self, timeout: float) -> None:
        """Block until a ring or for `timeout` seconds."""

    def close(self) -> None:
        """Take the bell down."""


class PipeBell:
    """A bell on the read end of a pipe or FIFO; `close` also removes its path, when it has one."""

    def __init__(self, read_fd: int, *, path: str | None = None, write_fd: int | None = None) -> None:
        self._fd, self._path, self.write_fd = read_fd, path, write_fd
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)
        _bells.add(self)

    def clear(self) -> None:
        """Forget rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 65536)

    def wait(self, timeout: float) -> None:
        """Block until a ring or for `timeout` seconds."""
        self._poll.poll(max(0, int(timeout * 1000 + 0.999)))

    def close(self) -> None:
        """Take the bell down; a second call does nothing."""
        fds, self._fd, self.write_fd = (self._fd, self.write_fd), -1, None
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                Path(self._path).unlink()
            self._path = None
        for fd in fds:
            if fd is not None and fd >= 0:
                os.close(fd)

    def abandon(self) -> None:
        """In a forked child: close the inherited ends, leave the parent's path alone."""
        self._path = None
        self.close()


class SleepBell:
    """A bell for platforms without FIFOs: it never rings, so a wait is a short sleep."""

    def clear(self) -> None:
        """Nothing to forget."""

    def wait(self, timeout: float) -> None:
        """Sleep for `timeout`, at most 20 ms."""
        time.sleep(min(timeout, _POLL_WITHOUT_PIPES))

    def close(self) -> None:
        """Nothing to take down."""


class Belfry(Protocol):
    """Where the bells of one plane hang."""

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`."""

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics; never raises, never blocks."""

    def close(self) -> None:
        """Let go of what the rings keep open."""


class MemoryBelfry:
    """Bells of a `:memory:` plane: pipes within this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_topic: dict[str, weakref.WeakSet[PipeBell]] = {}

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        bell = PipeBell(read_fd, write_fd=write_fd)
        with self._lock:
            self._by_topic.setdefault(topic, weakref.WeakSet()).add(bell)
        return bell

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics."""
        if not self._by_topic:
            return
        for topic in topics:
            if topic in self._by_topic:
                with self._lock:
                    bells = list(self._by_topic[topic])
                    if all(bell.write_fd is None for bell in bells):
                        del self._by_topic[topic]
                for bell in bells:
                    fd = bell.write_fd
                    if fd is not None:
                        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody waits
                            os.write(fd, b"!")

    def close(self) -> None:
        """Forget the bells."""
        with self._lock:
            self._by_topic.clear()


class FolderBelfry:
    """Bells of a file plane: FIFOs in a folder beside it, named by topic, seen by every process.

    Parameters
    ----------
    folder : Path
        Made 0700 when missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = itertools.count()
        self._lock = Lock()
        self._listed: dict[str, list[str]] = {}
        self._stamp = (-1, 0)
        self._ends: dict[str, int] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`."""
        path = str(self._folder / f"{_digest(topic)}.{os.getpid()}.{next(self._count)}")
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:  # left by a killed process of the same pid
            return self.hang(topic)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            os.mkfifo(path, 0o600)
        # Opened for both, so that a writer's going away is never an end of file here.
        return PipeBell(os.open(path, os.O_RDWR | os.O_NONBLOCK), path=path)

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics."""
        with contextlib.suppress(FileNotFoundError):
            modified = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - each commit asks, Path costs thrice
            if self._stamp[0] != modified or self._stamp[1] - modified < _RACY_NS:
                self._list(modified)
        if not self._listed:
            return
        for topic in topics:
            for name in self._listed.get(_digest(topic), ()):
                self._ring_one(name)

    def _list(self, modified: int) -> None:
        listed: dict[str, list[str]] = {}
        with self._lock:
            now = time.time_ns()
            names = os.listdir(self._folder)  # noqa: PTH208 - as above
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
                    fd = self._ends[name] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
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

    def close(self) -> None:
        """Close the ends kept open for ringing."""
        with self._lock:
            for fd in self._ends.values():
                os.close(fd)
            self._ends.clear()
            self._listed, self._stamp = {}, (-1, 0)


class SleepBelfry:
    """No bells at all: every waiter looks again after a short sleep (platforms without FIFOs)."""

    def hang(self, topic: str) -> Bell:
        """Return a bell that only sleeps."""
        return SleepBell()

    def ring(self, topics: list[str]) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to let go of."""


def belfry(folder: Path | None) -> Belfry:
    """Build the belfry for a plane: by folder for a file, within the process for `:memory:` (None)."""
    if not hasattr(os, "mkfifo"):
        return SleepBelfry()
    return MemoryBelfry() if folder is None else FolderBelfry(folder)


def forget_in_child() -> None:
    """Close, in a forked child, the bells its parent waits on."""
    for bell in list(_bells):
        bell.abandon()


def _digest(topic: str) -> str:
    return f"{zlib.crc32(topic.encode('utf-8', 'surrogatepass')):08x}"
