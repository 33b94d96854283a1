"""Every verb of the contract once, over named SQL and a few primitives that an engine supplies.

An engine (`planes/sqlite.py`, `planes/postgres.py`) gives a write transaction, a read, its clocks
and its bells; nothing here knows which. A verb is: check the arguments, run one transaction, ring.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from lakeshore import wire
from lakeshore.errors import (
    ClaimLost,
    DispatchError,
    InvocationCancelled,
    InvocationFailed,
    UnknownInvocation,
    WaitTimeout,
)
from lakeshore.planes import waiting
from lakeshore.planes.contract import (
    SIBLINGS,
    Claimed,
    ClaimSpec,
    Submission,
    check_id,
    check_name,
    check_number,
    check_spec,
)
from lakeshore.planes.doorbell import Belfry, Bell
from lakeshore.states import TERMINAL, State
from lakeshore.version import __version__

INLINE_BYTES = 4096
"""Envelopes and results up to this size live in their row; larger ones beside it."""
PRESENCE_SECONDS = 10.0
_FORGET_WORKERS = 86400.0
_BATCH = 512
_SEQ_LIMIT = 2**62
_ROW = (
    *("id", "ns", "queue", "state", "priority", "key", "result", "error", "traceback", "worker_id"),
    *("attempt", "fence", "losses", "parent", "submitted_at", "not_before", "lease_expires_at"),
    *("started_at", "finished_at"),
)
T = TypeVar("T")


class Transaction(ABC):
    """What a verb may do inside `Store._write` or `Store._read`."""

    @abstractmethod
    def rows(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run the statement `name` and return all its rows."""

    @abstractmethod
    def run_many(self, name: str, params: Iterable[dict[str, Any]]) -> None:
        """Run the statement `name` once for each set of parameters."""

    def ring(self, *topics: str) -> None:
        """Ring these topics once the transaction has committed."""
        raise NotImplementedError


