"""Lists of a queue that is rare among the newest rows, on PostgreSQL: the same rows, however found."""

from __future__ import annotations

import uuid

import postgres_server
import psycopg
import pytest

from lakeshore import State
from lakeshore.planes.postgres import PostgresDispatch

ENDED = ("succeeded", "failed", "cancelled")


@pytest.fixture(scope="module")
def ns(shared_dsn):
    """A namespace of a small queue, one of more rows than are sorted, and 2100 newer rows of another."""
    ns = uuid.uuid4().hex
    with psycopg.connect(shared_dsn, autocommit=True) as raw:
        for queue, rows in (("small", 60), ("large", 11_000), ("newest", 2100)):
            raw.execute(
                "INSERT INTO lakeshore.invocation "
                "(ns, id, queue, state, priority, submitted_at, not_before, lease_until, finished_at) "
                "SELECT %(ns)s, %(queue)s || n, %(queue)s, s, n %% 7, 0, "
                "CASE WHEN s = 'queued' AND n %% 2 = 0 THEN 4e9 END, CASE WHEN s = 'running' THEN 4e9 END, "
                "CASE WHEN s NOT IN ('queued', 'running') THEN 1e9 + n %% 11 END "
                "FROM generate_series(1, %(rows)s) n, "
                "LATERAL (SELECT (%(states)s::text[])[1 + n %% 5]) AS each (s)",
                {"ns": ns, "queue": queue, "rows": rows, "states": ["queued", "running", *ENDED]},
            )
    yield ns
    with psycopg.connect(shared_dsn, autocommit=True) as raw:
        raw.execute("DELETE FROM lakeshore.invocation WHERE ns = %s", [ns])


@pytest.fixture(scope="module")
def shared_dsn():
    with PostgresDispatch(dsn := postgres_server.shared_dsn()):
        return dsn


@pytest.mark.parametrize("state", [None, *State])
@pytest.mark.parametrize(("queue", "rows"), [("small", 60), ("large", 11_000), ("none", 0)])
def test_a_rare_queue_is_listed_as_any(shared_dsn, ns, queue, rows, state):
    names = ["queued", "running", *ENDED]
    wanted = [f"{queue}{n}" for n in range(rows, 0, -1) if state is None or names[n % 5] == state]
    with PostgresDispatch(shared_dsn, ns=ns) as plane:
        assert [row["id"] for row in plane.invocations(queue, state=state, limit=20_000)] == wanted
        assert [row["id"] for row in plane.invocations(queue, state=state, limit=7)] == wanted[:7]
        if wanted:
            middle = wanted[len(wanted) // 2]
            rest = wanted[wanted.index(middle) + 1 :]
            found = plane.invocations(queue, state=state, limit=9, before=middle)
            assert [row["id"] for row in found] == rest[:9]
