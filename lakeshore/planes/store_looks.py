"""The verbs that only look: get, envelope, result, count, queues, invocations, workers."""

from __future__ import annotations

from typing import Any

from lakeshore.errors import InvocationCancelled, InvocationFailed, UnknownInvocation, WaitTimeout
from lakeshore.planes import waiting
from lakeshore.planes.contract import check_id, check_name, check_number
from lakeshore.planes.engine import Engine, Transaction, check_state, check_whole
from lakeshore.states import TERMINAL, State

_ROW = (
    *("id", "ns", "queue", "state", "priority", "key", "result", "error", "traceback", "worker_id"),
    *("attempt", "fence", "losses", "parent", "submitted_at", "not_before", "lease_expires_at"),
    *("started_at", "finished_at"),
)
_WORKER = ("worker_id", "queue", "host", "pid", "version", "seen_at", "running")
_WALKED = 2000
"""How many of the newest rows a list of one queue walks before it asks the indexes."""
_ALL = 2**62


class Looks(Engine):
    """Read rows, and wait for one to end."""

    def get(self, inv_id: str) -> dict[str, Any] | None:
        """Return the row without its envelope, or None."""
        params = {"ns": self._ns, "id": check_id(inv_id)}
        rows = self._read(lambda tx: tx.rows("row", params))
        return self._shown(rows[0]) if rows else None

    def _shown(self, row: tuple[Any, ...]) -> dict[str, Any]:
        shown = dict(zip(_ROW, row, strict=True))
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
        if timeout is not None:
            check_number(timeout, "timeout", minimum=0)
        if poll is not None:
            check_number(poll, "poll", minimum=0)

        def look() -> tuple[Any, ...] | None:
            rows = self._read(lambda tx: tx.rows("outcome", params))
            if not rows:
                raise UnknownInvocation(
                    f"result: no invocation {inv_id!r} in namespace {self._ns!r}. Check the id, the "
                    "namespace and the plane (LAKESHORE_HOME, LAKESHORE_URL)."
                )
            return rows[0] if rows[0][0] in TERMINAL else None

        ended = waiting.until(
            look,
            lambda: self._bells.hang(self._end_topic(inv_id)),
            waiting.deadline_of(timeout),
            poll=poll,
        )
        if ended is None:
            raise WaitTimeout(
                f"result: invocation {inv_id!r} has not ended within {timeout:g} s. "
                "It goes on; ask again with its id."
            )
        state, result, error, traceback = ended
        if state == State.FAILED:
            raise InvocationFailed.from_row({"id": inv_id, "error": error, "traceback": traceback})
        if state == State.CANCELLED:
            raise InvocationCancelled(f"result: invocation {inv_id!r} was cancelled; it has no result.")
        return b"" if result is None else result

    def count(self, queue: str, state: str = State.QUEUED) -> int:
        """Count a queue's rows in one state."""
        params = {"ns": self._ns, "queue": check_name(queue, "queue"), "state": check_state(state)}
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
        params = {
            "ns": self._ns,
            "queue": None if queue is None else check_name(queue, "queue"),
            "state": None if state is None else check_state(state),
            "before": None if before is None else check_id(before, "before"),
            "limit": min(check_whole(limit, "limit", 0), _ALL),
        }
        rows = [self._shown(row) for row in self._read(lambda tx: self._listed(tx, params))]
        for row in rows:
            del row["result"]
        return rows

    def _listed(self, tx: Transaction, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Walk from the newest row when that finds enough soon, else go by the indexes."""
        if params["before"] is None:
            params = {**params, "before": _ALL}
        else:
            place = tx.rows("place", {**params, "id": params["before"]})
            if not place:
                return []
            params = {**params, "before": place[0][0]}
        if params["state"] == State.RUNNING:
            return tx.rows("list_running", params)
        if params["queue"] is None:
            return tx.rows("list", {**params, "window": _ALL})
        rows = tx.rows("list", {**params, "window": _WALKED})
        return rows if len(rows) >= params["limit"] else tx.rows("list_rare", params)

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """List the workers that asked for jobs, latest first; see `Plane.workers`."""
        params = {"ns": self._ns, "queue": None if queue is None else check_name(queue, "queue")}

        def look(tx: Transaction) -> list[tuple[Any, ...]]:
            return tx.rows("workers", params)

        return [dict(zip(_WORKER, row, strict=True)) for row in self._read(look)]
