"""The plane behind pgbouncer: sessions are handed around between transactions, and nothing else changes.

`pgbouncer` is Debian's package of that name; without it these are skipped.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import uuid

import postgres_server
import pytest

from lakeshore import Submission
from lakeshore.conformance import check, rules

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - after the skip

LONG = os.environ.get("LONG_TESTS") == "1"
RULES = list(rules())[:: 1 if LONG else 5]
"""``LONG_TESTS=1`` runs the whole suite through it."""

INI = """
[databases]
* = host={server.folder} port={server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 400
ignore_startup_parameters = {ignored}
server_reset_query_always = 0
"""


class Bouncer:
    """pgbouncer before a server, on a free port of loopback."""

    def __init__(self, server, mode, ignored):
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not os.access(program, os.X_OK):
            pytest.skip("needs pgbouncer: Debian's package of that name")
        self.port = postgres_server.free_port("127.0.0.1")
        folder = server.folder / uuid.uuid4().hex
        folder.mkdir(mode=0o755)
        (folder / "pgbouncer.ini").write_text(
            INI.format(
                server=server, port=self.port, mode=mode, ignored=ignored, size=40 if mode == "session" else 6
            )
        )
        self._command = [program, "-q", folder / "pgbouncer.ini"]
        self.start()

    def start(self):
        user = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.process = subprocess.Popen(self._command, cwd="/", stderr=subprocess.DEVNULL, **user)
        end = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(self.dsn("postgres")).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < end and self.process.poll() is None
                time.sleep(0.05)  # between two tries

    def dsn(self, database):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def close(self):
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def server():
    with postgres_server.own("fsync=off") as made:
        yield made


@pytest.fixture(scope="module", params=["transaction", "transaction, options ignored", "session"])
def bouncer(request, server):
    mode, _, rest = request.param.partition(",")
    made = Bouncer(server, mode, "extra_float_digits,options" if rest else "extra_float_digits")
    yield made
    made.close()


@pytest.fixture
def database(server):
    return server.fresh().split("/")[3].split("?")[0]


@pytest.fixture(scope="module")
def suite(server):
    return server.fresh().split("/")[3].split("?")[0]


@pytest.mark.parametrize("rule", RULES)
def test_rule(bouncer, suite, rule):
    (outcome,) = check(lambda: PostgresDispatch(bouncer.dsn(suite)), only=[rule])
    assert outcome.ok, outcome.detail


def test_nothing_is_prepared_in_a_session_that_is_handed_on(bouncer, database, server):
    with PostgresDispatch(bouncer.dsn(database)) as dp:
        assert dp._database.pooled and dp._database.plain
        for n in range(30):
            dp.submit("q", b"", id=f"j{n}")
            dp.ack(dp.claim("q", "w").id, "w")
        with psycopg.connect(bouncer.dsn(database), autocommit=True, prepare_threshold=None) as raw:
            assert raw.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
            assert raw.execute("SHOW enable_seqscan").fetchone() == ("on",), (
                "others' sessions are as they were"
            )


def test_a_wait_ends_by_what_another_process_does(bouncer, database):
    with PostgresDispatch(bouncer.dsn(database)) as dp:
        got = []
        waiter = threading.Thread(target=lambda: got.append(dp.claim("q", "w", wait=20)))
        waiter.start()
        time.sleep(0.5)  # the wait is one of looks
        assert not dp._bells.hears
        began = time.monotonic()
        code = """
            import sys
            from lakeshore.planes.postgres import PostgresDispatch
            with PostgresDispatch(sys.argv[1]) as dp:
                dp.submit("q", b"", id="j")
                print(dp.result("j", timeout=20))
        """
        other = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), bouncer.dsn(database)],
            stdout=subprocess.PIPE,
            text=True,
        )
        waiter.join(20)
        assert got[0].id == "j"
        assert time.monotonic() - began < 5
        dp.ack("j", "w", fence=1, result=b"r")
        assert other.communicate(timeout=20)[0] == "b'r'\n"


def test_many_threads_of_two_processes_mix_no_statements(bouncer, database):
    """A session knows another client's prepared statement by the name of one's own: it would run that one."""
    code = """
        import sys, threading
        from lakeshore.planes.postgres import PostgresDispatch
        me, shift = sys.argv[2], int(sys.argv[3])
        with PostgresDispatch(sys.argv[1], ns=me) as dp:
            jobs = int(sys.argv[4])
            for n in range(shift):  # so that the two number their statements differently
                dp.get("none"), dp.count("q")
            def work(name):
                for n in range(jobs):
                    id = f"{name}-{n}"
                    dp.submit(name, b"", id=id)
                    assert dp.cancel(id) and dp.get(id)["state"] == "cancelled"
                    assert dp.requeue(id) and dp.get(id)["state"] == "queued"
                    held = dp.claim(name, name)
                    dp.nack(held.id, name, error="x", fence=held.fence, retry=False)
            threads = [threading.Thread(target=work, args=(f"w{k}",)) for k in range(8)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            print(sum(counts["failed"] for counts in dp.queues().values()), dp.count("q"))
    """
    jobs = 40 if LONG else 15
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(code),
                bouncer.dsn(database),
                f"n{k}",
                str(5 * k),
                str(jobs),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (out, err) == (f"{8 * jobs} 0\n", "")


@pytest.mark.parametrize("of", ["ROLE postgres IN DATABASE", "DATABASE"])
def test_settings_of_a_role_reach_no_transaction(server, database, of):
    made = Bouncer(server, "transaction", "extra_float_digits")
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as raw:
            for setting in (
                "default_transaction_isolation = serializable",
                "default_transaction_read_only = on",
                "synchronous_commit = off",
                "standard_conforming_strings = off",
                "statement_timeout = '300ms'",
                "extra_float_digits = -15",
                "search_path = mine",
            ):
                raw.execute(f"ALTER {of} {database} SET {setting}")
        with PostgresDispatch(made.dsn(database)) as dp:
            assert dp._database.pooled
            dp.submit("q", b"\0\\'\xff", id="a")
            dp.submit_many("q", [Submission(envelope=b"\0\\'\xff", id=f"m{n}") for n in range(3)])
            assert dp.envelope("m1") == b"\0\\'\xff"
            assert abs(dp.get("a")["submitted_at"] - time.time()) < 60
            with dp._database.connection(writing=True) as tx:
                tx.begin()
                assert tx.raw.execute("SHOW synchronous_commit").fetchone() == ("on",)
                tx.roll_back()
    finally:
        made.close()


def test_a_pooler_that_restarts_is_ridden_out(server, database):
    made = Bouncer(server, "transaction", "extra_float_digits")
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: made.close())
        dp = stack.enter_context(PostgresDispatch(made.dsn(database)))
        dp.submit("q", b"", id="before")
        made.close()
        made.start()
        assert dp.submit("q", b"", id="after") == "after"
