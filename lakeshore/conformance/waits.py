"""Rules of waiting: who blocks in claim, result or journal_read wakes with the event, not at a poll."""

from __future__ import annotations

import time

from lakeshore.conformance.case import Case, holds, raises, same, soon
from lakeshore.errors import WaitTimeout
from lakeshore.planes.contract import Claimed

_PROMPT = 0.5
"""Seconds within which a waiter wakes; far below the slow look that covers a lost wake-up."""


def _waiting_claim(case: Case) -> Claimed | None:
    return case.plane.claim(case.queue, "w", wait=10.0)


def claim_wakes_for_a_submit(case: Case) -> None:
    """A claim that waits takes a job as it is submitted."""
    taken = soon(lambda: _waiting_claim(case), case.submit, within=_PROMPT, what="claim")
    same(taken and taken.id, case.id(), "claimed")


def claim_wakes_for_a_job_given_back(case: Case) -> None:
    """A claim that waits takes a job as it is nacked, released or requeued."""
    plane = case.plane
    case.claimed()
    taken = soon(
        lambda: _waiting_claim(case),
        lambda: plane.nack(case.id(), "w", error="E"),
        within=_PROMPT,
        what="after nack",
    )
    assert taken is not None
    taken = soon(
        lambda: _waiting_claim(case), lambda: plane.release(case.id(), "w"), within=_PROMPT, what="release"
    )
    assert taken is not None
    plane.cancel(taken.id)
    soon(lambda: _waiting_claim(case), lambda: plane.requeue(case.id()), within=_PROMPT, what="requeue")


def claim_wakes_when_a_delay_is_over(case: Case) -> None:
    """A claim that waits knows when the next delayed job is due, and when the next lease lapses."""
    case.submit(delay=0.4)
    began = time.monotonic()
    taken = _waiting_claim(case)
    took = time.monotonic() - began
    holds(taken is not None and 0.3 < took < 0.9, f"claim of a delayed job after {took:.2f} s")
    case.plane.heartbeat(case.id(), "w", lease=0.4)
    began = time.monotonic()
    taken = _waiting_claim(case)
    took = time.monotonic() - began
    holds(taken is not None and 0.3 < took < 0.9, f"claim of a lapsing lease after {took:.2f} s")


def claim_waits_no_longer_than_asked(case: Case) -> None:
    """Without a job a claim returns None when its wait is over, and at once for 0."""
    for wait in (0.0, 0.3):
        began = time.monotonic()
        same(case.plane.claim(case.queue, "w", wait=wait), None, "claim")
        took = time.monotonic() - began
        holds(wait <= took + 0.01 and took < wait + 0.5, f"a wait of {wait} s took {took:.2f} s")


def one_submit_wakes_one_claim(case: Case) -> None:
    """Of two that wait, one takes the job and the other goes on waiting."""
    taken = soon(
        lambda: [case.plane.claim(case.queue, "w1", wait=10.0), case.plane.claim(case.queue, "w2", wait=0.3)],
        case.submit,
        within=_PROMPT + 0.5,
        what="claim",
    )
    same([claimed and claimed.id for claimed in taken], [case.id(), None], "claims")


def result_wakes_for_an_ending(case: Case) -> None:
    """A result that waits returns as the job is acked, and raises as it is cancelled."""
    case.claimed()
    answer = soon(
        lambda: case.plane.result(case.id(), timeout=10.0),
        lambda: case.plane.ack(case.id(), "w", result=b"r"),
        within=_PROMPT,
        what="result",
    )
    same(answer, b"r", "result")
    case.claimed("b")
    soon(
        lambda: raises(Exception, "result", case.plane.result, case.id("b"), timeout=10.0),
        lambda: case.plane.cancel(case.id("b")),
        within=_PROMPT,
        what="result of a cancelled job",
    )


def journal_read_wakes_for_a_frame(case: Case) -> None:
    """A reader that waits gets a frame as it is appended, and ends as the row does."""
    case.claimed()
    reader = case.plane.journal_read(case.id(), timeout=10.0)
    frame = soon(
        lambda: next(reader),
        lambda: case.plane.journal_append(case.id(), None, b"f"),
        within=_PROMPT,
        what="journal_read",
    )
    same(frame, (0, b"f"), "frame")
    rest = soon(lambda: list(reader), lambda: case.plane.ack(case.id(), "w"), within=_PROMPT, what="the end")
    same(rest, [], "rest")
    case.claimed("b")
    for sibling in (".log", ".progress"):
        case.plane.journal_append(case.id("b") + sibling, None, b"f")
    rest = soon(
        lambda: case.read(case.id("b") + ".log", timeout=10.0),
        lambda: case.plane.cancel(case.id("b")),
        within=_PROMPT,
        what="the end of a sibling",
    )
    same(rest, [(0, b"f")], "the sibling's frames")


def journal_read_times_out_on_silence(case: Case) -> None:
    """A reader raises after its timeout without a frame; a frame restarts that clock; 0 only looks."""
    topic = f"t {case.id()}"
    raises(WaitTimeout, "a read of nothing", case.read, topic, timeout=0)
    case.plane.journal_append(topic, None, b"0")
    reader = case.plane.journal_read(topic, timeout=0.3)
    same(next(reader), (0, b"0"), "first frame")
    time.sleep(0.4)
    case.plane.journal_append(topic, None, b"1")
    same(next(reader), (1, b"1"), "a frame that came while the reader was busy")
    began = time.monotonic()
    raises(TimeoutError, "silence", next, reader)
    took = time.monotonic() - began
    holds(0.25 < took < 0.8, f"the timeout of 0.3 s came after {took:.2f} s")
    raises(ValueError, "timeout -1", case.plane.journal_read, topic, timeout=-1)
    raises(ValueError, "poll -1", case.plane.journal_read, topic, poll=-1)
    raises(ValueError, "since -2", case.plane.journal_read, topic, since=-2)
