"""Rules of submit, claim, heartbeat, cancel and requeue."""

from __future__ import annotations

import time
from typing import Any

from lakeshore.conformance.case import TINY_LEASE, Case, holds, lapse, raises, same, together
from lakeshore.errors import ClaimLost, DispatchError
from lakeshore.planes.contract import Submission


def a_submitted_job_is_queued(case: Case) -> None:
    """Submit makes one queued row, with what was given."""
    before = time.time()
    same(case.submit(priority=2.5, key="k", parent=case.id("p")), case.id(), "submit")
    row = case.row()
    want = {"state": "queued", "queue": case.queue, "priority": 2.5, "key": "k", "parent": case.id("p")}
    same({name: row[name] for name in want}, want, "row")
    same((row["attempt"], row["fence"], row["losses"]), (0, 0, 0), "counters")
    holds(abs(row["submitted_at"] - before) < 60, f"submitted_at {row['submitted_at']} is not Unix seconds")
    same(case.plane.envelope(case.id()), b"e", "envelope")
    holds("envelope" not in row, "get returned the envelope")


def any_bytes_are_an_envelope(case: Case) -> None:
    """Envelopes of any size, empty ones and views come back verbatim."""
    for size in (0, 1, 1024, 1025, 4097, 3_000_000):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        case.submit(f"n{size}", body)
        same(case.plane.envelope(case.id(f"n{size}")), body, f"envelope of {size} bytes")
        same(case.claim().envelope, body, f"claimed envelope of {size} bytes")
    case.submit("array", memoryview(b"ab"))
    same(case.plane.envelope(case.id("array")), b"ab", "a view")


def a_key_is_submitted_once(case: Case) -> None:
    """The same key in a queue returns the id that has it, and writes nothing, whatever became of that."""
    case.submit("a", b"1", key="k")
    same(case.submit("b", b"2", key="k"), case.id("a"), "second submit")
    same(case.plane.get(case.id("b")), None, "the second's row")
    claimed = case.claim()
    case.plane.ack(claimed.id, "w", fence=claimed.fence)
    same(case.submit("c", b"3", key="k"), case.id("a"), "submit after the job ended")
    other = case.plane.submit(case.queue + "-other", b"4", id=case.id("d"), key="k")
    same(other, case.id("d"), "the same key in another queue")


def a_key_race_makes_one_row(case: Case) -> None:
    """Of many submits of one key at once, all get one id."""
    ids = together(8, lambda i: case.submit(f"r{i}", key="k"))
    same(len(set(ids)), 1, "different ids")
    same(case.plane.count(case.queue), 1, "rows")


def a_repeated_submit_is_absorbed(case: Case) -> None:
    """The same id with the same envelope returns that id, in any state; with another it is refused."""
    case.submit("a", b"1")
    same(case.submit("a", b"1"), case.id(), "repeat")
    raises(DispatchError, "submit of a taken id", case.submit, "a", b"2")
    claimed = case.claim()
    same(case.submit("a", b"1"), case.id(), "repeat while running")
    case.plane.ack(claimed.id, "w")
    same(case.submit("a", b"1"), case.id(), "repeat after the end")
    same(case.state(), "succeeded", "state")
    same(case.plane.count(case.queue), 0, "queued rows")


def submit_many_is_all_or_nothing(case: Case) -> None:
    """Many are queued in order in one transaction; one that is refused takes all back."""
    items = [Submission(envelope=b"%d" % i, id=case.id(f"m{i}")) for i in range(5)]
    same(case.plane.submit_many(case.queue, items), [item.id for item in items], "ids")
    bad = [Submission(envelope=b"x", id=case.id("n")), Submission(envelope=b"other", id=case.id("m0"))]
    raises(DispatchError, "submit_many with a taken id", case.plane.submit_many, case.queue, bad)
    same(case.plane.get(case.id("n")), None, "a row of the refused batch")
    same(case.plane.submit_many(case.queue, []), [], "none")
    same([case.claim().envelope for _ in items], [item.envelope for item in items], "order")
    keyed = [Submission(envelope=b"x", id=case.id(f"k{i}"), key="k") for i in range(2)]
    same(case.plane.submit_many(case.queue, keyed), [case.id("k0")] * 2, "one key twice in a batch")


