"""The server restarts and its sessions are killed under load: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid

import psycopg
import pytest

from lakeshore import ClaimLost, PlaneUnavailable
from lakeshore.planes import postgres_database
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.postgres import PostgresDispatch

SECONDS = 60.0 if os.environ.get("LONG_TESTS") else 3.0


class Load:
    """Producers and workers that note what they were told."""

    def __init__(self, dsn):
        self.ns = uuid.uuid4().hex
        self.dp = PostgresDispatch(dsn, ns=self.ns)
        self.submitted, self.acked, self.appended, self.failures = [], [], [], []
        self.stop = threading.Event()
        self.threads = [
            *(threading.Thread(target=self.guarded, args=(self.produce, f"p{n}")) for n in range(2)),
            *(threading.Thread(target=self.guarded, args=(self.work, f"w{n}")) for n in range(3)),
            threading.Thread(target=self.guarded, args=(self.append, "t")),
        ]
        for thread in self.threads:
            thread.start()

    def guarded(self, body, name):
        try:
            body(name)
        except BaseException as error:
            self.failures.append(error)

    def produce(self, name):
        n = 0
        while not self.stop.is_set():
            self.submitted.append(self.dp.submit("q", b"e", id=f"{name}-{n}"))
            n += 1

    def work(self, name):
        held = None
        while not (self.stop.is_set() and held is None):
            if held is None:
                held = self.dp.claim("q", name, wait=0.2)
                continue
            id, fence = held.id, held.fence
            spec = None if self.stop.is_set() else ClaimSpec("q")
            held = self.dp.ack(id, name, fence=fence, result=id.encode(), next=spec)
            self.acked.append(id)

    def append(self, name):
        while not self.stop.is_set():
            self.appended.append(self.dp.journal_append("topic", None, b"%d" % len(self.appended)))

    def check(self, *, crashed=False):
        """End the load; every acknowledged submit is there, every ack was one, every frame stands once.

        A crash of the server may leave a claim that nobody knows of, until it lapses, and a frame twice.
        """
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        try:
            assert not self.failures, self.failures
            assert len(set(self.acked)) == len(self.acked)
            for id in self.acked:
                assert self.dp.result(id, timeout=0) == id.encode()
            counts = self.dp.queues()["q"]
            assert sum(counts.values()) == len(self.submitted)
            assert counts.get("succeeded", 0) == len(self.acked)
            assert crashed or counts.get("running", 0) == 0  # no claim was made that nobody knows of
            self.dp.journal_append("topic", None, b"end", final=True)
            frames = [body for _, body in self.dp.journal_read("topic", timeout=5)]
            assert crashed or len(frames) == len(set(frames))
            assert list(dict.fromkeys(frames)) == [*(b"%d" % n for n in range(len(self.appended))), b"end"]
            assert sorted(set(self.appended)) == self.appended
        finally:
            self.dp.close()


@pytest.mark.parametrize("how", ["immediate", "fast"])
def test_a_restart_under_load_loses_nothing(server, how):
    load = Load(server.dsn())
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(SECONDS / 4)
        server.stop(how)
        server.start()
        before = len(load.acked)
        back = time.monotonic() + 30
        while len(load.acked) < before + 50 and time.monotonic() < back:
            time.sleep(0.02)
        assert len(load.acked) >= before + 50, "not at work again within 30 s"
    load.check(crashed=how == "immediate")


def test_sessions_killed_at_random_lose_nothing(server):
    load = Load(server.dsn())
    end = time.monotonic() + SECONDS
    with psycopg.connect(server.dsn(), autocommit=True) as raw:
        while time.monotonic() < end:
            pids = raw.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchall()
            if pids:
                raw.execute("SELECT pg_terminate_backend(%s)", random.choice(pids))
            time.sleep(0.03)
    load.check()


def test_a_server_that_is_away_is_told_with_its_place(server, monkeypatch):
    monkeypatch.setattr(postgres_database, "RIDE_OUT", 0.5)
    with PostgresDispatch(server.dsn()) as dp:
        dp.submit("q", b"", id="j")
        server.stop("fast")
        with pytest.raises(
            PlaneUnavailable, match=f"'postgres' at {server.folder}.*Check that the server runs"
        ):
            dp.submit("q", b"", id="k")
        with pytest.raises(PlaneUnavailable, match="'other' at"):
            PostgresDispatch(server.dsn("other") + "&application_name=x")
        server.start()
        assert dp.get("j")["state"] == "queued"


def test_a_lock_of_another_session_is_waited_for(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp, psycopg.connect(dsn) as raw:
        dp.submit("q", b"", id="locked")
        dp.submit("q", b"", id="free")
        raw.execute("SELECT 1 FROM lakeshore.invocation WHERE id = 'locked' FOR UPDATE")
        assert dp.claim("q", "w").id == "free"
        assert dp.claim("q", "w") is None
        raw.rollback()
        assert dp.claim("q", "w").id == "locked"
        with pytest.raises(ClaimLost):
            dp.ack("locked", "other")
