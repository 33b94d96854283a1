"""Where the heads of queues are, for the time that dead rows pile up before them.

A transaction that somebody holds open keeps all rows that changed since from being cleaned away, and a look
from the head of an index passes over whatever left it: a claim would cost more with each job done. Once looks
are slow, they begin at the mark that the last one left, and at the very head only now and then. What enters
before a mark by this process takes it back; what other processes put there is found by the next whole look,
up to two seconds later than its place in the order. That a queue is empty is said after a whole look. While
looks are quick there are no marks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLOW = 0.002
"""Whole looks are slow when each of the last `_LOOKS` took this much more than it must, seconds."""
_FLUSH = 0.015
"""What a look that also commits must take is not known: the least that one took, but at most this."""
_LOOKS = 8
_SHARE = 100
"""Whole looks are so many times as far apart as one takes, while they are slow."""
_EMPTY_SHARE = 50
"""As `_SHARE`, of whole looks that follow one from the mark which found nothing."""
_MOST = 2.0
"""The longest that whole looks are apart, seconds; half of it for one who waits, and looks now and then."""
_SLACK = 1.0
"""How long before the last look a lease may have lapsed unseen, seconds: its claim was not committed yet."""
_QUEUES = 1000
_WHOLE = {"mark_priority": float("inf"), "mark_seq": 0, "spared": float("-inf")}


@dataclass(slots=True)
class _Mark:
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=_LOOKS))
    version: int = 0
    priority: float = 0.0
    seq: int | None = None
    spared: float = float("-inf")
    whole_at: float = 0.0
    peeked_at: float = 0.0
    emptied_at: float = 0.0

    def cost(self) -> float:
        """Return what a whole look costs, 0 while that is little."""
        least = min(self.costs) if len(self.costs) == _LOOKS else 0.0
        return least if least > SLOW else 0.0


@dataclass(slots=True)
class Look:
    """One look at a queue: the parameters it is made with, and what to note after it."""

    params: Mapping[str, Any]
    whole: bool
    mark: _Mark
    version: int
    began: float
    clock: float


class Marks:
    """The marks of one database in this process, by namespace and queue.

    A process that has not looked yet has none, so its first looks are whole. A row that another process puts
    before a mark is found within `_MOST`, by who takes job after job as by who waits for one. Who finds a
    queue empty without waiting has looked at all of it, or another look of this process has, less than
    `_MOST` ago, and found nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_queue: dict[tuple[str, str], _Mark] = {}
        self._flush = _FLUSH

    def look(self, ns: str, queue: str, clock: float, *, peek: bool = False, wholly: bool = False) -> Look:
        """Begin a look.

        Parameters
        ----------
        clock : float
            The database's time.
        peek : bool
            Whether nothing is taken, so that whole looks are not counted for claims.
        wholly : bool
            Whether it is to be a whole one in any case.
        """
        now = time.monotonic()
        with self._lock:
            mark = self._by_queue.get((ns, queue))
            if mark is None:
                if len(self._by_queue) >= _QUEUES:
                    self._by_queue.clear()
                mark = self._by_queue[ns, queue] = _Mark()
            cost = mark.cost()
            since, most = (mark.peeked_at, _MOST / 2) if peek else (mark.whole_at, _MOST)
            whole = wholly or not cost or mark.seq is None or now - since > min(_SHARE * cost, most)
            if whole and peek:
                mark.peeked_at = now
            params: Mapping[str, Any] = _WHOLE
            if not whole:
                params = {"mark_priority": mark.priority, "mark_seq": mark.seq, "spared": mark.spared}
            return Look(params, whole, mark, mark.version, now, clock)

    def looked(
        self, look: Look, last: tuple[float, int] | None, *, due: bool, trip: float, committed: bool
    ) -> bool:
        """End a look that took rows up to `last`, or none; returns whether a whole one is to follow.

        Parameters
        ----------
        trip : float
            What a round trip takes at least, seconds.
        committed : bool
            Whether what was measured is a commit as well.
        """
        now, mark = time.monotonic(), look.mark
        with self._lock:
            if look.whole:
                took = now - look.began
                if committed:
                    self._flush = min(self._flush, took)
                mark.costs.append(took - (self._flush if committed else trip))
                mark.whole_at = now
            if due:
                return False
            if mark.version == look.version:
                mark.spared = look.clock - _SLACK
                if last is not None:
                    mark.priority, mark.seq = last
            if last is not None:
                return False
            if look.whole:
                mark.emptied_at = now
            again = now - mark.emptied_at > min(_EMPTY_SHARE * mark.cost(), _MOST)
            return again and not look.whole and not committed

    def peeked(self, look: Look, *, ready: bool) -> None:
        """End a look that took nothing: what a whole one saw, a claim is to find."""
        if look.whole and ready:
            with self._lock:
                look.mark.whole_at = float("-inf")

    def entered(self, ns: str, queue: str | None, priority: float | None) -> None:
        """Take back the marks that a row of this priority, or any, may have entered before."""
        with self._lock:
            for (of, name), mark in self._by_queue.items():
                if of == ns and queue in (None, name) and (priority is None or priority > mark.priority):
                    mark.version += 1
                    mark.seq = None