class Store(ABC):
    """The verbs. An engine subclasses it with the primitives marked abstract."""

    _ns: str
    _bells: Belfry
    _seen: dict[tuple[str, str], float]

    # -- primitives -----------------------------------------------------------

    @abstractmethod
    def _write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        """Run `work` in one write transaction, commit, ring; `durable=False` may lose it in a power cut."""

    @abstractmethod
    def _read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` over short reads."""

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

    # -- producers ------------------------------------------------------------

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
        """Queue one job and return its id; see `Plane.submit`."""
        item = Submission(envelope=envelope, id=id, key=key, priority=priority, parent=parent, delay=delay)
        params = self._submission(check_name(queue, "queue"), item)
        return self._write(lambda tx: self._submit(tx, params))

    def submit_many(self, queue: str, items: Iterable[Submission]) -> list[str]:
        """Queue many jobs in one transaction and return their ids in order; see `Plane.submit_many`."""
        check_name(queue, "queue")
        rows = [self._submission(queue, item) for item in items]
        if not rows:
            return []
        return self._write(lambda tx: [self._submit(tx, params) for params in rows])

    def _submission(self, queue: str, item: Submission) -> dict[str, Any]:
        if not isinstance(item.envelope, (bytes, bytearray, memoryview)):
            raise ValueError(f"submit: envelope wants bytes, got {type(item.envelope).__name__}")
        now, delay = self._now(), check_number(item.delay, "delay", minimum=0)
        return {
            "ns": self._ns,
            "id": check_id(item.id),
            "queue": queue,
            "priority": check_number(item.priority, "priority"),
            "key": None if item.key is None else check_name(item.key, "key"),
            "parent": None if item.parent is None else check_id(item.parent, "parent"),
            "now": now,
            "not_before": now + delay if delay > 0 else None,
            "envelope": bytes(item.envelope),
        }

    def _submit(self, tx: Transaction, params: dict[str, Any]) -> str:
        body: bytes = params["envelope"]
        large = len(body) > INLINE_BYTES
        stored = tx.rows("submit", {**params, "envelope": None} if large else params)
        if stored:
            if large:
                tx.rows("put_payload", {"seq": stored[0][0], "part": "envelope", "body": body})
            tx.ring(self._queue_topic(params["queue"]))
            return str(params["id"])
        if params["key"] is not None:
            existing = tx.rows("find_key", params)
            if existing:
                return str(existing[0][0])
        queue, envelope = tx.rows("find_id", params)[0]
        if queue == params["queue"] and envelope == body:
            return str(params["id"])
        raise DispatchError(
            f"submit: id {params['id']!r} is already taken by another job. Use a new id "
            "(leave it out and one is made), or a key to make a submit repeatable."
        )

    # -- workers --------------------------------------------------------------

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
        """Take the next due job, waiting up to `wait` seconds for one; see `Plane.claim`."""
        taken = self.claim_many(
            queue, worker_id, 1, kind=kind, temperature=temperature, lease=lease, wait=wait
        )
        return taken[0] if taken else None

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
        """Take up to `n` jobs in one transaction; see `Plane.claim_many`."""
        spec = check_spec(ClaimSpec(queue, kind, temperature, lease))
        check_name(worker_id, "worker_id")
        check_number(wait, "wait", minimum=0)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n {n!r}: wants a whole number of at least 1")

        def take() -> list[Claimed] | None:
            sampled = self._sample(spec)

            def work(tx: Transaction) -> list[Claimed]:
                self._note_presence(tx, worker_id, queue)
                taken: list[Claimed] = []
                while len(taken) < n:
                    claimed = self._claim(tx, spec, worker_id, None if taken else sampled)
                    if claimed is None:
                        break
                    taken.append(claimed)
                return taken

            return self._write(work) or None

        taken = take()
        if taken or wait == 0:
            return taken or []
        deadline = waiting.deadline_of(wait)
        with _Hung(self._bells.hang(self._queue_topic(queue))) as bell:
            look = lambda: take() if self._due_in(queue) <= 0 else None  # noqa: E731 - one step of the loop
            return waiting.until(look, bell, deadline, due=lambda: self._due_in(queue)) or []

    def _due_in(self, queue: str) -> float:
        """Return seconds until `queue` has a job to take: 0 or less when there is one now."""
        delayed, lapsing, ready = self._read(
            lambda tx: tx.rows("next_due", {"ns": self._ns, "queue": queue})
        )[0]
        if ready:
            return 0.0
        waits = [waiting.SAFETY]
        if delayed is not None:
            waits.append(delayed - self._now())
        if lapsing is not None:
            waits.append(lapsing - self._lease_clock())
        return float(min(waits))

    def _sample(self, spec: ClaimSpec) -> int | None:
        """Draw a row for a boltzmann claim, outside the write lock; the claim itself is guarded."""
        if spec.kind != "boltzmann":
            return None
        params = {
            "ns": self._ns,
            "queue": spec.queue,
            "now": self._now(),
            "mono": self._lease_clock(),
            "temperature": max(spec.temperature, 5e-324),
        }
        rows = self._read(lambda tx: tx.rows("sample", params))
        return rows[0][0] if rows else None

    def _claim(
        self,
        tx: Transaction,
        spec: ClaimSpec,
        worker_id: str,
        sampled: int | None = None,
        after: str | None = None,
    ) -> Claimed | None:
        now, mono = self._now(), self._lease_clock()
        at = {"ns": self._ns, "queue": spec.queue, "now": now, "mono": mono}
        taking = {
            "worker": worker_id,
            "after": after,
            "until": mono + spec.lease,
            "boot": self._lease_epoch(),
            "now": now,
            "mono": mono,
        }
        tx.rows("promote", at)
        taken: list[tuple[Any, ...]] = []
        seq = sampled
        if seq is not None:
            taken = tx.rows("claim", {**taking, "seq": seq})
        if not taken:
            seq = self._choose(tx, spec, at)
            if seq is None:
                return None
            taken = tx.rows("claim", {**taking, "seq": seq})
        id, envelope, attempt, queue, fence = taken[0]
        if envelope is None:
            envelope = tx.rows("payload", {"seq": seq, "part": "envelope"})[0][0]
        if fence > 1:
            self._begin_attempt(tx, id, attempt)
        return Claimed(id, envelope, attempt, queue, fence, now + spec.lease)

    def _choose(self, tx: Transaction, spec: ClaimSpec, at: dict[str, Any]) -> int | None:
        """Return the row to take next: the better of the ready head and the longest lapsed lease."""
        if spec.kind == "boltzmann":
            rows = tx.rows("sample", {**at, "temperature": max(spec.temperature, 5e-324)})
            return rows[0][0] if rows else None
        newest = spec.kind == "filo"
        ready = tx.rows("head_filo" if newest else "head_fifo", at)
        lapsed = tx.rows("head_lapsed", at)
        if ready and lapsed:
            sign = 1 if newest else -1
            return int(max((priority, sign * seq, seq) for seq, priority in (ready[0], lapsed[0]))[2])
        return int((ready or lapsed)[0][0]) if ready or lapsed else None

    def _begin_attempt(self, tx: Transaction, id: str, attempt: int) -> None:
        for jid, next_seq, journal in tx.rows("written_journals", self._family(id)):
            tx.rows("begin_attempt", {"jid": jid})
            body = wire.attempt_frame(next_seq, attempt)
            tx.rows("put_frame", {"jid": jid, "seq": next_seq, "body": body})
            tx.ring(self._journal_topic(journal))

    def _note_presence(self, tx: Transaction, worker_id: str, queue: str) -> None:
        mono = time.monotonic()
        if self._seen.get((worker_id, queue), -1e9) > mono - PRESENCE_SECONDS:
            return
        now = self._now()
        tx.rows(
            "seen",
            {
                "ns": self._ns,
                "worker": worker_id,
                "queue": queue,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": __version__,
                "now": now,
            },
        )
        tx.rows("forget_workers", {"ns": self._ns, "cut": now - _FORGET_WORKERS})
        self._seen[worker_id, queue] = mono

    def heartbeat(
        self, inv_id: str, worker_id: str, *, lease: float = 30.0, fence: int | None = None
    ) -> None:
        """Extend the lease to `lease` seconds from now; see `Plane.heartbeat`."""
        lease = check_number(lease, "lease", minimum=0)
        params = self._guard(inv_id, worker_id, fence)
        params.update(until=self._lease_clock() + lease, boot=self._lease_epoch())

        def work(tx: Transaction) -> None:
            if not tx.rows("heartbeat", params):
                raise self._lost(tx, "heartbeat", params)

        self._write(work, durable=False)

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
        """End a running job as succeeded; see `Plane.ack`."""
        if result is not None and not isinstance(result, (bytes, bytearray, memoryview)):
            raise ValueError(f"ack: result wants bytes or None, got {type(result).__name__}")
        body = None if result is None else bytes(result)
        large = body is not None and len(body) > INLINE_BYTES
        params = self._guard(inv_id, worker_id, fence)
        params.update(result=None if large else body, now=self._now())

        def store(tx: Transaction, seq: int) -> None:
            if large:
                tx.rows("put_payload", {"seq": seq, "part": "result", "body": body})

        return self._end("ack", State.SUCCEEDED, params, frame=frame, next=next, store=store)

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
        """Give a running job back after a failure; see `Plane.nack`."""
        delay = check_number(delay, "delay", minimum=0)
        if retry and frame is not None:
            raise ValueError("nack: frame is the final frame of a job; it goes with retry=False")
        text, traceback = _error_text(error)
        params = self._guard(inv_id, worker_id, fence)
        now = self._now()
        params.update(error=text, traceback=traceback, now=now)
        if retry:
            params.update(not_before=now + delay if delay > 0 else None)
            return self._end("nack_retry", State.QUEUED, params, next=next)
        return self._end("nack_fail", State.FAILED, params, frame=frame, next=next)

    def release(self, inv_id: str, worker_id: str, *, fence: int | None = None) -> None:
        """Hand a running job back unharmed; see `Plane.release`."""
        self._end("release", State.QUEUED, self._guard(inv_id, worker_id, fence))

    def _end(
        self,
        statement: str,
        target: State,
        params: dict[str, Any],
        *,
        frame: bytes | None = None,
        next: ClaimSpec | None = None,
        store: Callable[[Transaction, int], None] | None = None,
    ) -> Claimed | None:
        """Carry out one ending: the guarded UPDATE, its payload, frame and bells, and the next claim."""
        id, worker_id = params["id"], params["worker"]
        verb = statement.partition("_")[0]
        if frame is not None:
            _check_frame(frame)
        spec = None if next is None else check_spec(next)
        sampled = None if spec is None else self._sample(spec)

        def work(tx: Transaction) -> Claimed | None:
            ended = tx.rows(statement, params)
            if not ended:
                return self._replayed(tx, verb, target, params, spec)
            seq, fence, queue = ended[0]
            if store is not None:
                store(tx, seq)
            if target is State.QUEUED:
                tx.rows("reopen_journals", self._family(id))
                tx.ring(self._queue_topic(queue))
            else:
                if frame is not None:
                    self._append(tx, id, [frame], final=True)
                tx.ring(*self._end_topics(id))
            if spec is None:
                return None
            self._note_presence(tx, worker_id, spec.queue)
            return self._claim(tx, spec, worker_id, sampled, after=f"{seq}:{fence}")

        return self._write(work)

    def _replayed(
        self, tx: Transaction, verb: str, target: State, params: dict[str, Any], spec: ClaimSpec | None
    ) -> Claimed | None:
        """Answer a repeated ending as the first was answered, or raise `ClaimLost`."""
        fence = params["fence"]
        held = tx.rows("holder", params)
        if fence is None or not held or held[0][0] != target or held[0][2] != fence:
            raise self._lost(tx, verb, params)
        if spec is None:
            return None
        seq = tx.rows("row", params)[0][-1]
        again = tx.rows("claimed_after", {**params, "after": f"{seq}:{fence}"})
        if not again:
            return None
        id, envelope, attempt, queue, fence, until, seq = again[0]
        if envelope is None:
            envelope = tx.rows("payload", {"seq": seq, "part": "envelope"})[0][0]
        return Claimed(id, envelope, attempt, queue, fence, self._now() + until - self._lease_clock())

    def _guard(self, inv_id: str, worker_id: str, fence: int | None) -> dict[str, Any]:
        if fence is not None and (isinstance(fence, bool) or not isinstance(fence, int)):
            raise ValueError(f"fence {fence!r}: wants an int or None, got {type(fence).__name__}")
        return {
            "ns": self._ns,
            "id": check_id(inv_id),
            "worker": check_name(worker_id, "worker_id"),
            "fence": fence,
        }

    def _lost(self, tx: Transaction, verb: str, params: dict[str, Any]) -> ClaimLost:
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

    # -- anybody --------------------------------------------------------------

    def cancel(self, inv_id: str) -> bool:
        """End a queued or running job as cancelled; see `Plane.cancel`."""
        params = {"ns": self._ns, "id": check_id(inv_id), "now": self._now()}

        def work(tx: Transaction) -> bool:
            if not tx.rows("cancel", params):
                return False
            tx.ring(*self._end_topics(inv_id))
            return True

        return self._write(work)

    def requeue(self, inv_id: str) -> bool:
        """Queue a failed or cancelled job again with a clean record; see `Plane.requeue`."""
        params = {"ns": self._ns, "id": check_id(inv_id)}

        def work(tx: Transaction) -> bool:
            rows = tx.rows("requeue", params)
            if not rows:
                return False
            seq, queue = rows[0]
            tx.rows("drop_result", {"seq": seq})
            tx.rows("restart_journals", self._family(inv_id))
            tx.ring(self._queue_topic(queue))
            return True

        return self._write(work)

    def get(self, inv_id: str) -> dict[str, Any] | None:
        """Return the row without its envelope, or None."""
        params = {"ns": self._ns, "id": check_id(inv_id)}

        def work(tx: Transaction) -> dict[str, Any] | None:
            rows = tx.rows("row", params)
            if not rows:
                return None
            row = self._shown(rows[0])
            if row["result"] is None and row["state"] == State.SUCCEEDED:
                large = tx.rows("payload", {"seq": rows[0][-1], "part": "result"})
                row["result"] = large[0][0] if large else None
            return row

        return self._read(work)

    def _shown(self, row: tuple[Any, ...]) -> dict[str, Any]:
        shown = dict(zip(_ROW, row, strict=False))
        if shown["lease_expires_at"] is not None:
            shown["lease_expires_at"] += self._now() - self._lease_clock()
        return shown

    def envelope(self, inv_id: str) -> bytes | None:
        """Return what was submitted, verbatim, or None."""
        params = {"ns": self._ns, "id": check_id(inv_id)}
        rows = self._read(lambda tx: tx.rows("find_id", params))
        return rows[0][1] if rows else None

    def result(self, inv_id: str, *, timeout: float | None = 30.0, poll: float | None = None) -> bytes:
        """Wait for the job to end and return its packed result; see `Plane.result`."""
        params = {"ns": self._ns, "id": check_id(inv_id)}
        deadline = waiting.deadline_of(_check_timeout(timeout))

        def look() -> tuple[str, bytes | None] | None:
            rows = self._read(lambda tx: tx.rows("outcome", params))
            if not rows:
                raise UnknownInvocation(
                    f"result: no invocation {inv_id!r} in namespace {self._ns!r}. Check the id, the "
                    "namespace and the plane (LAKESHORE_HOME, LAKESHORE_URL)."
                )
            return rows[0] if rows[0][0] in TERMINAL else None

        ended = look()
        if ended is None:
            with _Hung(self._bells.hang(self._end_topic(inv_id))) as bell:
                ended = waiting.until(look, bell, deadline, poll=poll)
        if ended is None:
            raise WaitTimeout(
                f"result: invocation {inv_id!r} has not ended within {timeout:g} s. "
                "It goes on; ask again with its id."
            )
        state, result = ended
        if state == State.FAILED:
            row = self.get(inv_id)
            assert row is not None
            raise InvocationFailed.from_row(row)
        if state == State.CANCELLED:
            raise InvocationCancelled(f"result: invocation {inv_id!r} was cancelled; it has no result.")
        return b"" if result is None else result

    def count(self, queue: str, state: str = State.QUEUED) -> int:
        """Count a queue's rows in one state."""
        params = {"ns": self._ns, "queue": check_name(queue, "queue"), "state": _check_state(state)}
        name = f"count_{state}" if state in (State.QUEUED, State.RUNNING) else "count_ended"
        return int(self._read(lambda tx: tx.rows(name, params))[0][0])

    def queues(self) -> dict[str, dict[str, int]]:
        """Return ``{queue: {state: rows}}`` for every queue that has rows."""
        counts: dict[str, dict[str, int]] = {}
        for queue, state, n in self._read(lambda tx: tx.rows("queues", {"ns": self._ns})):
            of = counts.setdefault(queue, {})
            of[state] = of.get(state, 0) + n
        return dict(sorted(counts.items()))

    def invocations(
        self,
        queue: str | None = None,
        *,
        state: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """List rows, newest submitted first, without envelope and result; see `Plane.invocations`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"limit {limit!r}: wants a whole number of at least 0")
        params = {
            "ns": self._ns,
            "queue": None if queue is None else check_name(queue, "queue"),
            "state": None if state is None else _check_state(state),
            "before": None if before is None else check_id(before, "before"),
            "limit": limit,
        }
        rows = [self._shown(row) for row in self._read(lambda tx: tx.rows("list", params))]
        for row in rows:
            del row["result"]
        return rows

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """List the workers that asked for jobs, latest first; see `Plane.workers`."""
        params = {"ns": self._ns, "queue": None if queue is None else check_name(queue, "queue")}
        names = ("worker_id", "queue", "host", "pid", "version", "seen_at", "running")
        return [
            dict(zip(names, row, strict=True)) for row in self._read(lambda tx: tx.rows("workers", params))
        ]

    # -- journals -------------------------------------------------------------

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
        """Append one frame and return its seq; see `Plane.journal_append`."""
        _check_frame(frame_bytes)
        if seq is not None and (
            isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < _SEQ_LIMIT
        ):
            raise ValueError(f"seq {seq!r}: wants None or a whole number from 0")
        guard = self._append_guard(inv_id, worker_id, fence)

        def work(tx: Transaction) -> int:
            self._check_claim(tx, guard)
            if seq is None:
                return self._append(tx, inv_id, [frame_bytes], final=final)
            return self._append_at(tx, inv_id, seq, frame_bytes, final=final)

        return self._write(work, durable=False)

    def journal_extend(
        self,
        inv_id: str,
        frames: Sequence[bytes],
        *,
        worker_id: str | None = None,
        fence: int | None = None,
    ) -> int:
        """Append many frames in one transaction and return the last seq (-1 for none)."""
        for frame in frames:
            _check_frame(frame)
        guard = self._append_guard(inv_id, worker_id, fence)
        if not frames:
            return -1

        def work(tx: Transaction) -> int:
            self._check_claim(tx, guard)
            return self._append(tx, inv_id, frames)

        return self._write(work, durable=False)

    def _append_guard(self, inv_id: str, worker_id: str | None, fence: int | None) -> dict[str, Any] | None:
        check_name(inv_id, "journal id")
        if worker_id is None and fence is None:
            return None
        return self._guard(_stem(inv_id), worker_id or "-", fence) | {"any_worker": worker_id is None}

    def _check_claim(self, tx: Transaction, guard: dict[str, Any] | None) -> None:
        if guard is None:
            return
        held = tx.rows("holder", guard)
        if held:
            state, worker, fence, _ = held[0]
            mine = guard["any_worker"] or worker == guard["worker"]
            if state == State.RUNNING and mine and guard["fence"] in (None, fence):
                return
        raise self._lost(tx, "journal_append", guard)

    def _append(self, tx: Transaction, journal: str, frames: Sequence[bytes], *, final: bool = False) -> int:
        n = len(frames)
        params = {"ns": self._ns, "id": journal, "n": n, "now": self._now()}
        taken = tx.rows("take_seq", params) or tx.rows("open_journal", {**params, "stem": _stem(journal)})
        jid, next_seq = taken[0]
        first = next_seq - n
        if n == 1:
            tx.rows("put_frame", {"jid": jid, "seq": first, "body": bytes(frames[0])})
        else:
            tx.run_many(
                "put_frame",
                ({"jid": jid, "seq": first + i, "body": bytes(body)} for i, body in enumerate(frames)),
            )
        if final:
            tx.rows("close_journal", {"jid": jid, "seq": next_seq - 1})
        tx.ring(self._journal_topic(journal))
        return int(next_seq - 1)

    def _append_at(self, tx: Transaction, journal: str, seq: int, body: bytes, *, final: bool) -> int:
        params = {"ns": self._ns, "id": journal, "n": 0, "now": self._now(), "stem": _stem(journal)}
        found = tx.rows("journal", params)
        if found:
            jid, _, trimmed_to, _, _ = found[0]
        else:
            jid, trimmed_to = tx.rows("open_journal", params)[0][0], 0
        if seq < trimmed_to:
            return seq
        tx.rows("put_frame", {"jid": jid, "seq": seq, "body": bytes(body)})
        tx.rows("reach_seq", {"jid": jid, "seq": seq, "now": params["now"]})
        if final:
            tx.rows("close_journal", {"jid": jid, "seq": seq})
        tx.ring(self._journal_topic(journal))
        return seq

    def journal_read(
        self,
        inv_id: str,
        *,
        since: int = -1,
        timeout: float | None = 30.0,
        poll: float | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield ``(seq, frame)`` after `since` until the journal is finished; see `Plane.journal_read`."""
        check_name(inv_id, "journal id")
        _check_timeout(timeout)
        if isinstance(since, bool) or not isinstance(since, int) or since < -1:
            raise ValueError(f"since {since!r}: wants -1 (from the start) or the seq of the last frame seen")
        return waiting.follow(
            lambda cursor: self._batch(inv_id, cursor),
            lambda: self._bells.hang(self._journal_topic(inv_id)),
            since=since,
            timeout=timeout,
            poll=poll,
            what=inv_id,
        )

    def _batch(self, journal: str, cursor: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the next frames, and whether the journal is finished after them.

        The row is read first: if it had ended by then, every frame of its ending is seen after.
        """

        def work(tx: Transaction) -> tuple[list[tuple[int, bytes]], bool]:
            held = tx.rows("holder", {"ns": self._ns, "id": _stem(journal)})
            ended = bool(held) and held[0][0] in TERMINAL
            found = tx.rows("journal", {"ns": self._ns, "id": journal})
            if not found:
                return [], ended
            jid, next_seq, _, attempt_seq, closed = found[0]
            since = attempt_seq - 1 if cursor == -1 else cursor
            if since + 1 >= next_seq:
                return [], ended or closed is not None
            frames = tx.rows("frames", {"jid": jid, "since": since})
            if closed is not None:
                frames = [frame for frame in frames if frame[0] <= closed]
                ended = ended or since >= closed or (bool(frames) and frames[-1][0] == closed)
                if ended and len(frames) < _BATCH:
                    return frames, True
            return frames, ended and len(frames) < _BATCH

        return self._read(work)

    def journal_trim(self, inv_id: str, *, keep_last: int = 0) -> int:
        """Drop all but the last `keep_last` frames; returns how many were dropped."""
        check_name(inv_id, "journal id")
        if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 0:
            raise ValueError(f"keep_last {keep_last!r}: wants a whole number of at least 0")

        def work(tx: Transaction) -> int:
            found = tx.rows("journal", {"ns": self._ns, "id": inv_id})
            if not found:
                return 0
            jid, bound = found[0][0], found[0][1]
            if keep_last:
                kept = tx.rows("keep_from", {"jid": jid, "keep": keep_last})
                bound = kept[0][0] if kept else 0
            dropped = len(tx.rows("trim", {"jid": jid, "seq": bound}))
            tx.rows("trimmed", {"jid": jid, "seq": bound})
            return dropped

        return self._write(work)

    def prune(
        self,
        *,
        older_than: float,
        states: Iterable[str] = tuple(sorted(TERMINAL)),
        limit: int | None = None,
    ) -> int:
        """Delete rows that ended `older_than` seconds ago, with journals and keys, and silent topics."""
        cut = self._now() - check_number(older_than, "older_than", minimum=0)
        wanted = [_check_state(state) for state in ([states] if isinstance(states, str) else states)]
        if not set(wanted) <= TERMINAL:
            raise ValueError(f"states {wanted!r}: only ended rows are pruned: {', '.join(sorted(TERMINAL))}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ValueError(f"limit {limit!r}: wants None or a whole number of at least 0")
        removed = 0
        for state in wanted:
            while limit is None or removed < limit:
                n = min(_BATCH, _BATCH if limit is None else limit - removed)
                step = {"ns": self._ns, "state": state, "cut": cut, "limit": n}
                gone = self._write(lambda tx, step=step: self._prune_rows(tx, step))  # type: ignore[misc]
                removed += gone
                if gone < n:
                    break
        while self._write(lambda tx: self._prune_topics(tx, cut)):
            pass
        return removed

    def _prune_rows(self, tx: Transaction, step: dict[str, Any]) -> int:
        rows = tx.rows("prunable", step)
        for seq, id in rows:
            if tx.rows("prune_row", {"seq": seq, "cut": step["cut"]}):
                tx.rows("prune_payload", {"seq": seq})
                tx.rows("prune_frames", self._family(id))
                tx.rows("prune_journals", self._family(id))
        return len(rows)

    def _prune_topics(self, tx: Transaction, cut: float) -> int:
        silent = tx.rows("silent_topics", {"ns": self._ns, "cut": cut})
        for (jid,) in silent:
            tx.rows("prune_topic_frames", {"jid": jid})
            tx.rows("prune_topic", {"jid": jid})
        return len(silent)

    # -- names ----------------------------------------------------------------

    def _family(self, id: str) -> dict[str, str]:
        log, progress = (id + suffix for suffix in SIBLINGS)
        return {"ns": self._ns, "id": id, "log": log, "progress": progress}

    def _queue_topic(self, queue: str) -> str:
        return f"q/{self._ns}/{queue}"

    def _journal_topic(self, journal: str) -> str:
        return f"j/{self._ns}/{journal}"

    def _end_topic(self, id: str) -> str:
        return f"e/{self._ns}/{id}"

    def _end_topics(self, id: str) -> list[str]:
        journals = [self._journal_topic(id + suffix) for suffix in ("", *SIBLINGS)]
        return [self._end_topic(id), *journals]


class _Hung:
    """A bell that is taken down at the end of a block."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    def __enter__(self) -> Bell:
        return self._bell

    def __exit__(self, *exc: object) -> None:
        self._bell.close()


def _stem(journal: str) -> str:
    """Return the invocation a journal belongs to: its id without .log or .progress."""
    for suffix in SIBLINGS:
        if journal.endswith(suffix):
            return journal[: -len(suffix)]
    return journal


def _check_state(state: str) -> str:
    if state not in State.__members__.values():
        raise ValueError(f"state {state!r}: wants one of {', '.join(State)}")
    return str(state)


def _check_timeout(timeout: float | None) -> float | None:
    return None if timeout is None else check_number(timeout, "timeout", minimum=0)


def _check_frame(frame: object) -> None:
    if not isinstance(frame, (bytes, bytearray, memoryview)):
        raise ValueError(f"frame: wants bytes, got {type(frame).__name__}")


def _error_text(error: str | dict[str, Any]) -> tuple[str, str | None]:
    """Return the row's `error` and `traceback` columns; lone surrogates become escapes."""
    if isinstance(error, dict):
        kind, message = str(error.get("type") or "Error"), str(error.get("message") or "")
        traceback = error.get("traceback")
        text = f"{kind}: {message}" if message else kind
    elif isinstance(error, str):
        text, traceback = error, None
    else:
        raise ValueError(f"error: wants a str or a dict, got {type(error).__name__}")
    clean = [
        None if part is None else str(part).encode("utf-8", "backslashreplace").decode("utf-8")
        for part in (text, traceback)
    ]
    return clean[0] or "Error", clean[1]
