"""The server restarts and its sessions are killed under load: nothing acknowledged is lost.

``LONG_TESTS=1`` does each for a minute.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import uuid

import postgres_server
import pytest
from postgres_load import Load

from lakeshore import ClaimLost, PlaneUnavailable

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes import postgres_database  # noqa: E402 - after the skip
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - after the skip

SECONDS = 60.0 if os.environ.get("LONG_TESTS") == "1" else 2.0


@pytest.fixture
def server():
    with postgres_server.own() as made:
        yield made


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


def test_a_backend_that_is_killed_by_force_loses_nothing(server):
    """The whole server drops its sessions then, and recovers as after a crash."""
    load = Load(server.dsn())
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(max(0.5, SECONDS / 12))
        with contextlib.suppress(psycopg.OperationalError, ProcessLookupError):
            os.kill(random.choice(server.pids()), signal.SIGKILL)
        before, back = len(load.acked), time.monotonic() + 30
        while len(load.acked) < before + 50 and time.monotonic() < back:
            time.sleep(0.02)
        assert len(load.acked) >= before + 50, "not at work again within 30 s"
    load.check(crashed=True)


def test_a_server_that_is_away_for_a_while_is_waited_for(server):
    """Longer than the pool tries by itself; all eight connections had a commit that was not answered."""
    load = Load(server.dsn(), producers=6, workers=8)
    if SECONDS < 10:
        load.dp._database._opened().reconnect_timeout = 1.0
    time.sleep(1)  # all are at work
    server.stop("immediate")
    time.sleep(20 if SECONDS > 10 else 3)
    server.start()
    before, began = len(load.acked), time.monotonic()
    while len(load.acked) < before + 50:
        assert time.monotonic() < began + 30, "not at work again within 30 s"
        time.sleep(0.02)
    print(f"at work again {time.monotonic() - began:.1f} s after the server was")
    load.check(crashed=True)


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
        monkeypatch.undo()
        assert dp.get("j")["state"] == "queued"


def test_a_lock_of_another_session_is_waited_for():
    dsn = postgres_server.shared_dsn()
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
