"""The verbs that end a claim: ack, nack, release. Each passes the one guard in `_end`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakeshore.planes.contract import Claimed, ClaimSpec, check_span, check_spec
from lakeshore.planes.engine import Transaction, check_bytes
from lakeshore.planes.store_claims import Claims
from lakeshore.planes.store_journals import Journals
from lakeshore.planes.store_producers import INLINE_BYTES
from lakeshore.states import State


class Endings(Claims, Journals):
    """End a running job, and claim the next one in the same commit."""

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
        body = None if result is None else check_bytes(result, "result")
        large = body is not None and len(body) > INLINE_BYTES
        params = self._guard(inv_id, worker_id, fence)
        params.update(result=None if large else body, now=self._now())

        def store(tx: Transaction) -> None:
            seq, _ = tx.rows("place", params)[0]
            tx.rows("put_payload", {"seq": seq, "part": "result", "body": body})

        return self._end(
            "ack", State.SUCCEEDED, params, frame=frame, next=next, store=store if large else None
        )

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
        delay = check_span(delay, "delay")
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
        store: Callable[[Transaction], None] | None = None,
    ) -> Claimed | None:
        """Carry out one ending: the guarded UPDATE, its payload, frame and bells, and the next claim."""
        id, worker_id = params["id"], params["worker"]
        final = None if frame is None else check_bytes(frame, "frame")
        spec = None if next is None else check_spec(next)
        # A job that goes back to its queue is one to draw from, so that draw is made after it, in `_claim`.
        sampled = None if spec is None or target is State.QUEUED else self._sample(spec)
        # What a repeat of this call finds its claim by; without a fence a repeat is refused.
        after = None if params["fence"] is None else f"{id}:{params['fence']}:{statement}"
        if statement == "ack" and spec is not None and after is not None and final is None and store is None:
            done = self._ack_and_claim(params, spec, after)
            if done is not None:
                return done[0] if done else None

        def work(tx: Transaction) -> Claimed | None:
            if not tx.changed(statement, params):
                return self._replayed(tx, statement, target, params, spec)
            if store is not None:
                store(tx)
            if target is State.QUEUED:
                _, queue = tx.rows("place", params)[0]
                tx.rows("reopen_journals", self._family(id))
                tx.ring(self._queue_topic(queue))
            else:
                if final is not None:
                    self._append(tx, id, [final], final=True)
                tx.ring(*self._end_topics(id))
            if spec is None:
                return None
            self._note_presence(tx, worker_id, spec.queue)
            return self._claim(tx, spec, worker_id, sampled, after=after)

        return self._write(work)

    def _ack_and_claim(self, params: dict[str, Any], spec: ClaimSpec, after: str) -> list[Claimed] | None:
        """Make a plain ack and the next claim by one statement; None where there is more to do.

        When its answer was lost it is run again, does nothing, and `_replayed` finds what it did.
        """
        worker_id = params["worker"]
        if spec.kind not in ("fifo", "priority") or not self._is_present(worker_id, spec.queue):
            return None
        taking = self._taking(spec, worker_id, after)
        rows = self._alone("ack_and_claim_ready", {**taking, **params}, *self._end_topics(params["id"]))
        if rows is None or not rows[0][0]:
            return None
        until = taking["now"] + spec.lease
        return [
            Claimed(id, envelope, attempt, queue, fence, until)
            for _, seq, id, envelope, attempt, queue, fence in rows
            if seq is not None
        ]

    def _replayed(
        self, tx: Transaction, statement: str, target: State, params: dict[str, Any], spec: ClaimSpec | None
    ) -> Claimed | None:
        """Answer a repeated ending as the first was answered, or raise `ClaimLost`."""
        verb, fence = statement.partition("_")[0], params["fence"]
        held = tx.rows("holder", params)
        if fence is None or not held:
            raise self._lost(tx, verb, params)
        if spec is not None:
            again = tx.rows("claimed_after", {**params, "ending": statement})
            if again:
                id, envelope, attempt, queue, fence, until, seq = again[0]
                if envelope is None:
                    envelope = self._large_envelope(tx, seq)
                return Claimed(id, envelope, attempt, queue, fence, self._now() + until - self._lease_clock())
        if held[0][0] != target or held[0][2] != fence:
            raise self._lost(tx, verb, params)
        return None


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
