"""The verbs of who brings work: submit, submit_many, cancel, requeue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakeshore.errors import DispatchError
from lakeshore.planes.contract import Submission, check_id, check_name, check_number, check_span
from lakeshore.planes.engine import Engine, Transaction, check_bytes

INLINE_BYTES = 1024
"""Envelopes and results up to this size live in their row; larger ones beside it."""


class Vanished(DispatchError):
    """What a submit met was gone when it was looked for: where writers run side by side it is made again."""


class Producers(Engine):
    """Queue jobs, take them back, queue them again."""

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
        params = self._submission(check_name(queue, "queue"), envelope, id, key, priority, parent, delay)
        if len(params["envelope"]) <= INLINE_BYTES and self._alone(
            "submit", params, self._queue_topic(params["queue"])
        ):
            return str(params["id"])
        return self._write(lambda tx: self._submit(tx, params))

    def submit_many(self, queue: str, items: Iterable[Submission]) -> list[str]:
        """Queue many jobs in one transaction and return their ids in order; see `Plane.submit_many`."""
        check_name(queue, "queue")
        rows = [
            self._submission(queue, i.envelope, i.id, i.key, i.priority, i.parent, i.delay) for i in items
        ]
        if not rows:
            return []
        return self._write(lambda tx: self._submit_all(tx, rows))

    def _submission(
        self,
        queue: str,
        envelope: bytes,
        id: str,
        key: str | None,
        priority: float,
        parent: str | None,
        delay: float,
    ) -> dict[str, Any]:
        now = self._now()
        delay = check_span(delay, "delay")
        return {
            "ns": self._ns,
            "id": check_id(id),
            "queue": queue,
            "priority": check_number(priority, "priority"),
            "key": None if key is None else check_name(key, "key"),
            "parent": None if parent is None else check_id(parent, "parent"),
            "now": now,
            "not_before": now + delay if delay > 0 else None,
            "envelope": check_bytes(envelope, "envelope"),
        }

    def _submit(self, tx: Transaction, params: dict[str, Any]) -> str:
        body: bytes = params["envelope"]
        large = len(body) > INLINE_BYTES
        seq = tx.added("submit", {**params, "envelope": None} if large else params)
        if seq is None:
            return self._known(tx, params)
        if large:
            tx.rows("put_payload", {"seq": seq, "part": "envelope", "body": body})
        tx.ring(self._queue_topic(params["queue"]))
        return str(params["id"])

    def _submit_all(self, tx: Transaction, rows: list[dict[str, Any]]) -> list[str]:
        """As `_submit` for each, in statements for many."""
        beside = [len(row["envelope"]) > INLINE_BYTES for row in rows]
        seqs = tx.added_many(
            "submit",
            [{**row, "envelope": None} if large else row for row, large in zip(rows, beside, strict=True)],
        )
        each = list(zip(rows, beside, seqs, strict=True))
        payloads = [
            {"seq": seq, "part": "envelope", "body": row["envelope"]}
            for row, large, seq in each
            if large and seq is not None
        ]
        if payloads:
            tx.run_many("put_payload", payloads)
        tx.ring(self._queue_topic(rows[0]["queue"]))
        return [str(row["id"]) if seq is not None else self._known(tx, row) for row, _, seq in each]

    def _known(self, tx: Transaction, params: dict[str, Any]) -> str:
        """Return the id of what was submitted before under this key, or with this id and envelope."""
        if params["key"] is not None:
            existing = tx.rows("find_key", params)
            if existing:
                return str(existing[0][0])
        found = tx.rows("find_id", params)
        if not found:
            raise Vanished(f"submit: what invocation {params['id']!r} met is gone. Submit it again.")
        queue, envelope = found[0]
        if queue == params["queue"] and envelope == params["envelope"]:
            return str(params["id"])
        raise DispatchError(
            f"submit: id {params['id']!r} is already taken by another job. Use a new id "
            "(leave it out and one is made), or a key to make a submit repeatable."
        )

    def cancel(self, inv_id: str) -> bool:
        """End a queued or running job as cancelled; see `Plane.cancel`."""
        params = {"ns": self._ns, "id": check_id(inv_id), "now": self._now()}

        def work(tx: Transaction) -> bool:
            if not tx.changed("cancel", params):
                return False
            tx.ring(*self._end_topics(inv_id))
            return True

        return self._write(work)

    def requeue(self, inv_id: str) -> bool:
        """Queue a failed or cancelled job again with a clean record; see `Plane.requeue`."""
        params = {"ns": self._ns, "id": check_id(inv_id)}

        def work(tx: Transaction) -> bool:
            if not tx.changed("requeue", params):
                return False
            _, queue = tx.rows("place", params)[0]
            tx.rows("restart_journals", self._family(inv_id))
            tx.ring(self._queue_topic(queue))
            return True

        return self._write(work)
