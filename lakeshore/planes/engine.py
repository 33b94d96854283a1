"""What an engine supplies to the verbs: a write transaction, a read, clocks, bells; and the names they share.

An engine (`planes/sqlite.py`) subclasses `Store`; the verbs (`planes/store_*.py`) know nothing of it but
what stands here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from lakeshore.errors import ClaimLost
from lakeshore.planes.contract import SIBLINGS, check_id, check_name
from lakeshore.planes.doorbell import Belfry
from lakeshore.states import State

T = TypeVar("T")
MAX_BYTES = 900_000_000
"""The largest envelope, result or frame a plane takes; SQLite's own limit for a value is just above."""


class Transaction(ABC):
    """What a verb may do inside `Engine._write` or `Engine._read`."""

    takes = False
    """Whether the engine has a statement for `take`."""

    @abstractmethod
    def rows(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run the statement `name` and return all its rows."""

    @abstractmethod
    def changed(self, name: str, params: dict[str, Any]) -> int:
        """Run the statement `name`, which writes, and return how many rows it changed."""

    @abstractmethod
    def added(self, name: str, params: dict[str, Any]) -> int | None:
        """Run the INSERT `name` and return the new row's number, or None when it added none."""

    def added_many(self, name: str, params: Sequence[dict[str, Any]]) -> list[int | None]:
        """Run the INSERT `name` for each, in order; returns what `added` would for each."""
        return [self.added(name, each) for each in params]

    def take(self, params: dict[str, Any], n: int, *, newest: bool = False) -> list[tuple[Any, ...]] | None:
        """Claim up to `n` ready rows of the highest priority by one statement, oldest or `newest` first.

        Returns them as ``claimed`` does, each after its number; None when a delayed row or a lapsed lease is
        due as well, so that they are to be chosen one by one. Newest first it may return fewer than there
        are. Called where `takes`.
        """
        raise NotImplementedError

    @abstractmethod
    def run_many(self, name: str, params: Iterable[dict[str, Any]]) -> None:
        """Run the statement `name` once for each set of parameters."""

    @abstractmethod
    def frames(self, params: dict[str, Any], max_bytes: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Run the statement ``frames`` until it ends or `max_bytes` are read; True when it had ended."""

    @abstractmethod
    def ring(self, *topics: str) -> None:
        """Ring these topics once the transaction has committed."""


class Engine(ABC):
    """The primitives under the verbs; those marked abstract are an engine's own."""

    _ns: str
    _bells: Belfry

    @abstractmethod
    def _write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        """Run `work` in one write transaction, commit, ring; `durable=False` may lose it in a power cut."""

    @abstractmethod
    def _read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` over short reads; each statement sees what was committed when it began."""

    def _alone(self, name: str, params: dict[str, Any], *topics: str) -> list[tuple[Any, ...]] | None:
        """Run one writing statement as a transaction of its own; None where the engine has no use for that.

        When its first row begins with something true, `topics` are rung. It must be one that can be run again
        when its answer was lost: what it finds then tells what it has done.
        """
        return None

    @property
    @abstractmethod
    def trusted(self) -> bool:
        """Whether whoever can write here could run code as this user anyway."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. The next verb raises."""

    def _now(self) -> float:
        return time.time()

    def _lease_clock(self) -> float:
        return time.monotonic()

    def _lease_epoch(self) -> str:
        """Name the span within which `_lease_clock` is comparable."""
        return ""

    # -- what several verbs share -----------------------------------------------

    def _guard(self, inv_id: str, worker_id: str, fence: int | None) -> dict[str, Any]:
        """Return the parameters of a guarded transition."""
        if fence is not None and (isinstance(fence, bool) or not isinstance(fence, int)):
            raise ValueError(f"fence {fence!r}: wants an int or None, got {type(fence).__name__}")
        return {
            "ns": self._ns,
            "id": check_id(inv_id),
            "worker": check_name(worker_id, "worker_id"),
            "fence": fence,
        }

    def _lost(self, tx: Transaction, verb: str, params: dict[str, Any]) -> ClaimLost:
        """Say why a guard matched no row."""
        held = tx.rows("holder", params)
        if not held:
            now = "no such invocation"
        else:
            state, worker, fence, attempt = held[0]
            now = f"it is {state}"
            if state == State.RUNNING:
                now = f"claimed again at attempt {attempt} by {worker!r}, fence {fence}"
        return ClaimLost(
            f"{verb}: invocation {params['id']!r} is no longer held by {params['worker']!r} ({now}). "
            "Drop this result."
        )

    def _family(self, id: str) -> dict[str, str]:
        """Return the ids of an invocation's own journal and its siblings, as parameters."""
        log, progress = (id + suffix for suffix in SIBLINGS)
        return {"ns": self._ns, "id": id, "log": log, "progress": progress}

    def _queue_topic(self, queue: str) -> str:
        return f"q/{self._ns}/{queue}"

    def _journal_topic(self, journal: str) -> str:
        return f"j/{self._ns}/{journal}"

    def _end_topic(self, id: str) -> str:
        return f"e/{self._ns}/{id}"

    def _end_topics(self, id: str) -> list[str]:
        """Return whom an ending wakes: who waits for the result, and the readers of its journals."""
        return [self._end_topic(id), *(self._journal_topic(id + suffix) for suffix in ("", *SIBLINGS))]


def check_bytes(value: object, what: str) -> bytes:
    """Return what a plane can hold as bytes, or raise `ValueError`."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError(f"{what}: wants bytes, got {type(value).__name__}")
    body = bytes(value)
    if len(body) > MAX_BYTES:
        raise ValueError(
            f"{what}: {len(body):,} bytes, and a plane holds at most {MAX_BYTES:,} in one value. "
            "Write large data to a file and pass its name."
        )
    return body


def check_whole(value: object, what: str, minimum: int) -> int:
    """Return a whole number of at least `minimum`, or raise `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{what} {value!r}: wants a whole number of at least {minimum}")
    return value


def check_state(state: str) -> str:
    """Return the name of a state, or raise `ValueError`."""
    if state not in State.__members__.values():
        raise ValueError(f"state {state!r}: wants one of {', '.join(State)}")
    return str(state)
