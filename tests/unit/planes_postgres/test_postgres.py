"""What is PostgreSQL's own: addresses and secrets, hostile names, versions, forks, several at once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import traceback
import uuid

import psycopg
import pytest

from lakeshore import CaptureError, DispatchError, PlaneUnavailable, Submission
from lakeshore.planes import postgres_address, postgres_database
from lakeshore.planes.postgres import PostgresDispatch

SECRET = "s3cr3t-of-mine"
HOSTILE = (
    "'; DROP SCHEMA lakeshore CASCADE; --",
    '"; DELETE FROM lakeshore.invocation; --',
    "%s %(ns)s :ns $1 {} \\' E'\\\\'",
    "lakeshore.invocation",
    "naïve 用户 🌊",
    "\\'; SELECT pg_sleep(9); -- \\\\",
    "$$; ROLLBACK; $$ $1::text",
    "\u202eright to left\u202c\u2066",
    '{a,NULL,"b"}',
    "x" * 200,
    "é" * 100,
)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_statement_is_built_from_a_name_or_a_value(dsn, name):
    ns = f"{uuid.uuid4().hex}{name}"
    with PostgresDispatch(dsn, ns=ns) as dp:
        assert dp.submit(name, name.encode(), id="j", key=name) == "j"
        assert dp.submit(name, b"other", id="k", key=name) == "j"
        held = dp.claim(name, name)
        assert (held.id, held.queue, held.envelope) == ("j", name, name.encode())
        dp.journal_append(name, None, name.encode())
        dp.nack("j", name, error={"type": name, "message": name + "\0", "traceback": name}, retry=False)
        row = dp.get("j")
        assert (row["ns"], row["queue"], row["key"], row["worker_id"]) == (ns, name, name, name)
        assert row["error"] == f"{name}: {name}\\x00"
        assert dp.queues() == {name: {"failed": 1}}
        assert dp.journal_trim(name) == 1
        many = [Submission(envelope=name.encode(), id=f"m{n}", key=f"{n}{name}"[:200]) for n in range(3)]
        assert dp.submit_many(name, many) == ["m0", "m1", "m2"]
        assert [dp.claim(name, name, kind=kind).envelope for kind in ("filo", "boltzmann", "fifo")] == [
            name.encode()
        ] * 3
        for verb in (dp.get, dp.envelope, dp.cancel, dp.requeue):
            with pytest.raises(ValueError, match="id"):
                verb(name)
        with pytest.raises(ValueError, match="id"):
            dp.submit("q", b"", id=name)
    with PostgresDispatch(dsn, ns=ns + "2") as other:
        assert other.get("j") is None
        assert other.queues() == {}


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        f"postgresql://me@127.0.0.1:1/db?password={SECRET}",
        f"postgresql://me:{SECRET}%40%2F@127.0.0.1:1/db",
        f"postgresql://me:{SECRET}@@127.0.0.1:1/db",
        f"postgresql://me:{SECRET}/x@127.0.0.1:1/db",
        f"postgresql://me:{SECRET}?x@127.0.0.1:1/db",
        f"postgresql://me:x@{SECRET}@127.0.0.1:1/db",
        f"postgresql://me:x@127.0.0.1:{SECRET}/db",
        f"mysql://me:{SECRET}@127.0.0.1/db",
        f"host=127.0.0.1 password={SECRET}",
    ],
)
def test_the_password_is_in_no_error(dsn):
    with pytest.raises((PlaneUnavailable, ValueError)) as caught:
        PostgresDispatch(dsn)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    if isinstance(caught.value, PlaneUnavailable):
        assert "'db' at 127.0.0.1:1" in str(caught.value)
        assert "Check that the server runs" in str(caught.value)


def test_the_password_is_in_no_repr(dsn):
    with PostgresDispatch(f"{dsn}&password={SECRET}") as dp:
        assert SECRET not in repr(dp) + repr(dp._address) + repr(vars(dp))
        with pytest.raises(CaptureError, match="does not leave its process"):
            pickle.dumps(dp)


def test_a_closed_plane_says_so(dsn):
    dp = PostgresDispatch(dsn)
    assert dp.trusted is False
    dp.close()
    dp.close()
    with pytest.raises(DispatchError, match="it was closed"):
        dp.get("j")


def test_planes_of_one_process_share_what_they_have(dsn):
    with PostgresDispatch(dsn, ns="a") as one, PostgresDispatch(dsn, ns="b") as two:
        assert one._database is two._database
    assert not postgres_database._databases


def test_a_database_of_a_newer_lakeshore_is_refused(fresh):
    PostgresDispatch(fresh).close()
    with psycopg.connect(fresh) as raw:
        raw.execute("INSERT INTO lakeshore.schema_version VALUES (99)")
    with pytest.raises(PlaneUnavailable, match="newer lakeshore .schema 99"):
        PostgresDispatch(fresh)


def test_dropped_tables_are_told(fresh):
    with PostgresDispatch(fresh) as dp:
        with psycopg.connect(fresh) as raw:
            raw.execute("DROP SCHEMA lakeshore CASCADE")
        with pytest.raises(PlaneUnavailable, match="altered or dropped"):
            dp.submit("q", b"", id="j")


def test_a_role_that_may_not_is_told(fresh):
    with psycopg.connect(fresh) as raw:
        raw.execute("CREATE ROLE guest LOGIN")
    guest = fresh.replace("postgres@", "guest@")
    with pytest.raises(PlaneUnavailable, match="GRANT CREATE ON DATABASE"):
        PostgresDispatch(guest)
    with psycopg.connect(fresh) as raw:
        raw.execute("DROP ROLE guest")


def test_a_database_that_cannot_hold_every_name_is_refused(fresh):
    name = f"l_{uuid.uuid4().hex}"
    with psycopg.connect(fresh, autocommit=True) as raw:
        raw.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(PlaneUnavailable, match="createdb --encoding UTF8"):
        PostgresDispatch(str(fresh.replace(fresh.split("/")[3].split("?")[0], name)))


OPEN_AND_SUBMIT = """
import sys
from lakeshore.planes.postgres import PostgresDispatch
with PostgresDispatch(sys.argv[1]) as dp:
    print(dp.submit("q", b"", id=sys.argv[2]))
