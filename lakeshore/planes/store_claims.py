"""The verbs of a worker that takes and keeps work: claim, claim_many, heartbeat."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from lakeshore import wire
from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import waiting
from lakeshore.planes.contract import (
    Claimed,
    ClaimSpec,
    check_id,
    check_name,
    check_number,
    check_span,
    check_spec,
)
from lakeshore.planes.engine import Engine, Transaction, check_whole
from lakeshore.version import __version__

PRESENCE_SECONDS = 10.0
_FORGET_WORKERS = 86400.0
_COLDEST = 5e-324
"""Temperature 0: every difference of priority becomes infinite, so the highest is taken."""
_DUE_DELAYED = 2


class Claims(Engine):
    """Take jobs in order, and hold on to them."""

    _seen: dict[tuple[str, str], float]

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
        check_whole(n, "n", 1)

        def take() -> list[Claimed] | None:
            sampled = self._sample(spec)
            return self._write(lambda tx: self._take(tx, spec, worker_id, n, sampled)) or None

        taken = take()
        if taken or wait == 0:
            return taken or []
        return (
            waiting.until(
                lambda: take() if self._due_in(queue) <= 0 else None,
                lambda: self._bells.hang(self._queue_topic(queue)),
                waiting.deadline_of(wait),
                due=lambda: self._due_in(queue),
            )
            or []
        )

    def _take(
        self, tx: Transaction, spec: ClaimSpec, worker_id: str, n: int, sampled: int | None
    ) -> list[Claimed]:
        self._note_presence(tx, worker_id, spec.queue)
        ready = self._ready(tx, spec, worker_id, n)
        if ready is not None and spec.kind != "filo":
            return ready
        taken = ready or []
        while len(taken) < n:
            claimed = self._claim(tx, spec, worker_id, None if taken else sampled)
            if claimed is None:
                break
            taken.append(claimed)
        return taken

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
        at = {"ns": self._ns, "queue": spec.queue, "now": self._now(), "mono": self._lease_clock()}
        return self._read(lambda tx: self._draw(tx, spec, at))

    def _draw(self, tx: Transaction, spec: ClaimSpec, at: dict[str, Any]) -> int | None:
        rows = tx.rows("sample", {**at, "temperature": max(spec.temperature, _COLDEST)})
        return rows[0][0] if rows else None

    def _claim(
        self,
        tx: Transaction,
        spec: ClaimSpec,
        worker_id: str,
        sampled: int | None = None,
        after: str | None = None,
    ) -> Claimed | None:
        """Take one job within a transaction; `after` names the ending that claims it."""
        ready = self._ready(tx, spec, worker_id, 1, after) if after is not None else None
        if ready or (ready is not None and spec.kind != "filo"):
            return ready[0] if ready else None
        taking = self._taking(spec, worker_id, after)
        at = {name: taking[name] for name in ("ns", "queue", "now", "mono")}
        seq = sampled
        if seq is not None:
            tx.rows("promote", at)
        if seq is None or not tx.changed("claim", {**taking, "seq": seq}):
            seq = self._choose(tx, spec, at)
            if seq is None:
                return None
            tx.changed("claim", {**taking, "seq": seq})
        return self._handed(tx, (seq, *tx.rows("claimed", {"seq": seq})[0]), taking["now"] + spec.lease)

    def _taking(self, spec: ClaimSpec, worker_id: str, after: str | None) -> dict[str, Any]:
        """Return the parameters of a claim made now."""
        now, mono = self._now(), self._lease_clock()
        return {
            "ns": self._ns,
            "queue": spec.queue,
            "worker": worker_id,
            "after": after,
            "until": mono + spec.lease,
            "boot": self._lease_epoch(),
            "now": now,
            "mono": mono,
        }

    def _ready(
        self, tx: Transaction, spec: ClaimSpec, worker_id: str, n: int, after: str | None = None
    ) -> list[Claimed] | None:
        """Take up to `n` jobs by one statement, where the engine and the moment allow."""
        if not tx.takes or spec.kind == "boltzmann":
            return None
        taking = self._taking(spec, worker_id, after)
        rows = tx.take(taking, n, newest=spec.kind == "filo")
        if rows is None:
            return None
        return [self._handed(tx, row, taking["now"] + spec.lease) for row in rows]

    def _handed(self, tx: Transaction, row: tuple[Any, ...], until: float) -> Claimed:
        """Return what was claimed, its attempt open in its journals."""
        seq, id, envelope, attempt, queue, fence = row
        self._check_row(seq, id, queue)
        if envelope is None:
            envelope = self._large_envelope(tx, seq)
        if fence > 1:
            self._begin_attempt(tx, id, attempt)
        return Claimed(id, envelope, attempt, queue, fence, until)

    def _check_row(self, seq: int | None, id: object, queue: str) -> None:
        """Refuse a row whose id no verb could name: it was not written by a plane."""
        try:
            check_id(id)
        except ValueError as error:
            raise PlaneUnavailable(
                f"claim: row {seq} of queue {queue!r} was altered by another program ({error}). Delete that "
                "row, or restore a backup; until then this queue stands still."
            ) from error

    def _large_envelope(self, tx: Transaction, seq: int | None) -> bytes:
        """Return an envelope from beside its row; one that was taken out of the file reads as empty.

        Raising here would stop every worker of the queue at this row. An empty envelope cannot be decoded,
        so it fails this job alone.
        """
        rows = tx.rows("payload", {"seq": seq, "part": "envelope"})
        return bytes(rows[0][0]) if rows else b""

    def _choose(self, tx: Transaction, spec: ClaimSpec, at: dict[str, Any]) -> int | None:
        """Return the row to take next: the better of the ready head and the longest lapsed lease."""
        if spec.kind == "boltzmann":
            tx.rows("promote", at)
            return self._draw(tx, spec, at)
        newest = spec.kind == "filo"
        heads = tx.rows("heads_filo" if newest else "heads_fifo", at)
        if heads and heads[-1][0] == _DUE_DELAYED:
            tx.rows("promote", at)
            heads = tx.rows("heads_filo" if newest else "heads_fifo", at)
        if not heads:
            return None
        sign = 1 if newest else -1
        return int(max((priority, sign * seq, seq) for _, seq, priority in heads)[2])

    def _begin_attempt(self, tx: Transaction, id: str, attempt: int) -> None:
        """Open an attempt in every journal of a job that an earlier claim may have written to."""
        for jid, next_seq, journal in tx.rows("written_journals", self._family(id)):
            tx.rows("begin_attempt", {"jid": jid})
            body = wire.attempt_frame(next_seq, attempt)
            tx.rows("put_frame", {"jid": jid, "seq": next_seq, "body": body})
            tx.ring(self._journal_topic(journal))

    def _is_present(self, worker_id: str, queue: str) -> bool:
        """Whether a worker's presence was noted so lately that it need not be again."""
        return self._seen.get((worker_id, queue), -1e9) > time.monotonic() - PRESENCE_SECONDS

    def _note_presence(self, tx: Transaction, worker_id: str, queue: str) -> None:
        if self._is_present(worker_id, queue):
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
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[worker_id, queue] = time.monotonic()

    def heartbeat(
        self, inv_id: str, worker_id: str, *, lease: float = 30.0, fence: int | None = None
    ) -> None:
        """Extend the lease to `lease` seconds from now; see `Plane.heartbeat`."""
        lease = check_span(lease, "lease")
        params = self._guard(inv_id, worker_id, fence)
        params.update(boot=self._lease_epoch())

        def work(tx: Transaction) -> None:
            params.update(until=self._lease_clock() + lease)
            if not tx.changed("heartbeat", params):
                raise self._lost(tx, "heartbeat", params)

        self._write(work, durable=False)
