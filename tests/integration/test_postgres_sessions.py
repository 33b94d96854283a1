"""What a DBA, a pool or a network may do to PostgreSQL's sessions: none of it breaks a verb or a wait."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import uuid

import postgres_server
import pytest

from lakeshore import PlaneUnavailable, Submission

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes import postgres_database  # noqa: E402 - after the skip
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - after the skip

LONG = os.environ.get("LONG_TESTS") == "1"
SECRET = "s3cr3t/of mine"
ODD_NAMES = ("naïve 用户 🌊", "a\\b'c\"d", "NULL", "{NULL,x}")

SETTINGS = {
    "statement_timeout": "100ms",
    "idle_in_transaction_session_timeout": "100ms",
    "idle_session_timeout": "100ms",
    "lock_timeout": "10ms",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "search_path": "mine, pg_catalog",
    "timezone": "Asia/Kolkata",
    "datestyle": "SQL, DMY",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "synchronous_commit": "off",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "array_nulls": "off",
    "intervalstyle": "sql_standard",
    "xmloption": "document",
    "row_security": "off",
    "plan_cache_mode": "force_custom_plan",
    "client_min_messages": "debug1",
}


def work_through(dp):
    """Run what a producer, a worker and readers say, with a wait of each kind."""
    took, waited = [], threading.Event()

    def worker():
        for _ in range(5):
            held = dp.claim("q", "w", wait=20)
            waited.set()
            time.sleep(0.25)  # longer than the limits that are set for statements and idle sessions
            dp.heartbeat(held.id, "w", fence=held.fence)
            dp.journal_append(held.id, None, b"\0\xff'\\", worker_id="w", fence=held.fence)
            dp.ack(held.id, "w", fence=held.fence, result=held.envelope, frame=b"end")
            took.append(held)

    thread = threading.Thread(target=worker)
    thread.start()
    time.sleep(0.3)  # the wait lasts longer than those limits
    items = [
        Submission(envelope=name.encode(), id=f"j{n}", key=name if n else None)
        for n, name in enumerate(ODD_NAMES)
    ]
    dp.submit("q", b"0", id="first", priority=-1.5)
    assert waited.wait(5)
    assert dp.submit_many("q", items) == ["j0", "j1", "j2", "j3"]
    for n, name in enumerate(ODD_NAMES):
        assert dp.result(f"j{n}", timeout=20) == name.encode()
        assert [body for _, body in dp.journal_read(f"j{n}", timeout=5)] == [b"\0\xff'\\", b"end"]
        assert dp.get(f"j{n}")["key"] == (name if n else None)
    thread.join(20)
    assert len(took) == 5
    row = dp.get("first")
    assert abs(row["submitted_at"] - time.time()) < 60
    assert row["priority"] == -1.5
    dp.submit("late", b"", id="late", delay=0.2)
    began = time.monotonic()
    assert dp.claim("late", "w", wait=10).id == "late"
    assert 0.1 < time.monotonic() - began < 5
    assert dp.claim("late", "w", kind="boltzmann") is None
    assert dp.queues()["q"] == {"succeeded": 5}


@pytest.fixture(scope="module")
def server():
    with postgres_server.own("fsync=off", "max_connections=60", host="127.0.0.1") as made:
        yield made


@pytest.fixture
def role(server):
    """A role that owns a database of its own; returns the database's address for it, and a superuser's."""
    name = f"u{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.dsn(), autocommit=True) as raw:
        raw.execute(f"CREATE ROLE {name} LOGIN")
        raw.execute(f"CREATE DATABASE {name} OWNER {name}")
    return server.dsn(name).replace("postgres@", f"{name}@"), server.dsn(name)


@pytest.mark.parametrize("setting", ["all of them", *(SETTINGS if LONG else ())])
@pytest.mark.parametrize("of", ["ROLE", "DATABASE"])
def test_settings_of_a_role_or_database_change_nothing(role, setting, of):
    """``LONG_TESTS=1`` tries each alone as well."""
    mine, boss = role
    chosen = SETTINGS if setting == "all of them" else {setting: SETTINGS[setting]}
    name = mine.split("//")[1].split("@")[0]
    with psycopg.connect(boss, autocommit=True) as raw:
        raw.execute(f"CREATE SCHEMA mine AUTHORIZATION {name}")
        raw.execute(
            "CREATE FUNCTION mine.clock_timestamp() RETURNS timestamptz "
            "LANGUAGE sql AS 'SELECT NULL::timestamptz'"
        )
        for key, value in chosen.items():
            if raw.execute("SELECT 1 FROM pg_settings WHERE name = lower(%s)", [key]).fetchone():
                raw.execute(f"ALTER {of} {name} SET {key} = {value if key == 'search_path' else repr(value)}")
    with PostgresDispatch(mine) as dp:
        assert not dp._database.pooled
        work_through(dp)
        with dp._database.connection(writing=True) as tx:
            shown = dict(tx.raw.execute("SELECT name, setting FROM pg_settings").fetchall())
        assert shown["synchronous_commit"] == "on"
        assert shown["statement_timeout"] == "0"


def test_what_an_address_asks_for_wins(role):
    with PostgresDispatch(f"{role[0]}&options=-c%20synchronous_commit%3Doff") as dp:
        with dp._database.connection(writing=False) as tx:
            assert tx.raw.execute("SHOW synchronous_commit").fetchone() == ("off",)
        assert not dp._database.pooled


def test_a_statement_that_is_cancelled_runs_again(server):
    done = threading.Event()
    with PostgresDispatch(server.fresh()) as dp, psycopg.connect(server.dsn(), autocommit=True) as raw:
        database = dp._address.database

        def cancel():
            while not done.is_set():
                raw.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database]
                )
                done.wait(0.02)

        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            ids = [dp.submit("q", b"", id=f"j{n}") for n in range(300)]
            claimed = {dp.claim("q", "w").id for _ in ids}
        finally:
            done.set()
            thread.join()
        assert claimed == set(ids)


def test_more_threads_than_connections(server):
    with PostgresDispatch(server.fresh()) as dp:
        took, lock = [], threading.Lock()
        for n in range(300):
            dp.submit("q", b"", id=f"j{n}")

        def worker(name):
            while (held := dp.claim("q", name)) is not None:
                dp.ack(held.id, name, fence=held.fence)
                with lock:
                    took.append(held.id)

        threads = [threading.Thread(target=worker, args=(f"w{n}",)) for n in range(100)]
        for thread in threads:
            thread.start()
        assert len(server.pids(dp._address.database)) <= postgres_database.POOL + 1
        for thread in threads:
            thread.join(60)
        assert sorted(took) == sorted(f"j{n}" for n in range(300))


def test_a_pool_that_is_held_says_so(server, monkeypatch):
    monkeypatch.setattr(postgres_database, "RIDE_OUT", 0.3)
    with PostgresDispatch(server.fresh()) as dp, contextlib.ExitStack() as held:
        for _ in range(postgres_database.POOL):
            held.enter_context(dp._database.connection(writing=False))
        with pytest.raises(PlaneUnavailable, match="all 8 connections of this process.*Use fewer threads"):
            dp.get("j")


def test_a_server_without_a_free_session_is_waited_for(server):
    """Whatever sessions there are serve all; without any a call waits, and goes on when there is one."""
    dsn = server.fresh()
    PostgresDispatch(dsn).close()
    with contextlib.ExitStack() as taken:
        sessions = []
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                sessions.append(taken.enter_context(psycopg.connect(server.dsn())))
        for _ in range(3):
            sessions.pop().close()
        answers = []
        with PostgresDispatch(dsn) as dp:
            threads = [
                threading.Thread(target=lambda n=n: answers.append(dp.submit("q", b"", id=f"j{n}")))
                for n in range(40)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert len(answers) == 40
        free, quiet = threading.Event(), time.monotonic() + 1
        while time.monotonic() < quiet:  # sessions that were closed end a little later
            with contextlib.suppress(psycopg.OperationalError):
                sessions.append(taken.enter_context(psycopg.connect(server.dsn())))
                quiet = time.monotonic() + 1
        away = 6.0 if LONG else 2.5
        timer = threading.Timer(away, lambda: (free.set(), [each.close() for each in sessions[:12]]))
        made = postgres_database.Database(dp._address)
        if not LONG:
            made._opened().reconnect_timeout = 1.0
        timer.start()
        began = time.monotonic()
        with made.connection(writing=False) as tx:
            assert free.is_set()
            assert tx.rows("clock", {})
        assert time.monotonic() - began < 15
        made.close()
        timer.join()


def test_five_hundred_waiters_on_a_few_connections(server):
    """Threads that wait for jobs, results and frames: a process keeps to its pool and one that listens."""
    with PostgresDispatch(server.fresh()) as dp:
        database, most, answers = dp._address.database, 0, []
        dp.submit("x", b"", id="held")
        held = dp.claim("x", "w")
        waits = {
            0: lambda n: dp.claim(f"q{n}", f"w{n}", wait=60),
            1: lambda n: dp.result("held", timeout=60),
            2: lambda n: list(dp.journal_read("topic", timeout=60)),
        }
        threads = [
            threading.Thread(target=lambda n=n: answers.append(waits[n % 3](n)), daemon=True)
            for n in range(500)
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + (4 if LONG else 2)
        while time.monotonic() < end:
            most = max(most, len(server.pids(database)))
            time.sleep(0.1)  # between two looks
        assert most < 10, most
        assert dp._bells.hears
        began = time.monotonic()
        dp.ack("held", "w", result=b"r", fence=held.fence)
        dp.journal_append("topic", None, b"x", final=True)
        dp.submit_many("q0", [])
        for n in range(0, 500, 3):
            dp.submit(f"q{n}", b"", id=f"j{n}")
        for thread in threads:
            thread.join(60)
        assert len(answers) == 500
        assert not any(answer is None for answer in answers)
        assert time.monotonic() - began < 20
        most = max(most, len(server.pids(database)))
        assert most < 10, most


def test_a_listener_that_is_killed_comes_back(server):
    with PostgresDispatch(server.fresh()) as dp, psycopg.connect(server.dsn(), autocommit=True) as raw:
        bell = dp._bells.hang("t")
        assert dp._bells.hears
        pids = raw.execute(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = %s AND query ~* 'notify|listen'",
            [dp._address.database],
        ).fetchall()
        assert pids
        got = []
        waiter = threading.Thread(target=lambda: got.append(dp.claim("q", "w", wait=20)))
        waiter.start()
        time.sleep(0.05)  # the wait has begun while nobody listens
        dp.submit("q", b"", id="j")
        waiter.join(5)
        assert got[0].id == "j"
        end = time.monotonic() + 5
        while not dp._bells.hears and time.monotonic() < end:
            time.sleep(0.02)
        assert dp._bells.hears
        bell.close()


def test_notifications_that_cannot_be_queued_fail_no_job(server, monkeypatch):
    """As when a listener that never reads has filled the queue: NOTIFY is an error from then on."""
    with PostgresDispatch(server.fresh()) as dp:
        full = b"DO $$ BEGIN RAISE program_limit_exceeded; END $$"
        monkeypatch.setattr(dp._bells, "_sql", {**dp._bells._sql, "notify": full})
        got = []
        waiter = threading.Thread(target=lambda: got.append(dp.claim("q", "w", wait=20)))
        waiter.start()
        time.sleep(0.3)
        began = time.monotonic()
        dp.submit("q", b"", id="j")
        waiter.join(10)
        assert got[0].id == "j"
        assert time.monotonic() - began < 1.5
        for n in range(2000):
            dp._bells.ring([f"t{n}"] * 10)
        assert len(dp._bells._told) <= 10_000


FORKED = """
    import os, sys, time
    from lakeshore.planes.postgres import PostgresDispatch
    dp = PostgresDispatch(sys.argv[1])
    dp.submit("q", b"", id="before")
    bell = dp._bells.hang("t")
    def sockets():
        fds = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if target.startswith("socket:"):
                fds[fd] = target
        return fds
    ours = sockets()
    for turn in range(5):
        child = os.fork()
        if child == 0:
            dp.submit("q", b"", id=f"child{turn}")
            got = dp.claim("none", "w", wait=0.3)
            assert got is None
            fresh = {fd: to for fd, to in sockets().items() if ours.get(fd) != to}
            assert fresh, "no connection of its own"
            if turn == 1:
                sys.exit(0)  # with all that an interpreter does at its end
            if turn == 2:
                dp.close()
            os._exit(0)
        for n in range(20):
            dp.submit("q", b"", id=f"parent{turn}-{n}")
        assert os.waitpid(child, 0)[1] == 0
        dp.submit("q", b"", id=f"after{turn}")
        assert dp._bells.hears
    print(dp.count("q"))
    dp.close()
