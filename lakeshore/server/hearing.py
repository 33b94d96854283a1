"""Waiting without a thread each: what is committed wakes the event loop, and the loop its waiters.

A waiter registers an ear for a topic before the look that counts. Commits of this process are overheard;
those of others ring a bell on a FIFO that the loop watches. One slow look a second, for all ears together
and in one thread, covers lost rings, due times and lapsed leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from lakeshore.planes.doorbell import Bell
from lakeshore.planes.store import Store
from lakeshore.planes.store_overhearing import descriptor, overhear

_HANG_AFTER: Final = 0.02
"""A wait that is over sooner is most often ended by a commit of this process, and needs no bell."""
_LOOK_SECONDS: Final = 1.0
_SLOW_LOOKS: Final = 5
"""Every so many looks, also those ears that only a lost ring could leave waiting."""


class Ear:
    """One waiter: it is woken by its topic, by its client's going away, and by the server's draining.

    Attributes
    ----------
    one : bool
        Wakes go to one ear of the topic at a time: a job is for one worker.
    peek : callable
        Whether there is something to be had; asked in a thread, now and then.
    """

    __slots__ = ("_future", "_rung", "one", "peek", "topic")

    def __init__(self, topic: str, peek: Callable[[], bool], *, one: bool) -> None:
        self.topic, self.peek, self.one = topic, peek, one
        self._rung = False
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiter; in the loop's thread."""
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    @property
    def rung(self) -> bool:
        """Whether it was woken since it was last cleared."""
        return self._rung

    def clear(self) -> None:
        """Forget wakes so far; call before looking."""
        self._rung = False

    async def wait(self, seconds: float) -> bool:
        """Wait to be woken; False when `seconds` went by."""
        if self._rung:
            return True
        if seconds <= 0:
            return False
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, _let_go, self._future)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None
        return self._rung


def _never() -> bool:
    return False


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Hearing:
    """The ears of one server.

    Parameters
    ----------
    engine : Store
        Whose commits are heard.
    """

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self._hang_after = 0.0 if getattr(engine._bells, "light", False) else _HANG_AFTER
        self._ears: dict[str, dict[Ear, None]] = {}
        self._bells: dict[str, tuple[Bell, int]] = {}
        self._hanging: dict[str, asyncio.TimerHandle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.draining = False

    @property
    def waiting(self) -> int:
        """How many ears there are."""
        return len({id(ear) for ears in self._ears.values() for ear in ears})

    def start(self) -> None:
        """Begin to hear, within a running loop."""
        self._loop = asyncio.get_running_loop()
        self._stop = overhear(self._engine, self._hear)
        self._looking = self._loop.create_task(self._look_now_and_then())

    async def close(self) -> None:
        """Hear no more."""
        if self._stop is not None:
            self._stop()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        for topic in list(self._ears.keys() | self._bells.keys()):
            self._take_down(topic)
        self._loop = None

    def drain(self) -> None:
        """Wake everyone for good: the server is about to stop."""
        self.draining = True
        for ears in list(self._ears.values()):
            for ear in list(ears):
                ear.ring()

    def send_away(self, away: bool) -> None:
        """Wake everyone, and let nobody wait until it is over."""
        if away:
            self.drain()
        else:
            self.draining = False

    @contextlib.contextmanager
    def ear(self, topic: str, peek: Callable[[], bool], *, one: bool = False) -> Iterator[Ear]:
        """Register an ear for the block."""
        ear = Ear(topic, peek, one=one)
        self._ears.setdefault(topic, {})[ear] = None
        assert self._loop is not None
        if topic not in self._bells and topic not in self._hanging:
            self._hanging[topic] = self._loop.call_later(self._hang_after, self._hang, topic)
        try:
            yield ear
        finally:
            ears = self._ears[topic]
            del ears[ear]
            if one and ear.rung and not self.draining:
                self.pass_on(topic)
            if not ears:
                del self._ears[topic]
                self._take_down(topic)

    @contextlib.contextmanager
    def ear_of_many(self, topics: list[str]) -> Iterator[Ear]:
        """Register one ear for many topics; it hears the commits of this process, and no bells."""
        ear = Ear("", _never, one=False)
        for topic in topics:
            self._ears.setdefault(topic, {})[ear] = None
        try:
            yield ear
        finally:
            for topic in dict.fromkeys(topics):
                ears = self._ears[topic]
                del ears[ear]
                if not ears:
                    del self._ears[topic]
                    self._take_down(topic)

    def pass_on(self, topic: str) -> None:
        """Wake the next ear of a topic whose wakes go to one at a time."""
        for ear in self._ears.get(topic, ()):
            if not ear.rung:
                ear.ring()
                return

    def _hear(self, topics: list[str]) -> None:
        """Take note of a commit, in whatever thread it was made."""
        loop = self._loop
        if loop is not None and any(topic in self._ears for topic in topics):
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._wake, topics)

    def _wake(self, topics: list[str]) -> None:
        for topic in topics:
            for ear in list(self._ears.get(topic, ())):
                if ear.one:
                    self.pass_on(topic)
                    break
                ear.ring()

    def _hang(self, topic: str) -> None:
        """Hang up a bell for the commits of other processes, and look once after it hangs."""
        self._hanging.pop(topic, None)
        bell = self._engine._bells.hang(topic)
        fd = descriptor(bell)
        if fd is None:
            bell.close()  # it cannot be watched; the slow look is what there is
            return
        assert self._loop is not None
        self._bells[topic] = (bell, fd)
        self._loop.add_reader(fd, self._rung, topic, bell)
        self._wake([topic])

    def _rung(self, topic: str, bell: Bell) -> None:
        bell.clear()
        self._wake([topic])

    def _take_down(self, topic: str) -> None:
        timer = self._hanging.pop(topic, None)
        if timer is not None:
            timer.cancel()
        bell, fd = self._bells.pop(topic, (None, -1))
        if bell is not None:
            assert self._loop is not None
            self._loop.remove_reader(fd)
            bell.close()

    async def _look_now_and_then(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            looks += 1
            ears = [
                ear
                for topic, each in self._ears.items()
                for ear in (list(each)[:1] if topic.startswith("q/") else each)
                if ear.topic  # that of many topics looks by itself
                if topic.startswith("q/") or looks % _SLOW_LOOKS == 0 or topic not in self._bells
            ]
            if not ears:
                continue
            assert self._loop is not None
            for ear in await self._loop.run_in_executor(None, _peek, ears):
                if ear.one:
                    self.pass_on(ear.topic)
                else:
                    ear.ring()


def _peek(ears: list[Ear]) -> list[Ear]:
    return [ear for ear in ears if ear.peek()]