def malformed_arguments_write_nothing(case: Case) -> None:
    """Bad ids, names, keys, numbers and types are `ValueError` before a write."""
    plane, queue = case.plane, case.queue
    good = case.id()
    bad: Any
    for bad in ("", "a" * 129, "a b", "a/b", "é", "a.b", "a\0", 5, None):
        raises(ValueError, f"submit(id={bad!r})", plane.submit, queue, b"e", id=bad)
        raises(ValueError, f"get({bad!r})", plane.get, bad)
    for bad in ("", "a" * 256, "é" * 128, "a\nb", "a\0", "\x7f", "\x85", "\ud800", 5, b"q"):
        raises(ValueError, f"submit(queue={bad!r})", plane.submit, bad, b"e", id=good)
        raises(ValueError, f"submit(key={bad!r})", case.submit, key=bad)
        raises(ValueError, f"claim(worker={bad!r})", plane.claim, queue, bad)
        raises(ValueError, f"append to {bad!r}", plane.journal_append, bad, None, b"")
    for bad in (float("nan"), float("inf"), float("-inf"), "1", None, True, 10**400):
        raises(ValueError, f"priority {bad!r}", case.submit, priority=bad)
        raises(ValueError, f"delay {bad!r}", case.submit, delay=bad)
        raises(ValueError, f"lease {bad!r}", plane.claim, queue, "w", lease=bad)
        raises(ValueError, f"temperature {bad!r}", plane.claim, queue, "w", temperature=bad)
    raises(ValueError, "a negative delay", case.submit, delay=-1.0)
    raises(ValueError, "a bad parent", case.submit, parent="a b")
    raises(ValueError, "an envelope of text", plane.submit, queue, "text", id=good)
    raises(ValueError, "an unknown kind", plane.claim, queue, "w", kind="lifo")
    raises(ValueError, "a negative wait", plane.claim, queue, "w", wait=-1)
    raises(ValueError, "claim_many of none", plane.claim_many, queue, "w", 0)
    raises(ValueError, "an unknown state", plane.count, queue, "done")
    same(plane.get(good), None, "a row of a refused submit")
    same(plane.count(queue), 0, "rows")


def names_may_be_any_text(case: Case) -> None:
    """Queues, keys and topics are any text of 1 to 255 bytes without control characters."""
    for i, name in enumerate(("ü" * 127, "a" * 255, "a/b?c=%20 d'\"", "名前", "🦀")):
        queue = f"{name[:100]}{case.id()}"
        same(case.plane.submit(queue, b"e", id=case.id(f"n{i}"), key=name), case.id(f"n{i}"), f"{name!r}")
        same(case.plane.count(queue), 1, f"rows of {name!r}")
        claimed = case.plane.claim(queue, name)
        holds(claimed is not None, f"no claim from {name!r}")


def claim_takes_one_row(case: Case) -> None:
    """Claim makes a job running: attempt and fence rise, the worker and the lease are noted."""
    same(case.plane.claim(case.queue, "w"), None, "claim from an empty queue")
    case.submit()
    claimed = case.claim(lease=20.0)
    same((claimed.id, claimed.envelope, claimed.queue), (case.id(), b"e", case.queue), "claimed")
    same((claimed.attempt, claimed.fence), (1, 1), "attempt and fence")
    row = case.row()
    same((row["state"], row["worker_id"], row["attempt"]), ("running", "w", 1), "row")
    holds(abs(row["lease_expires_at"] - claimed.lease_expires_at) < 1, "lease_expires_at of row and claim")
    holds(15 < claimed.lease_expires_at - time.time() < 25, "a lease of 20 s")
    holds(row["started_at"] is not None, "started_at")
    same(case.plane.claim(case.queue, "w2"), None, "a second claim")


