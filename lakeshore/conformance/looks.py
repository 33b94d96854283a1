"""Rules of what shows rows: get, count, queues, invocations, workers; and of prune."""

from __future__ import annotations

import time

from lakeshore.conformance.case import TINY_LEASE, Case, holds, lapse, raises, same
from lakeshore.errors import InvocationCancelled, InvocationFailed, UnknownInvocation, WaitTimeout
from lakeshore.states import State

_ROW = frozenset(
    {"id", "ns", "queue", "state", "priority", "key", "result", "error", "worker_id", "attempt", "fence"}
    | {"losses", "parent", "submitted_at", "not_before", "lease_expires_at", "started_at", "finished_at"}
)


def get_returns_the_row(case: Case) -> None:
    """Get holds every column but the envelope; None for an unknown id."""
    same(case.plane.get(case.id("nobody")), None, "an unknown id")
    same(case.plane.envelope(case.id("nobody")), None, "its envelope")
    case.submit()
    missing = _ROW - case.row().keys()
    holds(not missing, f"columns missing: {sorted(missing)}")
    same((case.row()["id"], case.row()["queue"]), (case.id(), case.queue), "id and queue")


def counts_are_the_rows(case: Case) -> None:
    """Counts come from the rows themselves; a lapsed lease counts as running."""
    for name in "abcdef":
        case.submit(name)
    case.submit("late", delay=3600)
    one, two, three, four, _ = case.plane.claim_many(case.queue, "w", 5, lease=30)
    case.plane.ack(one.id, "w")
    case.plane.nack(two.id, "w", error="E", retry=False)
    case.plane.cancel(three.id)
    case.plane.heartbeat(four.id, "w", lease=0.0)
    lapse()
    want = {"queued": 2, "running": 2, "succeeded": 1, "failed": 1, "cancelled": 1}
    same({state: case.plane.count(case.queue, state) for state in want}, want, "count")
    same(case.plane.queues()[case.queue], want, "queues")
    holds(case.plane.claim(case.queue, "w") is not None, "no claim")
    same(case.plane.count(case.queue + "-none"), 0, "count of no queue")
    holds(case.queue + "-none" not in case.plane.queues(), "a queue without rows is listed")


def invocations_page_newest_first(case: Case) -> None:
    """Rows come newest submitted first, paged by the id to go on from, filtered by queue and state."""
    for i in range(7):
        case.submit(f"n{i}")
    page = case.plane.invocations(case.queue, limit=3)
    same([row["id"] for row in page], [case.id(f"n{i}") for i in (6, 5, 4)], "first page")
    page = case.plane.invocations(case.queue, limit=3, before=page[-1]["id"])
    same([row["id"] for row in page], [case.id(f"n{i}") for i in (3, 2, 1)], "second page")
    page = case.plane.invocations(case.queue, limit=3, before=page[-1]["id"])
    same([row["id"] for row in page], [case.id("n0")], "last page")
    same(case.plane.invocations(case.queue, before=page[-1]["id"]), [], "after the last")
    case.plane.ack(case.claim().id, "w", result=b"r")
    done = case.plane.invocations(case.queue, state="succeeded")
    same([row["id"] for row in done], [case.id("n0")], "by state")
    holds("result" not in done[0] and "envelope" not in done[0], "result or envelope is listed")
    holds(case.id("n0") in [row["id"] for row in case.plane.invocations(limit=1000)], "every queue")
    for _ in range(3):
        case.claim()
    running = [row["id"] for row in case.plane.invocations(case.queue, state="running", limit=2)]
    same(running, [case.id("n3"), case.id("n2")], "running, newest submitted first")
    running = [row["id"] for row in case.plane.invocations(case.queue, state="running", before=running[-1])]
    same(running, [case.id("n1")], "running, second page")
    raises(ValueError, "limit -1", case.plane.invocations, case.queue, limit=-1)
    raises(ValueError, "an unknown state", case.plane.invocations, case.queue, state="done")


def workers_are_who_asked(case: Case) -> None:
    """A claim notes its worker's presence, also when there is nothing to claim."""
    same(case.plane.claim(case.queue, "idle"), None, "claim")
    case.claimed()
    seen = {worker["worker_id"]: worker for worker in case.plane.workers(case.queue)}
    same(sorted(seen), ["idle", "w"], "workers")
    same((seen["idle"]["running"], seen["w"]["running"]), (0, 1), "running")
    columns = {"worker_id", "queue", "host", "pid", "version", "seen_at", "running"}
    same(set(seen["w"]), columns, "columns")
    holds(abs(seen["w"]["seen_at"] - time.time()) < 60, "seen_at")
    same(case.plane.workers(case.queue + "-none"), [], "workers of no queue")


