"""The verbs of those who submit, wait and look, as requests and answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lakeshore.errors import (
    DispatchError,
    InvocationCancelled,
    InvocationFailed,
    UnknownInvocation,
    WaitTimeout,
)
from lakeshore.planes import protocol
from lakeshore.planes.contract import Submission, check_id, check_name, check_number, check_span
from lakeshore.planes.engine import check_bytes, check_state, check_whole
from lakeshore.planes.http_asking import Asking, pause
from lakeshore.planes.http_steps import Ask, Steps
from lakeshore.planes.http_tries import Setback
from lakeshore.planes.protocol import HOLD_SECONDS, Route
from lakeshore.states import TERMINAL, State

_LOOK_SECONDS: Final = 2.0
"""How long a wait without patience of its own rides out an outage."""
_LONGEST_TEXT: Final = 64 * 1024
"""Characters that are shown of a failure's message and of its traceback; our workers keep within it."""
_LONGEST_TYPE: Final = 200
_ROW: Final[dict[str, Any]] = {
    **dict.fromkeys(("id", "ns", "queue", "state")),
    "priority": 0.0,
    **dict.fromkeys(("key", "result", "error", "traceback", "worker_id")),
    **dict.fromkeys(("attempt", "fence", "losses"), 0),
    **dict.fromkeys(
        ("parent", "submitted_at", "not_before", "lease_expires_at", "started_at", "finished_at")
    ),
}