def claims_race_without_duplicates(case: Case) -> None:
    """Many claims at once hand out each job once."""
    case.plane.submit_many(case.queue, [Submission(envelope=b"", id=case.id(f"n{i}")) for i in range(60)])

    def drain(worker: str) -> list[str]:
        taken = []
        while (claimed := case.plane.claim(case.queue, worker)) is not None:
            taken.append(claimed.id)
        return taken

    taken = [id for ids in together(4, lambda i: drain(f"w{i}")) for id in ids]
    same(sorted(taken), sorted(case.id(f"n{i}") for i in range(60)), "claims")


def claim_many_takes_up_to_n(case: Case) -> None:
    """Several are taken in order in one transaction, fewer where there are fewer."""
    for i in range(5):
        case.submit(f"n{i}")
    first = case.plane.claim_many(case.queue, "w", 3)
    same([c.id for c in first], [case.id(f"n{i}") for i in range(3)], "first three")
    same(len(case.plane.claim_many(case.queue, "w", 10)), 2, "the rest")
    same(case.plane.claim_many(case.queue, "w", 10), [], "none left")


def a_delayed_job_waits(case: Case) -> None:
    """A delayed job counts as queued and is claimed only when due; then it keeps its place."""
    case.submit("late", delay=0.2)
    case.submit("far", delay=3600)
    case.submit("now")
    same(case.plane.count(case.queue), 3, "queued rows")
    holds(case.row("late")["not_before"] > case.row("late")["submitted_at"], "not_before")
    same(case.claim().id, case.id("now"), "claim before it is due")
    same(case.plane.claim(case.queue, "w"), None, "nothing else is due")
    time.sleep(0.25)
    same(case.claim().id, case.id("late"), "claim when it is due")
    same(case.row("late")["not_before"], None, "not_before of a running job")
    same(case.plane.claim(case.queue, "w"), None, "the other is not due for an hour")


def a_lapsed_lease_is_claimed_again(case: Case) -> None:
    """A job whose lease lapsed goes to who asks next, with attempt, fence and losses raised."""
    case.claimed(lease=TINY_LEASE)
    same(case.plane.count(case.queue, "running"), 1, "running")
    lapse()
    same(case.plane.count(case.queue, "running"), 1, "running, with a lapsed lease")
    same(case.plane.count(case.queue), 0, "queued")
    again = case.claim("w2")
    same((again.id, again.attempt, again.fence), (case.id(), 2, 2), "second claim")
    same((case.row()["losses"], case.row()["worker_id"]), (1, "w2"), "row")


def losses_count_lapsed_leases_only(case: Case) -> None:
    """A lost claim is a loss; a failure, a release and a first claim are none."""
    case.claimed()
    case.plane.nack(case.id(), "w", error="E: x")
    case.claim()
    case.plane.release(case.id(), "w")
    same(case.row()["losses"], 0, "losses after nack and release")
    for n in (1, 2, 3):
        case.claim(lease=0.0)
        case.claim()
        same(case.row()["losses"], n, "losses")
        case.plane.release(case.id(), "w")


def heartbeat_extends_the_lease(case: Case) -> None:
    """A heartbeat counts from now; a lapsed lease that nobody took may still be extended."""
    claimed = case.claimed(lease=TINY_LEASE)
    case.plane.heartbeat(claimed.id, "w", lease=30.0, fence=claimed.fence)
    lapse()
    same(case.plane.claim(case.queue, "w2"), None, "claim of a job whose lease was extended")
    case.plane.heartbeat(claimed.id, "w", lease=0.0)
    case.plane.heartbeat(claimed.id, "w", lease=30.0)
    same(case.plane.claim(case.queue, "w2"), None, "claim after a lapsed lease was extended")
    holds(case.row()["lease_expires_at"] - time.time() > 20, "lease_expires_at")


