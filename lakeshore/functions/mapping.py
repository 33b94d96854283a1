"""What `UDF.map` gives: an iterator over the results of many jobs, that knows their ids.

It submits as it is read where only so many may be in flight, and takes a result once.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lakeshore.errors import (
    Detached,
    InvocationCancelled,
    InvocationFailed,
    UnknownInvocation,
    UnpackError,
    WaitTimeout,
)
from lakeshore.states import TERMINAL

if TYPE_CHECKING:
    from lakeshore.queues.sync import SyncQueue

_LOOK_AT_ONCE = 64
_LOOK_EVERY = 0.05
_OF_ONE_JOB = (InvocationFailed, InvocationCancelled, UnknownInvocation, UnpackError)


class Results(Iterator[Any]):
    """The results of a `map`, as they are taken.

    A job that failed or was cancelled raises in its turn, and the next `next` goes on with the others.
    Whoever stops early loses nothing: the jobs run on, and `ids` names them.

    Attributes
    ----------
    ids : list of str
        The jobs submitted so far, in the items' order.
    """

    def __init__(
        self,
        q: SyncQueue,
        submit: Callable[[int | None], list[str]],
        *,
        in_flight: int | None,
        ordered: bool,
        return_exceptions: bool,
    ) -> None:
        self._q, self._submit = q, submit
        self._next = self._in_order if ordered else self._as_finished
        self._return_exceptions = return_exceptions
        self._ended: deque[str] = deque()
        self._broken: Exception | None = None
        self.ids = submit(in_flight)
        self._flying = deque(self.ids)
        self._all_submitted = in_flight is None

    def __repr__(self) -> str:
        left = len(self._flying) + len(self._ended)
        return f"<results of {len(self.ids)} jobs on {self._q.name!r}, {left} of them not taken yet>"

    def __next__(self) -> Any:
        if self._broken is not None:
            error, self._broken = self._broken, None
            raise error
        try:
            return self._next()
        except _OF_ONE_JOB as error:
            if self._return_exceptions:
                return error
            raise
        except KeyboardInterrupt:
            raise Detached.of(*self._flying) from None

    def _in_order(self) -> Any:
        if not self._flying:
            raise StopIteration
        return self._take(self._flying, None)

    def _as_finished(self) -> Any:
        from lakeshore.queues import unserved  # the queue's floor need not be loaded to decorate

        notice = time.monotonic() + unserved.NOTICE
        while self._flying or self._ended:
            if not self._ended:
                self._look()
            if self._ended:
                return self._take(self._ended, None)
            with contextlib.suppress(WaitTimeout):
                # the longest submitted is the likeliest to end next; the others are looked at in between
                return self._take(self._flying, _LOOK_EVERY)
            if time.monotonic() >= notice:
                notice = math.inf
                unserved.warn(self._flying[0], unserved.unserved(self._q.plane, self._flying[0]))
        raise StopIteration

    def _look(self) -> None:
        """Set those of some jobs in flight that have ended apart; the next look takes others."""
        for _ in range(min(_LOOK_AT_ONCE, len(self._flying))):
            self._flying.rotate(-1)
            row = self._q.status(self._flying[-1])
            if row is None or row["state"] in TERMINAL:
                self._ended.append(self._flying.pop())

    def _take(self, jobs: deque[str], timeout: float | None) -> Any:
        """Return the first job's result; one not had (Ctrl-C, the plane away) stays to be taken."""
        try:
            result = self._q.result(jobs[0], timeout=timeout)
        except _OF_ONE_JOB:
            jobs.popleft()
            self._refill()
            raise
        jobs.popleft()
        self._refill()
        return result

    def _refill(self) -> None:
        if self._all_submitted:
            return
        try:
            more = self._submit(1)
        except Exception as error:  # noqa: BLE001 - the items' own; raised at the next call, lest a result is lost
            self._broken, self._all_submitted = error, True
            return
        self._all_submitted = not more
        self.ids += more
        self._flying.extend(more)
