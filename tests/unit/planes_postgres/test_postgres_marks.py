"""Looks that begin at a mark keep every rule: here they do so from the first, as if dead rows piled up."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from lakeshore import Submission
from lakeshore.conformance import check, rules
from lakeshore.planes import postgres_marks
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.planes.postgres_marks import Marks

RULES = [
    rule
    for n, rule in enumerate(rules())
    if os.environ.get("LONG_TESTS") == "1"
    or n % 4 == 0
    or any(word in rule for word in ("order", "oldest", "priority", "newest", "lapsed", "delayed", "place"))
]


@pytest.fixture
def slow(monkeypatch):
    """Have whole looks seem slow, and be hours apart but where a rule asks for one."""
    monkeypatch.setattr(postgres_marks._Mark, "cost", lambda mark: 1000.0)
    monkeypatch.setattr(postgres_marks, "_MOST", 3600.0)


@pytest.mark.parametrize("rule", RULES)
def test_rule(slow, dsn, rule):
    (outcome,) = check(lambda: PostgresDispatch(dsn), only=[rule])
    assert outcome.ok, outcome.detail


def test_what_this_process_puts_before_a_mark_is_next(slow, dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        for n in range(6):
            dp.submit("q", b"", id=f"j{n}")
        held = [dp.claim("q", "w").id for _ in range(3)]
        assert held == ["j0", "j1", "j2"]
        dp.nack("j1", "w", error="x")
        assert dp.claim("q", "w").id == "j1"
        dp.release("j0", "w")
        assert dp.claim("q", "w").id == "j0"
        dp.submit("q", b"", id="high", priority=5)
        assert dp.claim("q", "w").id == "high"
        assert dp.claim("q", "w").id == "j3"
        dp.cancel("j2")
        dp.requeue("j2")
        assert dp.ack("j3", "w", fence=1, next=ClaimSpec("q")).id == "j2"
        dp.submit("q", b"", id="later", delay=0.05)
        time.sleep(0.1)  # until it is due
        assert [job.id for job in dp.claim_many("q", "w", 9)] == ["j4", "j5", "later"]


def test_what_another_process_puts_before_a_mark_is_found(dsn, monkeypatch):
    monkeypatch.setattr(postgres_marks._Mark, "cost", lambda mark: 0.002)
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        for n in range(5):
            dp.submit("q", b"", id=f"j{n}")
        assert dp.claim("q", "w").id == "j0"
        assert dp.claim("q", "w").id == "j1"
        monkeypatch.setattr(Marks, "entered", lambda *_: None)  # as if another process did it
        dp.nack("j0", "w", error="x")
        end, took = time.monotonic() + 10, []
        while "j0" not in took and time.monotonic() < end:
            job = dp.claim("q", "w")
            if job is not None:
                took.append(job.id)
        assert "j0" in took


def test_quick_looks_are_whole():
    marks = Marks()
    for _ in range(20):
        look = marks.look("n", "q", 0.0)
        assert look.whole
        assert not marks.looked(look, (1.0, 7), due=False, trip=0.0, committed=False)


def test_slow_looks_begin_where_the_last_ended(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(postgres_marks.time, "monotonic", lambda: now[0])
    marks = Marks()

    def look(took, last=(1.0, 7)):
        each = marks.look("n", "q", 50.0)
        now[0] += took
        again = marks.looked(each, last, due=False, trip=0.001, committed=False)
        return each, again

    for n in range(8):
        assert look(0.1, (1.0, n))[0].whole
    each, _ = look(0.001, (1.0, 8))
    assert not each.whole
    assert dict(each.params) == {"mark_priority": 1.0, "mark_seq": 7, "spared": 49.0}
    assert dict(look(0.001)[0].params)["mark_seq"] == 8
    now[0] += 2.1
    assert look(0.1)[0].whole
    marks.entered("n", "q", 0.5)
    assert not look(0.001)[0].whole, "it entered behind the mark"
    marks.entered("n", None, None)
    assert look(0.1)[0].whole


def test_a_queue_is_empty_after_a_whole_look(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(postgres_marks.time, "monotonic", lambda: now[0])
    marks = Marks()

    def look(took, last=(1.0, 7), *, fused=False, wholly=False):
        each = marks.look("n", "q", 50.0, wholly=wholly)
        now[0] += took
        return each.whole, marks.looked(each, last, due=False, trip=0.0, committed=fused)

    for _ in range(8):
        assert look(0.1) == (True, False)
    assert look(0.001, None, fused=True) == (False, False), "it cannot be made again"
    assert look(0.001, None) == (False, True), "although a whole look was made just before"
    assert look(0.1, None, wholly=True) == (True, False)
    assert look(0.001, None) == (False, False), "one found it empty just before"
    assert look(0.001) == (False, False)
    now[0] += 1.7
    assert look(0.001, None) == (False, False)
    now[0] += 0.3
    assert look(0.001, None) == (True, False)


def test_what_a_whole_peek_saw_is_claimed_next(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(postgres_marks.time, "monotonic", lambda: now[0])
    marks = Marks()

    def claim(took):
        each = marks.look("n", "q", 50.0)
        now[0] += took
        marks.looked(each, (1.0, 7), due=False, trip=0.0, committed=False)
        return each.whole

    def peek(ready):
        each = marks.look("n", "q", 50.0, peek=True)
        marks.peeked(each, ready=ready)
        return each.whole

    assert all(claim(0.1) for _ in range(8))
    assert peek(True)
    assert claim(0.1)
    assert not peek(True)
    assert not claim(0.001)
    now[0] += 1.1
    assert peek(False), "who waits looks wholly each second"
    assert not claim(0.001)


def test_a_drain_to_empty_leaves_nothing_that_another_process_put_ahead(dsn, monkeypatch):
    monkeypatch.setattr(postgres_marks._Mark, "cost", lambda mark: 1000.0)
    ns = uuid.uuid4().hex
    with PostgresDispatch(dsn, ns=ns) as dp:
        dp.submit_many("q", [Submission(envelope=b"", id=f"j{n}") for n in range(30)])
        held, took = dp.claim("q", "w"), []
        while held is not None:
            took.append(held.id)
            if held.id == "j20":
                with monkeypatch.context() as patched:
                    patched.setattr(Marks, "entered", lambda *_: None)  # as if another process did it
                    dp.submit_many("q", [Submission(envelope=b"", id=f"h{n}", priority=9) for n in range(3)])
            held = dp.ack(held.id, "w", fence=held.fence, next=ClaimSpec("q")) or dp.claim("q", "w")
        assert took[-3:] == ["h0", "h1", "h2"]
        assert dp.queues() == {"q": {"succeeded": 33}}