"""


def test_forked_children_leave_the_parents_sessions_alone(server):
    dsn = server.fresh()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKED), dsn],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(1 + 5 * 22)]
    assert done.stderr == ""


def test_the_password_is_in_no_log_and_no_error(server, monkeypatch):
    name = server.fresh().split("/")[3].split("?")[0]
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    monkeypatch.setattr(postgres_database, "RIDE_OUT", 0.5)
    said = []
    try:
        quoted = "s3cr3t%2Fof%20mine"
        dp = PostgresDispatch(f"postgresql://postgres:{quoted}@{server.host}:{server.port}/{name}")
        dp.submit("q", b"", id="j")
        said.append(repr(dp) + str(dp._address) + repr(dp._database) + repr(vars(dp)))
        server.stop("immediate")
        for verb in (lambda: dp.get("j"), lambda: dp.submit("q", b"", id="k")):
            with pytest.raises(PlaneUnavailable) as caught:
                verb()
            said.append("".join(traceback.format_exception(caught.value)))
        server.start()
        with monkeypatch.context() as patient:
            patient.setattr(postgres_database, "RIDE_OUT", 20.0)
            assert dp.get("j")["state"] == "queued"
        dp.close()
        for user, database in (("nobody-there", name), ("postgres", "no-such")):
            with pytest.raises(PlaneUnavailable) as caught:
                PostgresDispatch(f"postgresql://{user}:{quoted}@{server.host}:{server.port}/{database}")
            said.append("".join(traceback.format_exception(caught.value)))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    told = "".join(said) + stream.getvalue()
    assert "psycopg.pool" not in told or stream.getvalue()
    assert SECRET not in told
    assert "s3cr3t" not in told


def test_a_program_without_logging_hears_nothing_from_below(server):
    """What psycopg's pool warns of is in the plane's errors; it is not written to a notebook as well."""
    code = """
        import sys
        from lakeshore.planes import postgres_database
        from lakeshore.planes.postgres import PostgresDispatch
        dp = PostgresDispatch(sys.argv[1])
        dp.submit("q", b"", id="j")
        import psycopg
        with psycopg.connect(sys.argv[1], autocommit=True) as raw:
            raw.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()")
        print(dp.get("j")["state"])
        dp.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), server.fresh()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("queued\n", "")


