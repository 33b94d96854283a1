"""Verbs that are one statement on PostgreSQL: what they leave to a transaction, and a lost answer."""

from __future__ import annotations

import itertools
import uuid

import psycopg
import pytest

from lakeshore import ClaimLost, Submission
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.planes.postgres_connection import Connection

LARGEST = 1.7976931348623157e308


@pytest.fixture
def dp(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as plane:
        yield plane


@pytest.fixture
def ran(monkeypatch):
    """The names of the statements that were run; those put into `lose` lose their answer once."""
    names, lose, rows = [], set(), Connection.rows

    def noted(self, name, params):
        names.append(name)
        answer = rows(self, name, params)
        if name in lose:
            lose.discard(name)
            self.raw.close()
            raise psycopg.OperationalError("the line broke after the commit")
        return answer

    monkeypatch.setattr(Connection, "rows", noted)
    return names, lose


def submit(dp, *ids):
    dp.submit_many("q", [Submission(envelope=id.encode(), id=id) for id in ids])


def ack(dp, held, **more):
    return dp.ack(held.id, "w", fence=held.fence, result=b"r", next=ClaimSpec("q"), **more)


def test_a_drain_is_one_statement_a_job(dp, ran):
    names, _ = ran
    submit(dp, *(f"j{n}" for n in range(5)))
    held = dp.claim("q", "w")
    del names[:]
    done = []
    while held is not None:
        done.append((held.id, held.envelope, held.attempt, held.fence, held.queue))
        held = ack(dp, held)
    assert done == [(f"j{n}", b"j%d" % n, 1, 1, "q") for n in range(5)]
    assert names == ["ack_and_claim_ready"] * 5
    assert dp.queues() == {"q": {"succeeded": 5}}


def test_an_ack_whose_answer_was_lost_returns_the_claim_it_made(dp, ran):
    _, lose = ran
    submit(dp, "a", "b", "c")
    held = dp.claim("q", "w")
    lose.add("ack_and_claim_ready")
    following = ack(dp, held)
    assert (following.id, following.envelope, following.fence) == ("b", b"b", 1)
    assert not lose
    assert dp.queues() == {"q": {"succeeded": 1, "running": 1, "queued": 1}}
    assert dp.result("a", timeout=0) == b"r"


def test_a_submit_whose_answer_was_lost_is_made_once(dp, ran):
    _, lose = ran
    lose.add("submit")
    assert dp.submit("q", b"e", id="once", key="k") == "once"
    assert not lose
    assert dp.count("q") == 1
    assert dp.submit("q", b"e", id="again", key="k") == "once"


def test_a_miss_ends_and_claims_nothing(dp):
    submit(dp, "a", "b")
    held = dp.claim("q", "w")
    dp.cancel("a")
    with pytest.raises(ClaimLost, match="it is cancelled"):
        ack(dp, held)
    assert dp.queues() == {"q": {"cancelled": 1, "queued": 1}}


def test_a_large_envelope_comes_with_the_ack(dp):
    dp.submit("q", b"s", id="small")
    dp.submit("q", b"L" * 5000, id="large")
    assert ack(dp, dp.claim("q", "w")).envelope == b"L" * 5000


def test_what_is_more_than_a_ready_row_goes_by_the_transaction(dp):
    dp.submit("q", b"", id="first")
    dp.submit("q", b"", id="again")
    held = dp.claim("q", "w")
    tried = dp.claim("q", "w")
    dp.journal_append("again", None, b"old", worker_id="w", fence=tried.fence)
    dp.nack("again", "w", error="no", fence=tried.fence)
    following = ack(dp, held)
    assert (following.id, following.attempt, following.fence) == ("again", 2, 2)
    seq, _ = next(dp.journal_read("again", since=0, timeout=1))
    assert seq == 1  # the attempt's BEGIN stands after the old frame
    dp.submit("q", b"", id="lapsed", priority=5.0)
    lapsed = dp.claim("q", "gone", lease=0)
    dp.submit("q", b"", id="ready")
    assert ack(dp, following).id == lapsed.id
    assert dp.get("lapsed")["losses"] == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-12, 1.0, 1e290, 1e304, LARGEST])
def test_no_draw_overflows(dp, temperature):
    extremes = (-LARGEST, -4e307, -1e300, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1e300, 4e307, LARGEST)
    for n, pair in enumerate(itertools.combinations(extremes, 2)):
        queue = f"q{n}"
        items = [Submission(envelope=b"", id=f"{queue}-{k}", priority=p) for k, p in enumerate(pair)]
        dp.submit_many(queue, items)
        first = dp.claim(queue, "w", kind="boltzmann", temperature=temperature)
        assert first is not None
        if pair[1] / 2 - pair[0] / 2 > 50 * min(temperature, 1e300) and temperature < 1e300:
            assert first.id == f"{queue}-1"
        assert dp.claim(queue, "w", kind="boltzmann", temperature=temperature) is not None