def result_says_how_it_ended(case: Case) -> None:
    """Result returns what ack gave, and raises for failed, cancelled, unknown and unended jobs."""
    result = case.plane.result
    raises(UnknownInvocation, "an unknown id", result, case.id("nobody"), timeout=0)
    case.submit()
    raises(WaitTimeout, "a queued job", result, case.id(), timeout=0)
    raises(TimeoutError, "a queued job, waiting", result, case.id(), timeout=0.05, poll=0.01)
    claimed = case.claim()
    case.plane.nack(claimed.id, "w", error={"type": "E", "message": "m", "traceback": "tb"}, retry=False)
    failed = raises(InvocationFailed, "a failed job", result, case.id(), timeout=0)
    same((failed.type, failed.message, failed.traceback), ("E", "m", "tb"), "the error")
    case.submit("b")
    case.plane.cancel(case.id("b"))
    raises(InvocationCancelled, "a cancelled job", result, case.id("b"), timeout=0)
    raises(ValueError, "timeout -1", result, case.id(), timeout=-1)
    raises(ValueError, "poll -1", result, case.id(), poll=-1)


def prune_deletes_what_ended_long_ago(case: Case) -> None:
    """Prune removes ended rows with journals and keys, by age and state; nothing that may still run."""
    for name in "abcd":
        case.submit(name, b"x" * 2000, key=name)
    one, two = case.plane.claim_many(case.queue, "w", 2)
    for journal in (one.id, f"{one.id}.log", f"{one.id}.progress"):
        case.plane.journal_append(journal, None, b"f")
    case.plane.ack(one.id, "w", result=b"y" * 2000)
    case.plane.nack(two.id, "w", error="E", retry=False)
    case.claim(lease=TINY_LEASE)
    same(case.plane.prune(older_than=3600), 0, "prune of what is an hour old")
    raises(ValueError, "prune of running rows", case.plane.prune, older_than=0, states=["running"])
    raises(ValueError, "prune of the future", case.plane.prune, older_than=-1)
    case.plane.prune(older_than=0, limit=0)
    same(case.state("a"), "succeeded", "state after a prune of none")
    case.plane.prune(older_than=0, states=["succeeded"])
    same((case.plane.get(one.id), case.state("b")), (None, "failed"), "after a prune of succeeded")
    left = raises(WaitTimeout, "its journal", case.read, one.id, timeout=0)
    holds(one.id in str(left), "the message names the journal")
    same(case.submit("again", key="a"), case.id("again"), "a submit with its key")
    same(case.plane.submit(case.queue, b"new", id=one.id), one.id, "a submit with its id")
    same(case.plane.envelope(one.id), b"new", "its envelope")
    holds(case.plane.prune(older_than=0) >= 1, "prune of the rest")
    same((case.plane.get(two.id), case.state("c"), case.state("d")), (None, "running", "queued"), "the rest")


def prune_returns_the_rows(case: Case) -> None:
    """Prune counts rows and keeps to its limit."""
    case.plane.prune(older_than=0)
    for i in range(5):
        case.plane.ack(case.claimed(f"n{i}").id, "w")
    same(case.plane.prune(older_than=0, limit=2), 2, "with a limit")
    same(case.plane.prune(older_than=0), 3, "without")
    same(case.plane.count(case.queue, State.SUCCEEDED), 0, "rows")


def prune_deletes_silent_topics(case: Case) -> None:
    """A topic goes when its last post is old; a journal of a live job never."""
    topic = f"topic {case.id()}"
    case.claimed()
    case.plane.journal_append(topic, None, b"f")
    case.plane.journal_append(case.id(), None, b"f")
    case.plane.prune(older_than=3600)
    same(next(case.plane.journal_read(topic, timeout=0)), (0, b"f"), "the topic")
    case.plane.prune(older_than=0)
    raises(WaitTimeout, "the pruned topic", case.read, topic, timeout=0)
    same(next(case.plane.journal_read(case.id(), timeout=0)), (0, b"f"), "the job's journal")
