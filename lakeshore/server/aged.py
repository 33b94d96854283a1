"""Looks at the store that may cost much: who asks often is answered from the last, and told how old that is.

While a look is cheap, everyone who asks is answered anew. A look has a thread of its own, so that whoever
asks waits for it as long as it pleases them and no longer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes.store_within import Within

T = TypeVar("T")
Counts = dict[str, dict[str, int]]
FEW: Final = 50_000
"""Rows that are counted anew for everyone who asks."""
SHARE: Final = 20
"""A costly look is kept for as long as so many of it would take: a twentieth of a reader is asked at most."""
MOST_SECONDS: Final = 10.0
_BRIEF: Final = 0.05
_OLD_SECONDS: Final = 60.0
_JOINED_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Looked(Generic[T]):
    """What a look saw.

    Attributes
    ----------
    value : object
        What it returned.
    at : float
        When it began, on the monotonic clock.
    cost : float
        How long it took, seconds.
    kept : float
        For how long it is good for whoever asks, seconds; 0 where all are answered anew.
    """

    value: T
    at: float
    cost: float
    kept: float

    @property
    def age(self) -> float:
        """Seconds since."""
        return time.monotonic() - self.at


@dataclass(slots=True)
class _UnderWay(Generic[T]):
    began: float
    seen: Future[Looked[T]]


class Aged(Generic[T]):
    """A look at the store, and what it last saw.

    Parameters
    ----------
    look : callable
        Looks.
    keep : callable
        From what was seen and what that took in seconds, to how long it is kept in seconds.
    """

    def __init__(self, look: Callable[[], T], keep: Callable[[T, float], float]) -> None:
        self._look, self._keep = look, keep
        self._lock = threading.Lock()
        self._last: Looked[T] | None = None
        self._under_way: _UnderWay[T] | None = None

    def get(self, patience: float = 30.0) -> Looked[T]:
        """Return what is to be seen, as it is now or as it was not long ago.

        Parameters
        ----------
        patience : float
            How long to wait for it in seconds, where there is nothing to show meanwhile.

        Raises
        ------
        PlaneUnavailable
            When there is nothing within `patience`; and whatever the look itself raises.
        """
        with self._lock:
            last, now = self._last, time.monotonic()
            if last is not None and now - last.at - last.cost < last.kept:
                return last
            under_way = self._under_way
            shared = last is not None and last.kept > 0
            if under_way is None or not (shared or now - under_way.began > _JOINED_SECONDS):
                under_way = self._begin(now)
        showable = last is not None and shared and now - last.at < _OLD_SECONDS
        try:
            return under_way.seen.result(_BRIEF if showable else patience)
        except TimeoutError:
            if under_way.seen.done():
                raise
            if last is not None and showable:
                return last
            raise PlaneUnavailable(
                f"the store has not answered within {patience:g} s. Look at it with lakeshore doctor."
            ) from None

    def begin(self) -> None:
        """Have it looked at for the first time, so that whoever asks first need not wait as long."""
        with self._lock:
            if self._last is None and self._under_way is None:
                self._begin(time.monotonic())

    def _begin(self, now: float) -> _UnderWay[T]:
        begun = self._under_way = _UnderWay(now, Future())
        threading.Thread(target=self._run, args=(begun,), name="lakeshore-looks", daemon=True).start()
        return begun

    def _run(self, mine: _UnderWay[T]) -> None:
        seen: Looked[T] | None = None
        try:
            value = self._look()
            cost = time.monotonic() - mine.began
            seen = Looked(value, mine.began, cost, self._keep(value, cost))
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits for it
            self._note(mine, None)
            mine.seen.set_exception(error)
            return
        self._note(mine, seen)
        mine.seen.set_result(seen)

    def _note(self, mine: _UnderWay[T], seen: Looked[T] | None) -> None:
        with self._lock:
            if self._last is None or self._last.at <= mine.began:
                self._last = seen
            if self._under_way is mine:
                self._under_way = None


_counts: weakref.WeakKeyDictionary[Within, Aged[Counts]] = weakref.WeakKeyDictionary()
_counts_lock = threading.Lock()


def counts(plane: Within, patience: float = 30.0) -> Looked[Counts]:
    """Return ``{queue: {state: rows}}`` of a namespace: as it is where few rows are counted, else of late.

    Raises
    ------
    PlaneUnavailable
        When the store does not answer within `patience` seconds.
    """
    return counting(plane).get(patience)


def counting(plane: Within) -> Aged[Counts]:
    """Return the look that counts a namespace, the same for all who ask."""
    with _counts_lock:
        aged = _counts.get(plane)
        if aged is None:
            this = weakref.ref(plane)
            aged = _counts[plane] = Aged(lambda: _count(this), _keep_counts)
        return aged


def _count(this: weakref.ref[Within]) -> Counts:
    plane = this()
    if plane is None:
        raise PlaneUnavailable("the server of this store has stopped. Ask another.")
    return plane.queues()


def _keep_counts(seen: Counts, cost: float) -> float:
    rows = sum(n for states in seen.values() for n in states.values())
    return 0.0 if rows <= FEW else min(SHARE * cost, MOST_SECONDS)
