"""The verbs of workers, as requests and answers: claim, keep, end.

An ending whose answer was lost is sent again; if it is then refused, the row tells whether it had landed.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

from lakeshore.errors import DispatchError
from lakeshore.planes import protocol, protocol_commands
from lakeshore.planes.contract import (
    Claimed,
    ClaimSpec,
    check_id,
    check_name,
    check_number,
    check_span,
    check_spec,
)
from lakeshore.planes.engine import check_bytes, check_whole
from lakeshore.planes.http_asking import pause
from lakeshore.planes.http_journals import Journalling, check_fence
from lakeshore.planes.http_steps import Ask, Steps
from lakeshore.planes.http_tries import Refused, Setback
from lakeshore.planes.protocol import HOLD_SECONDS, Route
from lakeshore.states import State
from lakeshore.version import __version__

_log = logging.getLogger(__name__)


class Working(Journalling):
    """Claim, keep, end."""

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
        return self._drive(
            self._claim_steps(queue, worker_id, n, kind=kind, temperature=temperature, lease=lease, wait=wait)
        )

    def _claim_steps(
        self,
        queue: str,
        worker_id: str,
        n: int,
        *,
        kind: str = "fifo",
        temperature: float = 1.0,
        lease: float = 30.0,
        wait: float = 0.0,
    ) -> Steps[list[Claimed]]:
        spec = check_spec(ClaimSpec(queue, kind, temperature, lease))
        check_name(worker_id, "worker_id")
        wait = check_number(wait, "wait", minimum=0)
        check_whole(n, "n", 1)
        if kind not in ("fifo", "priority"):
            self._need_ours("claim", f"It would claim in its own order, not {kind!r}. Use fifo there.")
        body = {**protocol.spec_body(spec), "worker_id": worker_id, "namespace": self._ns, "capacity": n}
        body["worker"] = {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__}
        if (kept := self._surplus.get((queue, worker_id))) is not None:
            return self._up_to(n, queue, worker_id, kept)
        call = (queue, worker_id, n)
        nonce = self._unanswered.pop(call, None)  # of a call that was given up: its claims are ours
        body["again"], body["nonce"] = nonce is not None, nonce or secrets.token_bytes(protocol.NONCE_BYTES)
        now = time.monotonic()
        deadline = now + wait
        # A caller that waits asks again by itself, and may have to stop soon.
        until = now + min(self._tries.timeout, max(wait, 1.0)) if wait else now + self._tries.timeout
        failures = empty = 0
        while True:
            hold = min(max(0.0, deadline - time.monotonic()), HOLD_SECONDS)
            reply = yield Ask("claim", protocol.POLL, {**body, "timeout_s": hold}, hold)
            if isinstance(reply, Setback):
                if reply.landed:
                    body["again"] = True
                    self._unanswered[call] = body["nonce"]
                if not (yield from self._tries.ride_out("claim", reply, failures, until)):
                    raise self._tries.unavailable("claim", reply)
                failures += 1
                continue
            taken = self._commands("claim", reply.body, queue)
            self._unanswered.pop(call, None)
            body["again"], body["nonce"] = False, secrets.token_bytes(protocol.NONCE_BYTES)
            left = deadline - time.monotonic()
            if taken or left <= 0:
                return self._up_to(n, queue, worker_id, taken)
            until = max(until, time.monotonic() + 1.0)
            failures, empty = 0, empty + 1
            yield pause(empty, left)

    def _commands(self, verb: str, answer: Mapping[str, Any], queue: str) -> list[Claimed]:
        try:
            taken = protocol_commands.read_commands(answer, queue)
        except ValueError as exc:
            problem = str(exc)
        else:
            seqs = protocol_commands.read_next_seqs(answer)
            for claimed in taken:
                self._journals.claimed(claimed.id, claimed.fence, seqs.get(claimed.id))
            return taken
        raise self._tries.malformed(verb, problem)

    def _up_to(self, n: int, queue: str, worker_id: str, taken: list[Claimed]) -> list[Claimed]:
        """Keep for the next claim what a control plane gave beyond `n`; not all heed what was asked for."""
        self._surplus.pop((queue, worker_id), None)
        if len(taken) > n:
            self._surplus[queue, worker_id] = taken[n:]
        return taken[:n]

    def hand_back(self, queue: str, worker_id: str) -> None:
        """Give back what is kept for the next claim of a worker that makes none."""
        for claimed in self._surplus.pop((queue, worker_id), []):
            try:
                self.release(claimed.id, worker_id, fence=claimed.fence)
            except DispatchError as exc:
                _log.warning("release of %s failed, its lease will lapse: %s", claimed.id, exc)

    def heartbeat(
        self, inv_id: str, worker_id: str, *, lease: float = 30.0, fence: int | None = None
    ) -> None:
        """Extend the lease to `lease` seconds from now; a server in the field gives leases of its own."""
        lease = check_span(lease, "lease")
        body = {**self._guard(inv_id, worker_id, fence), "lease": lease}
        if self._is_ours("heartbeat"):
            self._ask("heartbeat", protocol.HEARTBEAT, body)

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
        body = self._guard(inv_id, worker_id, fence)
        if result is not None:
            body["result_blob"] = check_bytes(result, "ack: result")
        return self._end("ack", State.SUCCEEDED, body, frame=frame, next=next)

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
        """Give a running job back after a failure; see `Plane.nack`. The field retries without the delay."""
        delay = check_span(delay, "delay")
        if retry and frame is not None:
            raise ValueError("nack: frame is the final frame of a job; it goes with retry=False")
        if not isinstance(error, (str, dict)):
            raise ValueError(f"error: wants a str or a dict, got {type(error).__name__}")
        body = self._guard(inv_id, worker_id, fence)
        body["error"] = protocol.error_body(error, retry=bool(retry), ours=self._is_ours("nack"))
        if retry and delay:
            body["delay"] = delay
        return self._end("nack", State.QUEUED if retry else State.FAILED, body, frame=frame, next=next)

    def release(self, inv_id: str, worker_id: str, *, fence: int | None = None) -> None:
        """Hand a running job back unharmed; see `Plane.release`. In the field it is a failure to retry."""
        body = self._guard(inv_id, worker_id, fence)
        if not self._is_ours("release"):
            told = "WorkerStopped: the worker was stopped before the job had ended"
            body["error"] = protocol.error_body(told, retry=True)
            self._end("release", State.QUEUED, body)
            return
        self._finish("release", protocol.RELEASE, State.QUEUED, body)

    def _end(
        self,
        verb: str,
        target: State,
        body: dict[str, Any],
        *,
        frame: bytes | None = None,
        next: ClaimSpec | None = None,
    ) -> Claimed | None:
        spec = None if next is None else check_spec(next)
        data = None if frame is None else check_bytes(frame, "frame")
        inv_id, worker_id = body["invocation_id"], body["worker_id"]
        body["state"] = str(State.SUCCEEDED if target is State.SUCCEEDED else State.FAILED)
        ours = self._is_ours(verb)
        if ours and data is not None:
            body["frame"] = data
        kept = [] if spec is None else self._surplus.get((spec.queue, worker_id), [])
        if ours and spec is not None and not kept:
            body["next"] = protocol.spec_body(spec)
        if not ours and data is not None:
            self.journal_append(inv_id, None, data, final=True, worker_id=worker_id, fence=body["fence"])
        answer = self._finish(verb, protocol.ACK, target, body)
        self._journals.forget(inv_id)
        if spec is None:
            return None
        if ours or kept:
            following = kept or self._commands(verb, answer, spec.queue)
            taken = self._up_to(1, spec.queue, worker_id, following)
            return taken[0] if taken else None
        try:
            return self.claim(
                spec.queue, worker_id, kind=spec.kind, temperature=spec.temperature, lease=spec.lease
            )
        except DispatchError:
            return None  # the ending stands; the worker asks for the next job by itself

    def _finish(self, verb: str, route: Route, target: State, body: dict[str, Any]) -> Mapping[str, Any]:
        """Send an ending; a repeat of one that had landed is a success."""
        lost: Refused
        try:
            return self._tries.call(verb, route, route.path(), body).body
        except Refused as refused:
            lost = refused
        if lost.doubt and lost.status == 409 and self._has_landed(verb, target, body):
            return {}
        raise lost.error

    def _has_landed(self, verb: str, target: State, body: Mapping[str, Any]) -> bool:
        try:
            answer = self._await(verb, body["invocation_id"])
            state = protocol.read_state(answer)
        except (DispatchError, ValueError):
            return False
        if target is State.SUCCEEDED:
            return state is target and (answer.get("result_blob") or b"") == body.get("result_blob", b"")
        return state is target

    def _guard(self, inv_id: str, worker_id: str, fence: int | None) -> dict[str, Any]:
        return {
            "invocation_id": check_id(inv_id),
            "namespace": self._ns,
            "worker_id": check_name(worker_id, "worker_id"),
            "fence": check_fence(fence),
        }