def test_a_server_that_is_stopped_does_not_hang_a_call_for_ever(server, monkeypatch):
    """It still takes what is sent, so no line is dead; the session that held the locks is ended after."""
    from lakeshore.planes import postgres_connection

    monkeypatch.setattr(postgres_connection, "SILENCE", 1.0)
    with PostgresDispatch(server.fresh()) as dp:
        dp.submit("q", b"", id="j")
        held = dp.claim("q", "w")
        stopped = server.pids(dp._address.database)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            dp.ack("j", "w", fence=held.fence, result=b"r")
            assert time.monotonic() - began < 20
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert dp.result("j", timeout=5) == b"r"


def test_a_standby_is_refused_and_a_failover_ridden_out():
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(postgres_server.own(host="127.0.0.1"))
        second = stack.enter_context(postgres_server.own(host="127.0.0.1", follows=first))
        one, two = (each.tcp() for each in (first, second))
        with pytest.raises(PlaneUnavailable, match="standby"):
            PostgresDispatch(two)
        both = f"postgresql://postgres@{second.host}:{second.port},{first.host}:{first.port}/postgres"
        assert one
        with PostgresDispatch(both) as dp:
            ids = [dp.submit("q", b"", id=f"j{n}") for n in range(50)]
            held = dp.claim("q", "w")
            with psycopg.connect(first.dsn(), autocommit=True) as raw:
                end = time.monotonic() + 20
                while (
                    time.monotonic() < end
                    and not raw.execute(
                        "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication"
                    ).fetchone()[0]
                ):
                    time.sleep(0.05)
            first.stop("immediate")
            answered = []
            caller = threading.Thread(
                target=lambda: answered.append(dp.ack(held.id, "w", fence=held.fence, result=b"r"))
            )
            caller.start()
            time.sleep(1)  # the call meets nobody who takes writes
            second.promote()
            caller.join(40)
            assert answered == [None]
            assert dp.result(held.id, timeout=5) == b"r"
            assert sum(dp.queues()["q"].values()) == len(ids)
            assert dp.submit("q", b"", id="after") == "after"