class Producing(Asking):
    """Submit, wait, look."""

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
        check_name(queue, "queue")
        item = _checked(
            Submission(envelope=envelope, id=id, key=key, priority=priority, parent=parent, delay=delay)
        )
        if item.delay:
            self._need_ours("submit", "A delay would be forgotten there. Submit without one.")
        answer = self._ask("submit", protocol.SUBMIT, protocol.submit_body(queue, item)).body
        return self._given("submit", self._read("submit", answer, "invocation_id", str))

    def submit_many(self, queue: str, items: Iterable[Submission]) -> list[str]:
        """Queue many jobs in one transaction and return their ids in order; see `Plane.submit_many`."""
        check_name(queue, "queue")
        bodies = [protocol.submit_body(queue, _checked(item)) for item in items]
        if not bodies:
            return []
        self._need_ours("submit_many", "Submit one by one there.")
        body = {"queue": queue, "items": bodies}
        answer = self._ask("submit_many", protocol.SUBMIT_MANY, body).body
        ids = self._read("submit_many", answer, "invocation_ids", list)
        return [self._given("submit_many", id) for id in ids]

    def _given(self, verb: str, id: object) -> str:
        """Return an id that the control plane gave, if it can be one."""
        try:
            return check_id(id, "invocation_id")
        except ValueError as exc:
            problem = str(exc)
        raise self._tries.malformed(verb, problem)

    def cancel(self, inv_id: str) -> bool:
        """End a queued or running job as cancelled; see `Plane.cancel`."""
        return self._switch("cancel", protocol.CANCEL, inv_id, {State.CANCELLED})

    def requeue(self, inv_id: str) -> bool:
        """Queue a failed or cancelled job again with a clean record; see `Plane.requeue`."""
        return self._switch("requeue", protocol.REQUEUE, inv_id, {State.QUEUED, State.RUNNING})

    def _switch(self, verb: str, route: Route, inv_id: str, made: set[State]) -> bool:
        check_id(inv_id)
        self._need_ours(verb)
        reply = self._ask(verb, route, {}, id=inv_id, miss=True)
        done = self._read(verb, reply.body, "ok", bool, False)
        if done or not reply.doubt:
            return done
        row = self.get(inv_id)
        return row is not None and row["state"] in made  # the try whose answer was lost did it

    def get(self, inv_id: str) -> dict[str, Any] | None:
        """Return the row without its envelope, or None; in the field it holds state, result and error."""
        check_id(inv_id)
        if not self._tries.ours:
            answer = self._await("get", inv_id)
            if not self._tries.ours:
                return self._row_of(inv_id, answer)
        row = self._ask("get", protocol.GET, id=inv_id, miss=True).body
        if row and (row.get("id") != inv_id or not isinstance(row.get("state"), str)):
            raise self._tries.malformed("get", f"no row of {inv_id!r}: its id or state is another thing")
        return {**_ROW, **row} if row else None

    def _row_of(self, inv_id: str, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        state = self._state("get", answer)
        if state is None:
            return None
        row = {**_ROW, "id": inv_id, "ns": self._ns, "state": str(state)}
        if state is State.SUCCEEDED:
            row["result"] = self._read("get", answer, "result_blob", bytes, b"")
        elif state is State.FAILED:
            kind, message, row["traceback"] = protocol.read_error(answer)
            row["error"] = f"{kind}: {message}" if message else kind
        return row

    def envelope(self, inv_id: str) -> bytes | None:
        """Return what was submitted, verbatim, or None."""
        check_id(inv_id)
        self._need_ours("envelope")
        answer = self._ask("envelope", protocol.ENVELOPE, id=inv_id, miss=True).body
        return self._read("envelope", answer, "envelope", bytes) if answer else None

    def result(self, inv_id: str, *, timeout: float | None = 30.0, poll: float | None = None) -> bytes:
        """Wait for the job to end and return its packed result; see `Plane.result`."""
        return self._drive(self._result_steps(inv_id, timeout=timeout, poll=poll))

    def _result_steps(
        self, inv_id: str, *, timeout: float | None = 30.0, poll: float | None = None
    ) -> Steps[bytes]:
        check_id(inv_id)
        if timeout is not None:
            timeout = check_number(timeout, "timeout", minimum=0)
        if poll is not None:
            check_number(poll, "poll", minimum=0)
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        failures = empty = 0
        why = ""
        while True:
            hold = min(max(0.0, deadline - time.monotonic()), HOLD_SECONDS)
            reply = yield Ask("result", protocol.AWAIT, self._await_body(inv_id, hold), hold, miss=True)
            if isinstance(reply, Setback):
                until = max(deadline, time.monotonic() + (0 if failures else _LOOK_SECONDS))
                if (yield from self._tries.ride_out("result", reply, failures, until)):
                    failures += 1
                    continue
                if timeout == 0:
                    raise self._tries.unavailable("result", reply)
                why = f" ({reply.why})"
            else:
                ended = self._outcome(inv_id, reply.body)
                if ended is not None:
                    return ended
                failures, empty, why = 0, empty + 1, ""
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(
                    f"result: invocation {inv_id!r} has not ended within {timeout:g} s{why}. "
                    "It goes on; ask again with its id."
                )
            yield pause(empty, left, poll)

    def _outcome(self, inv_id: str, answer: Mapping[str, Any]) -> bytes | None:
        """Return the result of an await's answer, None while the job is open; raise if it ended without."""
        state = self._state("result", answer)
        if state is State.SUCCEEDED:
            if answer.get("result_blob") is None and answer.get("result_ref") is not None:
                ref = self._tries.snippet(str(answer["result_ref"]).encode())
                raise DispatchError(
                    f"result: invocation {inv_id!r} succeeded, and its control plane keeps the result apart "
                    f"(result_ref {ref!r}), where lakeshore does not look. Fetch it from there."
                )
            return self._read("result", answer, "result_blob", bytes, b"")
        if state is State.FAILED:
            kind, message, traceback = protocol.read_error(answer)
            raise InvocationFailed(
                self._told(message),
                type=self._told(kind)[:_LONGEST_TYPE],
                traceback=traceback and self._told(traceback),
                id=inv_id,
            )
        if state is State.CANCELLED:
            raise InvocationCancelled(f"result: invocation {inv_id!r} was cancelled; it has no result.")
        if state is None:
            raise UnknownInvocation(
                f"result: no invocation {inv_id!r} in namespace {self._ns!r} at {self._tries.address.url}. "
                "Check the id, the namespace and the plane (LAKESHORE_HOME, LAKESHORE_URL)."
            )
        return None

    def _told(self, text: str) -> str:
        """Return a failure's text as it may be shown: another worker wrote it, at whatever length."""
        text = self._tries.secret.scrub(text)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… ({len(text):,} characters)"

    def count(self, queue: str, state: str = State.QUEUED) -> int:
        """Count a queue's rows in one state."""
        check_name(queue, "queue")
        self._need_ours("count")
        query = {"state": check_state(state)}
        return self._read("count", self._ask("count", protocol.COUNT, query, queue=queue).body, "count", int)

    def queues(self) -> dict[str, dict[str, int]]:
        """Return ``{queue: {state: rows}}`` for every queue that has rows."""
        self._need_ours("queues")
        return self._read("queues", self._ask("queues", protocol.QUEUES).body, "queues", dict)

    def invocations(
        self,
        queue: str | None = None,
        *,
        state: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """List rows, newest submitted first, without envelope and result; see `Plane.invocations`."""
        check_whole(limit, "limit", 0)
        query = {
            "queue": None if queue is None else check_name(queue, "queue"),
            "state": None if state is None else check_state(state),
            "limit": limit,
            "before": None if before is None else check_id(before, "before"),
        }
        self._need_ours("invocations")
        answer = self._ask("invocations", protocol.INVOCATIONS, query).body
        return self._read("invocations", answer, "invocations", list)

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """List the workers that asked for jobs, latest first; see `Plane.workers`."""
        query = {"queue": None if queue is None else check_name(queue, "queue")}
        self._need_ours("workers")
        answer = self._ask("workers", protocol.WORKERS, query).body
        return self._read("workers", answer, "workers", list)

    def prune(
        self,
        *,
        older_than: float,
        states: Iterable[str] = tuple(sorted(TERMINAL)),
        limit: int | None = None,
    ) -> int:
        """Delete rows that ended `older_than` seconds ago, and silent topics; returns the rows."""
        seconds = check_number(older_than, "older_than", minimum=0)
        wanted = [check_state(state) for state in ([states] if isinstance(states, str) else states)]
        if not set(wanted) <= TERMINAL:
            raise ValueError(f"states {wanted!r}: only ended rows are pruned: {', '.join(sorted(TERMINAL))}")
        if limit is not None:
            check_whole(limit, "limit", 0)
        self._need_ours("prune")
        body = {"older_than": seconds, "states": wanted, "limit": limit}
        return self._read("prune", self._ask("prune", protocol.PRUNE, body).body, "count", int)


def _checked(item: Submission) -> Submission:
    """Return a job that may be stored, or raise `ValueError`."""
    return Submission(
        envelope=check_bytes(item.envelope, "submit: envelope"),
        id=check_id(item.id),
        key=None if item.key is None else check_name(item.key, "key"),
        priority=check_number(item.priority, "priority"),
        parent=None if item.parent is None else check_id(item.parent, "parent"),
        delay=check_span(item.delay, "delay"),
    )