def heartbeat_misses(case: Case) -> None:
    """Another worker, another fence, any other state and an unknown id are `ClaimLost`."""
    beat = case.plane.heartbeat
    raises(ClaimLost, "heartbeat of an unknown id", beat, case.id("nobody"), "w")
    case.submit()
    raises(ClaimLost, "heartbeat of a queued job", beat, case.id(), "w")
    claimed = case.claim()
    raises(ClaimLost, "another worker's heartbeat", beat, case.id(), "w2")
    raises(ClaimLost, "another fence", beat, case.id(), "w", fence=claimed.fence + 1)
    case.plane.ack(case.id(), "w")
    raises(ClaimLost, "heartbeat of an ended job", beat, case.id(), "w", fence=claimed.fence)


def cancel_ends_queued_and_running(case: Case) -> None:
    """Cancel ends a queued or running job at once, and fences its worker; else it is False."""
    case.submit("queued")
    same(case.plane.cancel(case.id("queued")), True, "cancel of a queued job")
    same(case.state("queued"), "cancelled", "state")
    same(case.plane.claim(case.queue, "w"), None, "claim of a cancelled job")
    claimed = case.claimed("running")
    same(case.plane.cancel(claimed.id), True, "cancel of a running job")
    fence = claimed.fence
    raises(ClaimLost, "its heartbeat", case.plane.heartbeat, claimed.id, "w", fence=fence)
    raises(ClaimLost, "its ack", case.plane.ack, claimed.id, "w", fence=fence)
    raises(ClaimLost, "its nack", case.plane.nack, claimed.id, "w", error="x", fence=fence)
    raises(ClaimLost, "its release", case.plane.release, claimed.id, "w", fence=fence)
    raises(ClaimLost, "its append", case.plane.journal_append, claimed.id, None, b"f", worker_id="w")
    same(case.plane.cancel(claimed.id), False, "cancel of a cancelled job")
    same(case.plane.cancel(case.id("nobody")), False, "cancel of an unknown id")
    done = case.claimed("done")
    case.plane.ack(done.id, "w")
    same(case.plane.cancel(done.id), False, "cancel of a succeeded job")
    holds(case.row("running")["finished_at"] is not None, "finished_at")


def requeue_begins_anew(case: Case) -> None:
    """Requeue takes a failed or cancelled job back to queued with a clean record; fence and key stay."""
    case.submit(key="k")
    case.claim(lease=0.0)
    claimed = case.claim()
    case.plane.nack(claimed.id, "w", error={"type": "E", "message": "m", "traceback": "t"}, retry=False)
    same(case.plane.requeue(claimed.id), True, "requeue of a failed job")
    row = case.row()
    cleared = ("error", "traceback", "result", "not_before", "started_at", "finished_at", "worker_id")
    same({name: row[name] for name in cleared}, dict.fromkeys(cleared), "cleared")
    same((row["state"], row["attempt"], row["losses"]), ("queued", 0, 0), "row")
    same((row["fence"], row["key"]), (2, "k"), "fence and key")
    again = case.claim()
    same((again.attempt, again.fence), (1, 3), "next claim")
    case.plane.cancel(again.id)
    same(case.plane.requeue(again.id), True, "requeue of a cancelled job")


def requeue_misses(case: Case) -> None:
    """Requeue of a queued, running, succeeded or unknown job is False and changes nothing."""
    same(case.plane.requeue(case.id("nobody")), False, "unknown")
    case.submit()
    same(case.plane.requeue(case.id()), False, "queued")
    case.claim()
    same(case.plane.requeue(case.id()), False, "running")
    case.plane.ack(case.id(), "w", result=b"r")
    same(case.plane.requeue(case.id()), False, "succeeded")
    same(case.plane.result(case.id(), timeout=0), b"r", "result")
