"""Doorbells over LISTEN/NOTIFY: one connection a process, however many wait and ring.

A ring is told to this process at once and to others by a thread, outside the transaction that it is about and
many at a time: a NOTIFY within would make all commits queue for one lock. It costs each session that listens,
so a process does only while somebody waits in it. Payloads are digests of topics, so they name nothing. Where
notifications do not arrive (a pooler, a server that is away), waits are short and jittered looks instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg

from lakeshore.planes import postgres_statements
from lakeshore.planes.doorbell import Bell, MemoryBell

_READY_SECONDS = 2.0
_POLL = (0.05, 0.15)
_AT_ONCE = 30
"""Waiters that look that often; the more there are beyond, the longer each pauses."""
_RETRY_SECONDS = 1.0
_GATHERING = (0.001, 0.016)
"""How long rings are gathered after others were told, seconds: a notification costs the server and all who
listen as much as a job does. A process in which nobody waits works on without a pause, and takes the longest
time; who begins to wait there has the rest told at once. Else it grows while each time brings several."""
_LINGER = 0.5
"""How long this process goes on listening when nobody waits, seconds: who waits next may do so soon."""
_LONG = 0.5
"""Of waits longer than this a random fifth is cut off, so that waiters do not look in step."""
_PAYLOAD_TOPICS = 800
"""Nine characters each, in a payload of at most 8000 bytes."""
_UNTOLD = 10_000
"""Rings kept while they cannot be told; who waits for an older one has looked since."""
_log = logging.getLogger(__name__)


class PostgresBell(MemoryBell):
    """A bell that this process rings, also for what others tell it."""

    def __init__(self, belfry: PostgresBelfry) -> None:
        super().__init__()
        self._belfry = belfry
        self._ends: tuple[int, int] | None = None

    @property
    def _fd(self) -> int:
        """A descriptor that is readable once the bell rings, for who waits on many; made when asked for."""
        if self._ends is None:
            self._ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
        return self._ends[0]

    def clear(self) -> None:
        """Forget rings so far."""
        super().clear()
        if self._ends is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ends[0], 65536)

    def wait(self, timeout: float) -> None:
        """Block until a ring or for `timeout` seconds; less where rings of others may not arrive."""
        if not self._belfry.hears:
            timeout = min(timeout, self._belfry.pause())
        elif timeout > _LONG:
            timeout *= random.uniform(0.8, 1.0)  # noqa: S311 - as above
        super().wait(timeout)

    def ring(self) -> None:
        """Wake the waiter."""
        super().ring()
        if self._ends is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._ends[1], b"!")

    def close(self) -> None:
        """Take the bell down."""
        self._belfry.taken_down(self)
        self._close_ends()

    def _close_ends(self) -> None:
        ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)

    __del__ = _close_ends


class PostgresBelfry:
    """The bells of one database in this process.

    Parameters
    ----------
    connect : callable
        Opens a connection in autocommit mode.
    own_sessions : callable
        Whether a session is this process's alone. Behind a pooler it may not be: notifications would come to
        whoever is handed it, so nothing is listened to there.
    """

    light = True
    """A bell costs no file and no connection of its own, so that one is hung for the shortest wait too."""
    hears = False
    """Whether what other processes ring is known to arrive."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], own_sessions: Callable[[], bool]
    ) -> None:
        self._connect, self._own_sessions = connect, own_sessions
        self._hung: weakref.WeakSet[PostgresBell] = weakref.WeakSet()
        self._sql = postgres_statements.load(writing=False)
        self._lock = threading.Lock()
        self._by_digest: dict[str, weakref.WeakSet[PostgresBell]] = {}
        self._told: deque[str] = deque(maxlen=_UNTOLD)
        self._rings, self._gathering, self._hurried = 0, False, False
        self._sure, self._wanted_at = False, 0.0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ready = threading.Event()
        self._wake: tuple[int, int] | None = None

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`; returns when rings of other processes reach it, or are known not to."""
        bell = PostgresBell(self)
        with self._lock:
            self._hurried = self._hurried or not self._hung
            self._by_digest.setdefault(_digest(topic), weakref.WeakSet()).add(bell)
            self._hung.add(bell)
            self._wanted_at = time.monotonic()
        self._start()
        if self._hurried or not self._ready.is_set():
            self._nudge()
        if not self._ready.is_set():
            self._ready.wait(_READY_SECONDS)
        return bell

    def taken_down(self, bell: PostgresBell) -> None:
        """Nobody waits by this bell any more."""
        self._wanted_at = time.monotonic()
        self._hung.discard(bell)

    def pause(self) -> float:
        """Return how long a waiter sleeps between looks, seconds; more where there are many."""
        return max(1.0, len(self._hung) / _AT_ONCE) * random.uniform(*_POLL)  # noqa: S311 - only spreads them

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics, here at once and elsewhere soon."""
        digests = [_digest(topic) for topic in topics]
        self._ring_here(digests)
        self._told.extend(digests)
        self._rings += 1
        self._start()
        if not self._gathering:  # else it looks by itself
            self._nudge()

    def _ring_here(self, digests: list[str]) -> None:
        for digest in digests:
            if digest in self._by_digest:
                with self._lock:
                    bells = list(self._by_digest.get(digest, ()))
                    if not bells:
                        self._by_digest.pop(digest, None)
                for bell in bells:
                    bell.ring()

    def close(self, within: float = 5.0) -> None:
        """End the thread and its connection, once others were told the rest; wait `within` seconds for it."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        self._nudge()
        if thread is not None and thread is not threading.current_thread():
            thread.join(within)

    def renew(self) -> None:
        """Nothing: a forked child makes a belfry of its own."""

    def _start(self) -> None:
        if self._thread is not None or self._closed:
            return
        with self._lock:
            if self._thread is None and not self._closed:
                if self._wake is None:
                    self._wake = os.pipe()
                    for end in self._wake:
                        os.set_blocking(end, False)
                self._thread = threading.Thread(target=self._run, name="lakeshore-bells", daemon=True)
                self._thread.start()

    def _nudge(self) -> None:
        wake = self._wake
        if wake is not None:
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(wake[1], b"!")

    def _run(self) -> None:
        """Listen and tell until closed, over one connection after another."""
        assert self._wake is not None
        while not self._closed:
            try:
                with self._connect() as raw:
                    self._serve(raw, self._wake[0])
            except psycopg.Error as error:
                _log.debug("bells: %s", type(error).__name__)
            finally:
                self.hears = self._sure = self._gathering = False
                self._ready.set()  # nobody waits longer for what does not come
            if not self._closed:
                self._everyone()
                select.select([], [], [], random.uniform(0.5, 1) * _RETRY_SECONDS)  # noqa: S311 - as above
        wake, self._wake = self._wake, None
        for end in wake:
            os.close(end)

    def _serve(self, raw: psycopg.Connection[Any], wake: int) -> None:
        me = os.urandom(4).hex() + "!"
        own = raw.info.backend_pid

        def hear(pid: int, payload: str) -> None:
            if payload == me:
                self.hears = self._sure = True
                self._ready.set()
            elif pid != own:
                self._ring_here(payload.split())

        poll = select.poll()
        for fd in (raw.fileno(), wake):
            poll.register(fd, select.POLLIN)
        raw.add_notify_handler(lambda note: hear(note.pid, note.payload))
        if self._own_sessions():
            raw.execute(self._sql["listen"])
            self._tell(raw, [me])
        else:
            self._ready.set()
        self._everyone()
        asked = time.monotonic()
        pause, rings, until = _GATHERING[0], 0, 0.0
        while not self._closed:
            if self._sure:
                self._subscribe(raw)
            elif time.monotonic() - asked > _READY_SECONDS:
                self._ready.set()
            left = until - time.monotonic()
            if left <= 0 or self._hurried:
                left, self._gathering, self._hurried = 0.0, False, False
                if self._tell_all(raw):
                    several = self._rings - rings > 1
                    pause, rings = min(2 * pause, _GATHERING[1]) if several else _GATHERING[0], self._rings
                    left = pause if self._hung else _GATHERING[1]
                    until, self._gathering = time.monotonic() + left, True
            rest = _LINGER if self.hears and not self._hung else 1.0
            readable = {fd for fd, _ in poll.poll((left if left > 0 else rest) * 1000)}
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 65536)
            if raw.fileno() in readable:
                raw.pgconn.consume_input()
                while (note := raw.pgconn.notifies()) is not None:
                    hear(note.be_pid, note.extra.decode("ascii", "replace"))
        while self._tell_all(raw):
            pass

    def _subscribe(self, raw: psycopg.Connection[Any]) -> None:
        """Listen while somebody waits, and a little longer."""
        with self._lock:
            wanted = bool(self._hung) or time.monotonic() - self._wanted_at < _LINGER
            if wanted == self.hears:
                return
            if not wanted:
                self.hears = False
                self._ready.clear()  # who waits next waits for this thread to listen again
        raw.execute(self._sql["listen" if wanted else "unlisten"])
        if wanted:
            self.hears = True
            self._ready.set()

    def _tell_all(self, raw: psycopg.Connection[Any]) -> bool:
        """Tell of what was rung since, each topic once; returns whether there was any."""
        told: dict[str, None] = {}
        while self._told and len(told) < _PAYLOAD_TOPICS:
            told[self._told.popleft()] = None
        if told:
            self._tell(raw, list(told))
            if self._told:
                self._nudge()
        return bool(told)

    def _tell(self, raw: psycopg.Connection[Any], digests: list[str]) -> None:
        raw.execute(self._sql["notify"], {"payload": " ".join(digests)})

    def _everyone(self) -> None:
        """Have every waiter look: rings may have been missed."""
        with self._lock:
            bells = [bell for each in self._by_digest.values() for bell in each]
        for bell in bells:
            bell.ring()


def _digest(topic: str) -> str:
    return f"{zlib.crc32(topic.encode('utf-8', 'surrogatepass')):08x}"
