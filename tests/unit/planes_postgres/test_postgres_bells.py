"""Bells over LISTEN/NOTIFY: who listens, when others are told, and what a process leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import time
import uuid

import psycopg
import pytest

from lakeshore import Queue
from lakeshore.planes import postgres_bells
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.planes.postgres_bells import PostgresBelfry

WITHIN = 5.0


def until(so, within=WITHIN):
    end = time.monotonic() + within
    while not so():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


@pytest.fixture
def belfry(dsn, monkeypatch):
    """Makes belfries, each as that of a process of its own."""
    monkeypatch.setattr(postgres_bells, "_LINGER", 0.1)
    with contextlib.ExitStack() as stack:

        def make():
            made = PostgresBelfry(lambda: psycopg.connect(dsn, autocommit=True), lambda: True)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def notified(monkeypatch):
    """How often others were told, by belfry."""
    told, tell = [], PostgresBelfry._tell

    def noted(self, raw, digests):
        told.append((self, digests))
        tell(self, raw, digests)

    monkeypatch.setattr(PostgresBelfry, "_tell", noted)
    return lambda belfry: sum(1 for each, digests in told if each is belfry and digests[0][-1] != "!")


def test_a_process_listens_while_somebody_waits_in_it(belfry):
    mine, other = belfry(), belfry()
    for _ in range(3):
        bell = mine.hang("t")
        assert mine.hears
        bell.clear()
        began = time.monotonic()
        other.ring(["t"])
        bell.wait(WITHIN)
        assert time.monotonic() - began < WITHIN / 2
        bell.close()
        until(lambda: not mine.hears)


def test_a_bell_that_was_forgotten_is_one_that_was_taken_down(belfry):
    mine = belfry()
    bell = mine.hang("t")
    assert mine.hears
    del bell
    until(lambda: not mine.hears)


def test_the_first_ring_goes_out_at_once_and_the_rest_when_the_process_waits(belfry, notified, monkeypatch):
    monkeypatch.setattr(postgres_bells, "_GATHERING", (0.001, 60.0))
    mine, other = belfry(), belfry()
    first, second = other.hang("first"), other.hang("second")
    first.clear()
    second.clear()
    mine.ring(["first"])
    first.wait(WITHIN)
    until(lambda: mine._gathering)
    for _ in range(5):
        mine.ring(["second"])
    assert notified(mine) == 1
    waiting = mine.hang("mine")
    began = time.monotonic()
    second.wait(WITHIN)
    assert time.monotonic() - began < WITHIN / 2
    assert notified(mine) == 2
    for bell in (first, second, waiting):
        bell.close()


def test_one_who_works_on_tells_seldom(belfry, notified):
    mine = belfry()
    end = time.monotonic() + 0.3
    rings = 0
    while time.monotonic() < end:
        mine.ring([f"t{rings % 7}"])
        rings += 1
        time.sleep(0.001)
    until(lambda: not mine._told)
    assert notified(mine) <= 0.3 / 0.016 + 5


def test_what_was_rung_last_is_told_before_the_end(belfry, monkeypatch):
    monkeypatch.setattr(postgres_bells, "_GATHERING", (60.0, 60.0))
    mine, other = belfry(), belfry()
    bell = other.hang("last")
    mine.ring(["first"])
    until(lambda: mine._gathering)
    mine.ring(["last"])
    bell.clear()
    mine.close()
    began = time.monotonic()
    bell.wait(WITHIN)
    assert time.monotonic() - began < WITHIN / 2
    bell.close()


def test_a_program_that_ends_without_closing_has_told(dsn):
    ns = uuid.uuid4().hex
    program = """
        import sys
        from lakeshore.planes.postgres import PostgresDispatch
        dp = PostgresDispatch(sys.argv[1], ns=sys.argv[2])
        dp.submit("other", b"", id="first")
        dp.submit("q", b"", id="last")
    """
    with PostgresDispatch(dsn, ns=ns) as dp:
        bell = dp._bells.hang(dp._queue_topic("q"))
        bell.clear()
        subprocess.run([sys.executable, "-c", textwrap.dedent(program), dsn, ns], check=True, timeout=30)
        began = time.monotonic()
        bell.wait(WITHIN)
        assert time.monotonic() - began < WITHIN / 2
        bell.close()


def test_many_waiters_of_an_event_loop_share_the_connections(fresh):
    with PostgresDispatch(f"{fresh}&application_name=many") as dp:

        async def waited():
            queue = Queue("q", dispatch=dp)
            jobs = [dp.submit("q", b"", id=f"j{n}") for n in range(500)]
            waits = [asyncio.ensure_future(queue.result(job, timeout=60)) for job in jobs]
            await asyncio.sleep(1)
            taken = await asyncio.to_thread(connections)
            await asyncio.to_thread(cancel, jobs)
            ended = await asyncio.gather(*waits, return_exceptions=True)
            return taken, ended

        def connections():
            with psycopg.connect(fresh) as raw:
                asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'"
                return raw.execute(asked).fetchone()[0]

        def cancel(jobs):
            for job in jobs:
                dp.cancel(job)

        taken, ended = asyncio.run(waited())
        assert taken < 10
        assert {type(each).__name__ for each in ended} == {"InvocationCancelled"}
