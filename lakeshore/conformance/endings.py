"""Rules of ack, nack and release: their guards, their repeats, and the claim in the same commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lakeshore.conformance.case import TINY_LEASE, Case, holds, lapse, raises, same
from lakeshore.errors import ClaimLost
from lakeshore.planes.contract import Claimed, ClaimSpec

_End = Callable[..., Any]


def _endings(case: Case) -> dict[str, tuple[_End, str]]:
    """Return each ending as a call of (id, worker, fence=...), with the state it makes."""
    plane = case.plane
    return {
        "ack": (lambda inv, w, **o: plane.ack(inv, w, result=b"r", **o), "succeeded"),
        "nack(retry=True)": (lambda inv, w, **o: plane.nack(inv, w, error="E: m", **o), "queued"),
        "nack(retry=False)": (
            lambda inv, w, **o: plane.nack(inv, w, error="E: m", retry=False, **o),
            "failed",
        ),
        "release": (lambda inv, w, **o: plane.release(inv, w, **o), "queued"),
    }


def an_ack_succeeds(case: Case) -> None:
    """Ack makes a running job succeeded, with its result verbatim at any size."""
    for size in (None, 0, 1, 1025, 3_000_000):
        claimed = case.claimed(f"n{size}")
        body = None if size is None else b"x" * size
        same(case.plane.ack(claimed.id, "w", result=body), None, "ack")
        row = case.row(f"n{size}")
        same((row["state"], row["result"]), ("succeeded", body), f"row of {size} bytes")
        same(case.plane.result(claimed.id, timeout=0), body or b"", f"result of {size} bytes")
        holds(row["finished_at"] is not None and row["lease_expires_at"] is None, "finished_at")


def a_nack_queues_again(case: Case) -> None:
    """Nack gives a job back, at its place, with its error noted and after its delay."""
    case.submit("a")
    case.submit("b")
    case.plane.nack(case.claim().id, "w", error="E: m")
    row = case.row()
    same((row["state"], row["error"], row["attempt"]), ("queued", "E: m", 1), "row")
    same((row["worker_id"], row["finished_at"]), (None, None), "worker and finished_at")
    again = case.claim()
    same((again.id, again.attempt, again.fence), (case.id(), 2, 2), "second claim")
    case.plane.nack(again.id, "w", error="E: m", delay=0.2)
    same(case.claim().id, case.id("b"), "claim while the other is delayed")
    same(case.plane.claim(case.queue, "w"), None, "nothing else is due")
    time.sleep(0.25)
    same(case.claim().attempt, 3, "attempt after the delay")


def a_final_nack_fails(case: Case) -> None:
    """Nack without retry ends a job as failed, with error and traceback as given."""
    claimed = case.claimed()
    error = {"type": "ValueError", "message": "bad: worse", "traceback": "line\n\udcff"}
    case.plane.nack(claimed.id, "w", error=error, retry=False)
    row = case.row()
    same((row["state"], row["error"]), ("failed", "ValueError: bad: worse"), "row")
    holds(row["traceback"].startswith("line\n"), f"traceback {row['traceback']!r}")
    holds(row["finished_at"] is not None, "finished_at")
    same(case.plane.claim(case.queue, "w"), None, "claim of a failed job")
    raises(ValueError, "an error of no kind", case.plane.nack, claimed.id, "w", error=5)


def a_release_does_not_count(case: Case) -> None:
    """Release gives a job back due at once, its attempt not counted; the fence does not fall."""
    claimed = case.claimed()
    case.plane.release(claimed.id, "w", fence=claimed.fence)
    row = case.row()
    same((row["state"], row["attempt"], row["fence"]), ("queued", 0, 1), "row")
    again = case.claim()
    same((again.attempt, again.fence), (1, 2), "next claim")


def endings_are_guarded(case: Case) -> None:
    """Another worker, another fence, any other state, an unknown id: `ClaimLost`, and nothing changes."""
    for verb, (end, _) in _endings(case).items():
        name = "".join(filter(str.isalpha, verb))
        id = case.id(name)
        raises(ClaimLost, f"{verb} of an unknown id", end, case.id("nobody"), "w")
        case.submit(name)
        raises(ClaimLost, f"{verb} of a queued job", end, id, "w")
        claimed = case.claim()
        raises(ClaimLost, f"{verb} by another worker", end, id, "w2")
        wrong = claimed.fence + 1
        raises(ClaimLost, f"{verb} with a fence", end, id, "w", fence=wrong)
        same(case.state(name), "running", f"state after refused {verb}")
        case.plane.cancel(id)
        raises(ClaimLost, f"{verb} of a cancelled job", end, id, "w")


def a_stale_worker_is_refused(case: Case) -> None:
    """Once a job was claimed again, the first claim can end, extend and write nothing, by id or by fence."""
    first = case.claimed(lease=TINY_LEASE)
    lapse()
    second = case.claim()  # the same worker id: only the fence tells the claims apart
    for verb, (end, _) in _endings(case).items():
        raises(ClaimLost, f"stale {verb}", end, first.id, "w", fence=first.fence)
    plane = case.plane
    raises(ClaimLost, "stale heartbeat", plane.heartbeat, first.id, "w", fence=first.fence)
    raises(
        ClaimLost,
        "stale append",
        plane.journal_append,
        first.id,
        None,
        b"f",
        worker_id="w",
        fence=first.fence,
    )
    same(case.state(), "running", "state")
    plane.ack(second.id, "w", result=b"new", fence=second.fence)
    same(plane.result(first.id, timeout=0), b"new", "result")


def a_lapsed_lease_may_still_end(case: Case) -> None:
    """A lapsed lease that nobody took counts as running, and may be kept, appended to and acked."""
    claimed = case.claimed(lease=0.0)
    same((case.plane.count(case.queue, "running"), case.plane.count(case.queue)), (1, 0), "counts")
    case.plane.heartbeat(claimed.id, "w", lease=30.0, fence=claimed.fence)
    same(case.plane.claim(case.queue, "w2"), None, "a claim after its heartbeat")
    case.plane.heartbeat(claimed.id, "w", lease=0.0, fence=claimed.fence)
    same(case.plane.journal_append(claimed.id, None, b"f", worker_id="w", fence=claimed.fence), 0, "append")
    case.plane.ack(claimed.id, "w", result=b"r", fence=claimed.fence)
    same(case.plane.result(claimed.id, timeout=0), b"r", "result")


def a_terminal_row_never_changes(case: Case) -> None:
    """Nothing but a requeue leads out of succeeded, failed or cancelled."""
    for state in ("succeeded", "failed", "cancelled"):
        claimed = case.claimed(state)
        if state == "succeeded":
            case.plane.ack(claimed.id, "w", result=b"r")
        elif state == "failed":
            case.plane.nack(claimed.id, "w", error="E: m", retry=False)
        else:
            case.plane.cancel(claimed.id)
        before = case.row(state)
        raises(ClaimLost, f"heartbeat of {state}", case.plane.heartbeat, claimed.id, "w")
        raises(ClaimLost, f"ack of {state}", case.plane.ack, claimed.id, "w", result=b"other")
        raises(ClaimLost, f"nack of {state}", case.plane.nack, claimed.id, "w", error="x")
        raises(ClaimLost, f"final nack of {state}", case.plane.nack, claimed.id, "w", error="x", retry=False)
        raises(ClaimLost, f"release of {state}", case.plane.release, claimed.id, "w")
        same(case.plane.cancel(claimed.id), False, f"cancel of {state}")
        same(case.plane.claim(case.queue, "w"), None, f"claim of {state}")
        same(case.row(state), before, f"the row, {state}")


def a_repeated_ending_is_absorbed(case: Case) -> None:
    """Repeating an ending with its fence succeeds and changes nothing; without one it is `ClaimLost`."""
    for verb, (end, state) in _endings(case).items():
        name = "".join(filter(str.isalpha, verb))
        claimed = case.claimed(name)
        end(claimed.id, "w", fence=claimed.fence)
        row = case.row(name)
        end(claimed.id, "w", fence=claimed.fence)
        same(case.row(name), row, f"row after repeated {verb}")
        same(row["state"], state, f"state after {verb}")
        raises(ClaimLost, f"repeated {verb} without fence", end, claimed.id, "w")
        case.plane.cancel(claimed.id)


def a_repeat_after_the_next_claim_is_refused(case: Case) -> None:
    """A repeat is refused once the job was claimed again, or ended in another way."""
    claimed = case.claimed()
    case.plane.nack(claimed.id, "w", error="E: m", fence=claimed.fence)
    case.claim("w2")
    raises(
        ClaimLost,
        "a repeat after another claim",
        case.plane.nack,
        claimed.id,
        "w",
        error="E: m",
        fence=claimed.fence,
    )
    done = case.claimed("b")
    case.plane.ack(done.id, "w", fence=done.fence)
    raises(
        ClaimLost,
        "nack after ack",
        case.plane.nack,
        done.id,
        "w",
        error="E: m",
        retry=False,
        fence=done.fence,
    )


def an_ending_claims_the_next(case: Case) -> None:
    """`next=` claims in the same commit, by its own order, and returns None when nothing is due."""
    for name in ("a", "b", "c"):
        case.submit(name, priority=5.0 if name == "c" else 0.0)
    first = case.claim(kind="filo")
    same(first.id, case.id("c"), "first")
    spec = ClaimSpec(case.queue, "filo", 1.0, 20.0)
    second = case.plane.ack(first.id, "w", fence=first.fence, next=spec)
    same(_name(case, second), ("b", 1), "next of ack")
    assert second is not None
    holds(15 < second.lease_expires_at - time.time() < 25, "the lease of the next claim")
    third = case.plane.nack(second.id, "w", error="E: m", retry=False, fence=second.fence, next=spec)
    same(_name(case, third), ("a", 1), "next of nack")
    assert third is not None
    same(case.plane.ack(third.id, "w", fence=third.fence, next=spec), None, "next of the last")


def a_repeat_returns_the_same_next(case: Case) -> None:
    """A repeated ending with `next=` returns the claim of the first; also where that is the job itself."""
    spec = ClaimSpec(case.queue)
    case.submit("a")
    case.submit("b")
    case.submit("c")
    first = case.claim()
    taken = case.plane.ack(first.id, "w", fence=first.fence, next=spec)
    again = case.plane.ack(first.id, "w", fence=first.fence, next=spec)
    same(_name(case, taken), ("b", 1), "next")
    same(_name(case, again), ("b", 1), "next of the repeat")
    assert taken is not None
    assert again is not None
    same((again.fence, again.envelope), (taken.fence, taken.envelope), "fence and envelope")
    same(case.plane.count(case.queue), 1, "queued rows")
    itself = case.plane.nack(taken.id, "w", error="E: m", fence=taken.fence, next=spec)
    same(_name(case, itself), ("b", 2), "next of a retry is the job itself")
    repeat = case.plane.nack(taken.id, "w", error="E: m", fence=taken.fence, next=spec)
    same(_name(case, repeat), ("b", 2), "next of the repeated retry")


def another_ending_is_no_repeat(case: Case) -> None:
    """An ending with `next=` after a different one is `ClaimLost`, whatever that one claimed."""
    spec = ClaimSpec(case.queue)
    for verb, (first, state) in _endings(case).items():
        if verb == "release":  # it takes no next=
            continue
        name = "".join(filter(str.isalpha, verb))
        claimed = case.claimed(name)
        case.submit(f"{name}-next", priority=1.0)
        taken = first(claimed.id, "w", fence=claimed.fence, next=spec)
        same(_name(case, taken), (f"{name}-next", 1), f"next of {verb}")
        for other, (end, _) in _endings(case).items():
            if other not in (verb, "release"):
                what = f"{other} with next= after {verb}"
                raises(ClaimLost, what, end, claimed.id, "w", fence=claimed.fence, next=spec)
        same(case.state(name), state, f"state after {verb} and refused others")
        case.plane.cancel(claimed.id)
        case.plane.ack(taken.id, "w", fence=taken.fence)
    itself = case.claimed("itself")
    again = case.plane.nack(itself.id, "w", error="E: m", fence=itself.fence, next=spec)
    same(_name(case, again), ("itself", 2), "next of a retry is the job itself")
    raises(ClaimLost, "ack after it", case.plane.ack, itself.id, "w", fence=itself.fence, next=spec)
    same(case.state("itself"), "running", "state of the second claim")


def a_refused_ending_claims_nothing(case: Case) -> None:
    """An ending that is `ClaimLost` takes no next job."""
    case.claimed("a")
    case.submit("b")
    spec = ClaimSpec(case.queue)
    raises(ClaimLost, "ack by another worker", case.plane.ack, case.id(), "other", next=spec)
    same(case.plane.count(case.queue), 1, "queued rows")
    bad = ClaimSpec(case.queue, "lifo")
    raises(ValueError, "a bad spec", case.plane.ack, case.id(), "w", next=bad)
    same(case.state(), "running", "state after a bad spec")


def _name(case: Case, claimed: Claimed | None) -> tuple[str, int] | None:
    return None if claimed is None else (claimed.id.removeprefix(case.id("")), claimed.attempt)