"""


def test_several_processes_open_an_empty_database_at_once(fresh):
    ids = [f"j{n}" for n in range(4)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AND_SUBMIT, fresh, id], stdout=subprocess.PIPE, text=True
        )
        for id in ids
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ids


def test_a_forked_child_opens_its_own_connections(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        dp.submit("q", b"", id="before")
        child = os.fork()
        if child == 0:
            try:
                for n in range(20):
                    dp.submit("q", b"", id=f"child{n}")
                os._exit(0)
            finally:
                os._exit(1)
        for n in range(20):
            dp.submit("q", b"", id=f"parent{n}")
        assert os.waitpid(child, 0)[1] == 0
        assert dp.count("q") == 41


def test_a_wait_in_one_process_ends_by_a_submit_in_another(dsn):
    ns = uuid.uuid4().hex
    with PostgresDispatch(dsn, ns=ns) as dp:
        got = []
        waiter = threading.Thread(target=lambda: got.append(dp.claim("q", "w", wait=20)))
        waiter.start()
        while not dp._bells.hears:
            threading.Event().wait(0.01)
        other = postgres_database.Database(postgres_address.read(dsn))  # as another process has
        far = PostgresDispatch(dsn, ns=ns)
        far._database, far._bells = other, other.bells
        far.submit("q", b"", id="j")
        waiter.join(15)
        assert got[0].id == "j"
        other.close()
        postgres_database.leave(dp._database)


def test_large_values_and_many_frames(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        large = os.urandom(3_000_000)
        dp.submit("q", large, id="j")
        held = dp.claim("q", "w")
        assert held.envelope == large
        dp.journal_extend("j", [b"%d" % n for n in range(4500)])
        dp.journal_extend("j", [large, large, large, b"end"])
        dp.ack("j", "w", result=large)
        assert dp.result("j") == large
        frames = list(dp.journal_read("j", timeout=5))
        assert [seq for seq, _ in frames] == list(range(4504))
        assert frames[-1][1] == b"end"
        assert [body for _, body in frames[4500:4503]] == [large] * 3


def test_submit_many_answers_as_submit_would(dsn):
    def item(id, key=None, envelope=b"e"):
        return Submission(envelope=envelope, id=id, key=key)

    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        dp.submit("q", b"e", id="old", key="k")
        got = dp.submit_many("q", [item("a"), item("b", "k"), item("a"), item("c", "k2"), item("d", "k2")])
        assert got == ["a", "old", "a", "c", "c"]
        large = os.urandom(5000)
        assert dp.submit_many("q", [item("l1", envelope=large), item("l2", envelope=large)]) == ["l1", "l2"]
        assert dp.envelope("l2") == large
        with pytest.raises(DispatchError, match="'a' is already taken"):
            dp.submit_many("q", [item("new"), item("a", envelope=b"other")])
        assert dp.get("new") is None
        assert [row["id"] for row in dp.invocations("q")] == ["l2", "l1", "c", "a", "old"]
