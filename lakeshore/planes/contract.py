"""The dispatch contract: what every plane does, a verb at a time, with who calls it and when.

Everything above the planes takes any object with these verbs and learns about it from nothing
but them and `trusted`. `lakeshore.conformance` runs each rule against any plane.

Waiting verbs wake on events. A `poll` (seconds, > 0) is an upper bound between two looks; None
leaves it to the plane.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from lakeshore.states import State

Kind = Literal["fifo", "priority", "filo", "boltzmann"]
KINDS: tuple[str, ...] = ("fifo", "priority", "filo", "boltzmann")
POISON_LOSSES = 3
"""A job whose worker died this often is not run again."""
_ID = re.compile("[A-Za-z0-9_-]{1,128}")
LONGEST_SPAN = 10 * 366 * 86400
"""The most seconds of a delay or a lease."""
SIBLINGS = (".log", ".progress")
"""Suffixes of the journals that belong to an invocation beside its own."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job in the hands of one worker, until its lease lapses.

    Attributes
    ----------
    id, queue : str
        The invocation and where it was queued.
    envelope : bytes
        What was submitted, verbatim.
    attempt : int
        Claims so far, from 1.
    fence : int
        The fencing token: rises with every claim of this job, never falls.
    lease_expires_at : float
        Unix seconds by the plane's clock.
    """

    id: str
    envelope: bytes
    attempt: int
    queue: str
    fence: int = 0
    lease_expires_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One item of `submit_many`: the arguments of `submit`."""

    envelope: bytes
    id: str
    key: str | None = None
    priority: float = 0.0
    parent: str | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The claim to make in the same commit as an ending (`next=`)."""

    queue: str
    kind: str = "fifo"
    temperature: float = 1.0
    lease: float = 30.0


@runtime_checkable
class Plane(Protocol):
    """A dispatch plane. Ids are unique per namespace; `*_at` are Unix seconds by the plane's clock.

    Every verb raises `ValueError` for a malformed argument before anything is written, and
    `PlaneUnavailable` when the plane cannot be reached or used.
    """

    @property
    def trusted(self) -> bool:
        """Whether whoever can write here could run code as this user anyway (`allow_pickled=None`)."""
        ...

    def submit(
        self,
        queue: str,
        envelope: bytes,
        *,
        id: str,
        key: str | None = None,
        priority: float = 0.0,
        parent: str | None = None,
        delay: float = 0.0,
    ) -> str:
        """Queue one job; called by producers. Returns its id.

        The same `key` in the same queue returns the id that has it, and writes nothing; the same
        id with the same envelope returns that id (a retried call).

        Raises
        ------
        DispatchError
            When `id` is taken by another envelope.
        """
        ...

    def submit_many(self, queue: str, items: Iterable[Submission]) -> list[str]:
        """Queue many jobs in one transaction, each as `submit` would; returns their ids in order."""
        ...

    def claim(
        self,
        queue: str,
        worker_id: str,
        *,
        kind: str = "fifo",
        temperature: float = 1.0,
        lease: float = 30.0,
        wait: float = 0.0,
    ) -> Claimed | None:
        """Take the next due job, or one whose lease lapsed; called by an idle worker.

        Parameters
        ----------
        kind : {"fifo", "priority", "filo", "boltzmann"}
            The order; "priority" is an alias of "fifo".
        temperature : float
            Boltzmann's T, > 0 (0 means the highest priority).
        lease : float
            Seconds until another worker may take the job unless `heartbeat` extends it.
        wait : float
            Seconds to block for a job; 0 looks once.
        """
        ...

    def claim_many(
        self,
        queue: str,
        worker_id: str,
        n: int,
        *,
        kind: str = "fifo",
        temperature: float = 1.0,
        lease: float = 30.0,
        wait: float = 0.0,
    ) -> list[Claimed]:
        """Take up to `n` jobs in one transaction, each as `claim` would."""
        ...

    def heartbeat(
        self, inv_id: str, worker_id: str, *, lease: float = 30.0, fence: int | None = None
    ) -> None:
        """Extend the lease to `lease` seconds from now; called by a worker at a third of its lease.

        Raises
        ------
        ClaimLost
            When the job is not (or no longer) running under this claim.
        """
        ...

    def ack(
        self,
        inv_id: str,
        worker_id: str,
        *,
        result: bytes | None = None,
        fence: int | None = None,
        frame: bytes | None = None,
        next: ClaimSpec | None = None,
    ) -> Claimed | None:
        """End a running job as succeeded; called once by the worker that holds it.

        `frame` is appended as the final frame in the same transaction; `next` claims another job
        in that commit. A repeat with the same fence returns the same answer.

        Raises
        ------
        ClaimLost
            When the job is not (or no longer) running under this claim.
        """
        ...

    def nack(
        self,
        inv_id: str,
        worker_id: str,
        *,
        error: str | dict[str, Any],
        retry: bool = True,
        delay: float = 0.0,
        fence: int | None = None,
        frame: bytes | None = None,
        next: ClaimSpec | None = None,
    ) -> Claimed | None:
        """Give a running job back after a failure: queued again (`retry`), or failed for good.

        Parameters
        ----------
        error : str or dict
            ``"Type: message"``, or ``{"type", "message", "traceback"}``.
        delay : float
            Seconds before a retry is due.
        frame, next
            As for `ack`; `frame` only with ``retry=False``.

        Raises
        ------
        ClaimLost
            When the job is not (or no longer) running under this claim.
        """
        ...

    def release(self, inv_id: str, worker_id: str, *, fence: int | None = None) -> None:
        """Hand a running job back unharmed, due at once, its attempt not counted; a draining worker's verb.

        Raises
        ------
        ClaimLost
            When the job is not (or no longer) running under this claim.
        """
        ...

    def cancel(self, inv_id: str) -> bool:
        """End a queued or running job as cancelled; False when it had ended, or does not exist."""
        ...

    def requeue(self, inv_id: str) -> bool:
        """Queue a failed or cancelled job again with a clean record; False for any other state."""
        ...

    def get(self, inv_id: str) -> dict[str, Any] | None:
        """Return the row without its envelope, or None."""
        ...

    def envelope(self, inv_id: str) -> bytes | None:
        """Return what was submitted, verbatim, or None."""
        ...

    def result(self, inv_id: str, *, timeout: float | None = 30.0, poll: float | None = None) -> bytes:
        """Wait for the job to end and return its packed result (``b""`` when `ack` gave none).

        Raises
        ------
        InvocationFailed, InvocationCancelled
            As the row says.
        UnknownInvocation
            When no row has this id.
        WaitTimeout
            After `timeout` seconds; None waits for ever.
        """
        ...

    def count(self, queue: str, state: str = State.QUEUED) -> int:
        """Count a queue's rows in one state; lapsed leases count as running."""
        ...

    def queues(self) -> dict[str, dict[str, int]]:
        """Return ``{queue: {state: rows}}`` for every queue that has rows."""
        ...

    def invocations(
        self,
        queue: str | None = None,
        *,
        state: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """List rows, newest first, without envelope and result; `before`: the id to go on from."""
        ...

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """List the workers that asked for jobs: worker_id, queue, host, pid, version, seen_at, running."""
        ...

    def journal_append(
        self,
        inv_id: str,
        seq: int | None,
        frame_bytes: bytes,
        *,
        final: bool = False,
        worker_id: str | None = None,
        fence: int | None = None,
    ) -> int:
        """Append one frame and return its seq; None takes the next, a seq that exists is absorbed.

        `final` ends the journal after this frame, unless an earlier one has; an absorbed frame ends nothing.

        Raises
        ------
        ClaimLost
            When `worker_id` or `fence` is given and that claim is not current.
        """
        ...

    def journal_extend(
        self,
        inv_id: str,
        frames: Sequence[bytes],
        *,
        worker_id: str | None = None,
        fence: int | None = None,
    ) -> int:
        """Append many frames in one transaction; returns the last seq (-1 for none)."""
        ...

    def journal_read(
        self, inv_id: str, *, since: int = -1, timeout: float | None = 30.0, poll: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield ``(seq, frame)`` after `since`, waiting for more until a final frame or a terminal row.

        ``since=-1`` starts at the current attempt. A frame restarts the `timeout` clock.

        Raises
        ------
        WaitTimeout
            After `timeout` seconds without a frame; None waits for ever.
        """
        ...

    def journal_trim(self, inv_id: str, *, keep_last: int = 0) -> int:
        """Drop all but the last `keep_last` frames; returns how many were dropped."""
        ...

    def prune(self, *, older_than: float, states: Iterable[str] = ..., limit: int | None = None) -> int:
        """Delete rows that ended `older_than` seconds ago, with journals and keys; returns the rows.

        Topics silent for as long go too, when `states` are all ended ones and `limit` is not reached.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections. The next verb raises."""
        ...


def check_id(value: object, what: str = "id") -> str:
    """Return an invocation id that may be stored, or raise `ValueError`."""
    if not isinstance(value, str):
        raise ValueError(f"{what} {value!r}: wants a str, got {type(value).__name__}")
    if _ID.fullmatch(value) is None:
        raise ValueError(f"{what} {value[:140]!r}: wants 1 to 128 of A-Z a-z 0-9 _ -")
    return value


def check_name(value: object, what: str) -> str:
    """Return a namespace, queue, topic, key or worker id that may be stored, or raise `ValueError`."""
    if not isinstance(value, str):
        raise ValueError(f"{what} {value!r}: wants a str, got {type(value).__name__}")
    if not value.isprintable() and any(
        ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in value
    ):
        raise ValueError(f"{what} {value[:60]!r}: holds a control character")
    if not 1 <= len(value.encode("utf-8", "surrogatepass")) <= 255:
        raise ValueError(f"{what} {value[:60]!r}: wants 1 to 255 UTF-8 bytes")
    return value


def check_number(value: object, what: str, *, minimum: float = -math.inf) -> float:
    """Return a finite number of at least `minimum` as float, or raise `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy's scalars are Real
        raise ValueError(f"{what} {value!r}: wants a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < minimum:
        bound = "" if minimum == -math.inf else f" of at least {minimum:g}"
        raise ValueError(f"{what} {value!r}: wants a finite number{bound}")
    return number


def check_span(value: object, what: str) -> float:
    """Return a delay or a lease of 0 to ten years, as calendars tell, or raise `ValueError`."""
    seconds = check_number(value, what, minimum=0)
    if seconds > LONGEST_SPAN:
        raise ValueError(f"{what}: wants at most {LONGEST_SPAN:,} seconds (ten years), got {seconds:.4g}")
    return seconds


def check_spec(spec: ClaimSpec) -> ClaimSpec:
    """Return a claim that a plane can make, or raise `ValueError`."""
    if not isinstance(spec, ClaimSpec):
        raise ValueError(f"next {spec!r}: wants a ClaimSpec, got {type(spec).__name__}")
    check_name(spec.queue, "queue")
    if spec.kind not in KINDS:
        raise ValueError(f"kind {spec.kind!r}: wants one of {', '.join(KINDS)}")
    check_number(spec.temperature, "temperature", minimum=0)
    check_span(spec.lease, "lease")
    return spec
