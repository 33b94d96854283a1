"""The plane against a small model of the contract: any order of verbs leaves both in the same state."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lakeshore import ClaimLost, Dispatch, wire
from lakeshore.planes.contract import Claimed, ClaimSpec
from lakeshore.states import TERMINAL, State

LONG = os.environ.get("LONG_TESTS") == "1"
"""``LONG_TESTS=1 pytest tests/unit/planes/test_model.py``: 2,000 runs of 50 steps."""

QUEUES = ("one", "two")
WORKERS = ("w1", "w2")
HOUR = 3600.0


@dataclass
class Job:
    """What the contract says of one row."""

    id: str
    queue: str
    order: int
    priority: float
    key: str | None
    not_before: float | None = None
    state: State = State.QUEUED
    attempt: int = 0
    fence: int = 0
    losses: int = 0
    worker: str | None = None
    lease: float = 0.0
    result: bytes | None = None
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    next_seq: int = 0
    attempt_seq: int = 0
    closed: int | None = None
    endings: int = 0

    def due(self, now: float, mono: float) -> bool:
        if self.state is State.QUEUED:
            return self.not_before is None or self.not_before <= now
        return self.state is State.RUNNING and self.lease <= mono

    def readable(self) -> list[tuple[int, bytes]]:
        last = self.next_seq if self.closed is None else self.closed
        return [(seq, body) for seq, body in self.frames if self.attempt_seq <= seq <= last]

    def append(self, body: bytes) -> int:
        self.frames.append((self.next_seq, body))
        self.next_seq += 1
        return self.next_seq - 1


class PlaneMachine(RuleBasedStateMachine):
    """Verbs in any order, time as a parameter, claims that go stale."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.now = time.time()
        self.mono = time.monotonic()
        self.count = 0
        self.plane = Dispatch(":memory:")
        self.plane._now = lambda: self.now  # type: ignore[method-assign]
        self.plane._lease_clock = lambda: self.mono  # type: ignore[method-assign]

    def teardown(self) -> None:
        self.plane.close()

    # -- the model's part ---------------------------------------------------------

    def head(self, queue: str, kind: str) -> Job | None:
        """Return what a claim takes now; what a claim once saw due stays so, if the clock steps back."""
        for job in self.jobs.values():
            if job.queue == queue and job.state is State.QUEUED and job.due(self.now, self.mono):
                job.not_before = None
        ready = [j for j in self.jobs.values() if j.queue == queue and j.due(self.now, self.mono)]
        lapsed = sorted((j for j in ready if j.state is State.RUNNING), key=lambda j: (j.lease, j.order))
        list_of = [j for j in ready if j.state is State.QUEUED] + lapsed[:1]
        sign = -1 if kind == "filo" else 1
        return min(list_of, key=lambda j: (-j.priority, sign * j.order), default=None)

    def take(self, job: Job | None, claimed: Claimed | None, worker: str, lease: float) -> None:
        if job is None:
            assert claimed is None
            return
        job.losses += job.state is State.RUNNING
        job.state, job.worker, job.lease, job.not_before = State.RUNNING, worker, self.mono + lease, None
        job.attempt += 1
        job.fence += 1
        if job.fence > 1 and job.next_seq:
            job.attempt_seq = job.append(wire.attempt_frame(job.next_seq, job.attempt))
            job.closed = None
        assert claimed is not None
        assert (claimed.id, claimed.attempt, claimed.fence) == (job.id, job.attempt, job.fence)

    def holds(self, claim: tuple[str, str, int]) -> bool:
        id, worker, fence = claim
        job = self.jobs.get(id)  # a job that was pruned is held by nobody
        return job is not None and (job.state, job.worker, job.fence) == (State.RUNNING, worker, fence)

    def replays(self, claim: tuple[str, str, int], target: State) -> bool:
        job = self.jobs.get(claim[0])
        return job is not None and (job.state, job.fence) == (target, claim[2])

    def end(self, job: Job, target: State, frame: bytes | None = None) -> None:
        job.state = target
        if target in TERMINAL:
            job.endings += 1
            if frame is not None:
                seq = job.append(frame)
                job.closed = seq if job.closed is None else job.closed
        else:
            job.worker, job.closed = None, None

    # -- the verbs ------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from((-1.0, 0.0, 0.0, 2.0)),
        key=st.sampled_from((None, None, "k1", "k2")),
        delay=st.sampled_from((0.0, 0.0, 5.0, 50.0)),
    )
    def submit(self, queue: str, priority: float, key: str | None, delay: float) -> None:
        self.count += 1
        id = f"j{self.count}"
        held = [j for j in self.jobs.values() if key is not None and (j.queue, j.key) == (queue, key)]
        got = self.plane.submit(queue, id.encode(), id=id, priority=priority, key=key, delay=delay)
        assert got == (held[0].id if held else id)
        if not held:
            due = self.now + delay if delay else None
            self.jobs[id] = Job(id, queue, self.count, priority, key, not_before=due)

    @rule(seconds=st.sampled_from((0.5, 6.0, 11.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.mono += seconds

    @rule(step=st.sampled_from((-HOUR, HOUR)))
    def clock_steps(self, step: float) -> None:
        """The wall clock steps; leases and order do not care, delays count by it."""
        self.now += step

    @rule(
        target=claims,
        queue=st.sampled_from(QUEUES),
        worker=st.sampled_from(WORKERS),
        kind=st.sampled_from(("fifo", "filo")),
    )
    def claim(self, queue: str, worker: str, kind: str) -> Any:
        job = self.head(queue, kind)
        claimed = self.plane.claim(queue, worker, kind=kind, lease=10.0)
        self.take(job, claimed, worker, 10.0)
        return multiple() if claimed is None else (claimed.id, worker, claimed.fence)

    @rule(claim=claims)
    def heartbeat(self, claim: tuple[str, str, int]) -> None:
        id, worker, fence = claim
        if self.holds(claim):
            self.plane.heartbeat(id, worker, lease=10.0, fence=fence)
            self.jobs[id].lease = self.mono + 10.0
        else:
            with pytest.raises(ClaimLost):
                self.plane.heartbeat(id, worker, lease=10.0, fence=fence)

    @rule(claim=claims, final=st.booleans())
    def append(self, claim: tuple[str, str, int], final: bool) -> None:
        id, worker, fence = claim
        body = f"{fence}".encode()
        if self.holds(claim):
            job = self.jobs[id]
            seq = self.plane.journal_append(id, None, body, worker_id=worker, fence=fence, final=final)
            assert seq == job.append(body)
            if final and job.closed is None:
                job.closed = seq
        else:
            with pytest.raises(ClaimLost):
                self.plane.journal_append(id, None, body, worker_id=worker, fence=fence)

    @rule(
        target=claims,
        claim=consumes(claims),
        verb=st.sampled_from(("ack", "retry", "fail", "release")),
        fused=st.booleans(),
        repeat=st.booleans(),
    )
    def ending(self, claim: tuple[str, str, int], verb: str, fused: bool, repeat: bool) -> Any:
        id, worker, fence = claim
        frame = b"end" if verb in ("ack", "fail") else None
        target = {"ack": State.SUCCEEDED, "fail": State.FAILED}.get(verb, State.QUEUED)
        queue = self.jobs[id].queue if id in self.jobs else QUEUES[0]
        spec = ClaimSpec(queue, lease=10.0) if fused and verb != "release" else None

        def end(
            verb: str = verb, frame: bytes | None = frame, spec: ClaimSpec | None = spec
        ) -> Claimed | None:
            if verb == "ack":
                return self.plane.ack(id, worker, result=b"r", fence=fence, frame=frame, next=spec)
            if verb == "release":
                return self.plane.release(id, worker, fence=fence)
            return self.plane.nack(
                id, worker, error="E", retry=verb == "retry", fence=fence, frame=frame, next=spec
            )

        if not self.holds(claim):
            # A repeat with next= may also find the claim of the first, here a job that still runs under it.
            if self.replays(claim, target) or spec is not None:
                try:
                    end()
                except ClaimLost:
                    assert not self.replays(claim, target)
            else:
                with pytest.raises(ClaimLost):
                    end()
            return multiple()
        taken = end()
        job = self.jobs[id]
        job.attempt -= verb == "release"
        job.result = b"r" if verb == "ack" else job.result
        self.end(job, target, frame)
        following = None
        if spec is not None:
            following = self.head(job.queue, "fifo")
            self.take(following, taken, worker, 10.0)
        if repeat:
            again = end()
            assert (again and (again.id, again.fence)) == (taken and (taken.id, taken.fence))
            for other in {"ack", "retry", "fail"} - {verb, "retry" if verb == "release" else verb}:
                with pytest.raises(ClaimLost):
                    end(other, None, ClaimSpec(queue))
        return multiple() if taken is None else (taken.id, worker, taken.fence)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.jobs:
            job = data.draw(st.sampled_from(list(self.jobs.values())))
            open_ = job.state not in TERMINAL
            assert self.plane.cancel(job.id) is open_
            if open_:
                self.end(job, State.CANCELLED)

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if self.jobs:
            job = data.draw(st.sampled_from(list(self.jobs.values())))
            can = job.state in (State.FAILED, State.CANCELLED)
            assert self.plane.requeue(job.id) is can
            if can:
                job.state, job.attempt, job.losses, job.worker = State.QUEUED, 0, 0, None
                job.not_before, job.closed, job.attempt_seq, job.endings = None, None, job.next_seq, 0

    @rule(seconds=st.sampled_from((0.0, 20.0)))
    def prune(self, seconds: float) -> None:
        before = {id for id in self.jobs if self.plane.get(id) is not None}
        self.plane.prune(older_than=seconds)
        gone = {id for id in before if self.plane.get(id) is None}
        assert all(self.jobs[id].state in TERMINAL for id in gone)
        for id in gone:
            del self.jobs[id]

    # -- what always holds --------------------------------------------------------------

    @invariant()
    def rows_agree(self) -> None:
        for job in self.jobs.values():
            row = self.plane.get(job.id)
            assert row is not None
            got = (row["state"], row["attempt"], row["fence"], row["losses"])
            assert got == (job.state, job.attempt, job.fence, job.losses), job.id
            assert job.endings <= 1, "two endings without a requeue"
            if job.state is State.SUCCEEDED:
                assert row["result"] == b"r"

    @invariant()
    def counts_agree(self) -> None:
        want: dict[str, dict[str, int]] = {}
        for job in self.jobs.values():
            of = want.setdefault(job.queue, {})
            of[job.state] = of.get(job.state, 0) + 1
        assert self.plane.queues() == want

    @invariant()
    def journals_agree(self) -> None:
        for job in self.jobs.values():
            frames = []
            try:
                for frame in self.plane.journal_read(job.id, timeout=0):
                    frames.append(frame)  # noqa: PERF402 - what came before the timeout counts
            except TimeoutError:
                assert job.state not in TERMINAL
                assert job.closed is None
            assert frames == job.readable()
            alive = {str(job.fence).encode(), b"end"}
            bodies = {body for _, body in frames if not body.startswith(b"\x94")}
            assert bodies <= alive, "a frame of a dead attempt after its boundary"


PlaneMachine.TestCase.settings = settings(
    max_examples=2000 if LONG else 40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_any_order_of_verbs = PlaneMachine.TestCase
