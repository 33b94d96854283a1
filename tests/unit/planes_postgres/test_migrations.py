"""A database of the release before is brought up to date while its servers run; nothing of theirs is lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import psycopg
import pytest

from lakeshore import PlaneUnavailable
from lakeshore.planes import migrations, postgres_migrate
from lakeshore.planes.postgres import PostgresDispatch

NEWEST = migrations.newest("postgres")
FIRST = (Path(__file__).parent / "schema_1.sql").read_text("utf-8")
RELEASE = "f9cf906"
CATALOG = """
    SELECT c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage,
        pg_get_expr(d.adbin, d.adrelid), coalesce(pg_get_indexdef(c.oid), pg_get_expr(c.relpartbound, c.oid)),
        c.reloptions::text, (SELECT string_agg(conname || pg_get_constraintdef(oid), ' ' ORDER BY conname)
            FROM pg_constraint WHERE conrelid = c.oid)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'lakeshore'::regnamespace AND c.relkind IN ('r', 'i', 'p', 'I', 'S')
    ORDER BY c.relname, a.attnum
"""
LOAD = """
import sys, threading
import lakeshore
from lakeshore.planes import migrations
from lakeshore.planes.postgres import PostgresDispatch
assert migrations.newest("postgres") == 1, lakeshore.__file__
dsn, name = sys.argv[1:]
plane = PostgresDispatch(dsn)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
i = 0
while not stop.is_set():
    id = f"{name}-{i}"
    plane.submit(name, b"e", id=id)
    job = plane.claim(name, name)
    assert job.id == id
    for n in range(3):
        plane.journal_append(id, None, b"%d" % n, worker_id=name, fence=job.fence)
    plane.ack(id, name, result=b"r", fence=job.fence, frame=b"end")
    assert [body for _, body in plane.journal_read(id, timeout=5)] == [b"0", b"1", b"2", b"end"]
    plane.journal_append(name, None, id.encode())
    print(id, flush=True)
    i += 1
plane.close()
"""


def run(dsn: str, sql: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as raw:
        raw.execute(sql.encode())


def rows(dsn: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as raw:
        return raw.execute(sql.encode()).fetchall()


@pytest.fixture
def first(fresh: str) -> str:
    """A database as the first release made it."""
    run(fresh, FIRST)
    return fresh


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The release before, as code that can be run."""
    packed = subprocess.run(
        ["git", "archive", RELEASE, "lakeshore"],
        cwd=Path(__file__).parent.parent.parent.parent,
        capture_output=True,
    )
    if packed.returncode:
        pytest.skip("needs the history of the repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(tmp_path / "before", filter="data")
    return tmp_path / "before"


def old_server(code: Path, dsn: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, dsn, name],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_servers_of_the_release_before_run_on_while_it_is_migrated_and_after(
    first: str, before: Path
) -> None:
    """One runs through it, one starts after it; this release reads and ends what they began."""
    done: list[str] = []
    running = old_server(before, first, "through")
    assert running.stdout is not None
    started = None
    try:
        done += [running.stdout.readline().strip() for _ in range(30)]
        taken = postgres_migrate.migrate(first, say=lambda line: None)
        assert [step.version for step in taken] == list(range(2, NEWEST + 1))
        done += [running.stdout.readline().strip() for _ in range(30)]
        started = old_server(before, first, "after")
        assert started.stdout is not None
        done += [started.stdout.readline().strip() for _ in range(30)]
        with PostgresDispatch(first) as plane:
            plane.submit("new", b"e", id="n")
            job = plane.claim("new", "w")
            assert job is not None
            plane.journal_append("n", None, b"mine")
            plane.ack("n", "w", result=b"r", frame=b"end")
        for process in (running, started):
            out, err = process.communicate("", timeout=30)
            assert process.returncode == 0, err
            done += out.split()
    finally:
        for process in (running, started):
            if process is not None:
                process.kill()
                process.communicate()
    assert all(done)
    with PostgresDispatch(first) as plane:
        for id in done:
            assert plane.result(id, timeout=0) == b"r"
            assert [body for _, body in plane.journal_read(id, timeout=0)] == [b"0", b"1", b"2", b"end"]
        for name in ("through", "after"):
            ids = [id for id in done if id.startswith(name)]
            assert plane.count(name, "succeeded") == len(ids)
            told = plane.journal_read(name, timeout=0.1)
            assert [next(told)[1].decode() for _ in ids] == ids
        assert plane.prune(older_than=0) == len(done) + 1


def test_a_database_that_is_migrated_is_one_that_is_made(first: str, postgres: str) -> None:
    postgres_migrate.migrate(first, say=lambda line: None)
    PostgresDispatch(postgres).close()
    assert rows(first, CATALOG) == rows(postgres, CATALOG)
    assert rows(first, "SELECT version, name FROM lakeshore.migration ORDER BY 1") == rows(
        postgres, "SELECT version, name FROM lakeshore.migration ORDER BY 1"
    )


@pytest.fixture
def postgres() -> str:
    """Another database of the test's own."""
    import postgres_server

    return postgres_server.shared().fresh()


def test_the_printed_steps_do_the_same(first: str, postgres: str) -> None:
    run(first, postgres_migrate.sql(first))
    run(postgres, postgres_migrate.sql(postgres))
    assert rows(first, CATALOG) == rows(postgres, CATALOG)
    for dsn in (first, postgres):
        standing = postgres_migrate.standing(dsn)
        assert (standing.found, standing.oldest, standing.pending) == (NEWEST, 1, ())
        assert postgres_migrate.sql(dsn) == ""
        PostgresDispatch(dsn).close()


def test_a_part_of_the_steps_is_taken_and_gone_on_from(first: str) -> None:
    assert postgres_migrate.sql(first, to=1) == ""
    run(first, postgres_migrate.sql(first, to=3))
    assert [step.version for step in postgres_migrate.standing(first).pending] == list(range(4, NEWEST + 1))
    assert len(postgres_migrate.migrate(first, say=lambda line: None)) == NEWEST - 3


def test_an_older_database_is_left_alone_by_a_plane(first: str) -> None:
    before = rows(first, CATALOG)
    with pytest.raises(
        PlaneUnavailable, match=rf"schema 1, this lakeshore needs {NEWEST}. Run: lakeshore db mi"
    ):
        PostgresDispatch(first)
    assert rows(first, CATALOG) == before


def test_a_newer_database_is_used_as_long_as_it_says_so(fresh: str) -> None:
    PostgresDispatch(fresh).close()
    run(fresh, "INSERT INTO lakeshore.migration (version, name) VALUES (99, 'to_come')")
    with PostgresDispatch(fresh) as plane:
        plane.submit("gpu", b"e", id="a")
    run(fresh, "INSERT INTO lakeshore.schema_version VALUES (98)")
    with pytest.raises(
        PlaneUnavailable, match=rf"newer lakeshore .schema 99.*98; this one knows {NEWEST}.*Upgrade"
    ):
        PostgresDispatch(fresh)


def test_two_at_once_take_each_step_once(first: str) -> None:
    taken: list[int] = []
    begin = threading.Barrier(2)

    def migrate() -> None:
        begin.wait()
        taken.extend(step.version for step in postgres_migrate.migrate(first, say=lambda line: None))

    both = [threading.Thread(target=migrate) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(30)
    assert sorted(taken) == list(range(2, NEWEST + 1))
    assert postgres_migrate.migrate(first, say=lambda line: None) == []


def test_a_step_waits_for_no_table_long_and_is_tried_again(first: str) -> None:
    heard: list[str] = []
    with psycopg.connect(first) as reader:
        reader.execute("SELECT count(*) FROM lakeshore.frame")
        began = time.monotonic()
        with pytest.raises(PlaneUnavailable, match="step 3 found its tables in use"):
            postgres_migrate.migrate(first, say=heard.append, patience=0)
        assert time.monotonic() - began < 5
        assert postgres_migrate.standing(first).found == 2
        let_go = threading.Event()

        def say(line: str) -> None:
            heard.append(line)
            if "in use" in line:
                reader.rollback()
                let_go.set()

        postgres_migrate.migrate(first, say=say)
    assert let_go.is_set()
    assert postgres_migrate.standing(first).pending == ()


@pytest.mark.parametrize("made", [True, False])
def test_a_role_that_may_only_read_and_write_rows_works(first: str, postgres: str, made: bool) -> None:
    """On tables that another role made, and on those that it migrated; it never alters them itself."""
    dsn = postgres if made else first
    role = f"app_{os.getpid()}_{made}".lower()
    grants = f"""
        CREATE ROLE {role} LOGIN;
        GRANT USAGE ON SCHEMA lakeshore TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lakeshore TO {role};
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA lakeshore TO {role};
    """
    if made:
        postgres_migrate.migrate(dsn, say=lambda line: None)
        run(dsn, grants)
    else:
        run(dsn, grants.replace(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA lakeshore TO {role};", ""))
        with pytest.raises(PlaneUnavailable, match="lakeshore db migrate"):
            PostgresDispatch(dsn.replace("postgres@", f"{role}@"))
        with pytest.raises(PlaneUnavailable, match=r"must own the schema .*or be granted what"):
            postgres_migrate.migrate(dsn.replace("postgres@", f"{role}@"), say=lambda line: None)
        postgres_migrate.migrate(dsn, say=lambda line: None)
    with PostgresDispatch(dsn.replace("postgres@", f"{role}@")) as plane:
        plane.submit("gpu", b"e", id="a")
        assert plane.claim("gpu", "w") is not None
        plane.journal_append("a", None, b"x")
        plane.journal_append("news", None, b"y")
        plane.ack("a", "w", result=b"r")
        assert [body for _, body in plane.journal_read("a", timeout=0)] == [b"x"]
        assert plane.journal_trim("news") == 1
        assert plane.prune(older_than=0) == 1
    run(dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_what_a_superuser_migrates_belongs_to_whom_it_belonged(first: str) -> None:
    role = f"owner_{os.getpid()}"
    of_ours = "FROM pg_class WHERE relnamespace = 'lakeshore'::regnamespace"
    tables = [name for (name,) in rows(first, f"SELECT relname {of_ours} AND relkind = 'r'")]
    own = [f"ALTER TABLE lakeshore.{table} OWNER TO {role};" for table in tables]
    run(first, f"CREATE ROLE {role} LOGIN; ALTER SCHEMA lakeshore OWNER TO {role}; {''.join(own)}")
    postgres_migrate.migrate(first, say=lambda line: None)
    owners = f"SELECT DISTINCT pg_get_userbyid(relowner) {of_ours}"
    assert rows(first, owners) == [(role,)]
    with PostgresDispatch(first.replace("postgres@", f"{role}@")) as plane:
        plane.submit("gpu", b"e", id="a")
        plane.claim("gpu", "w")
        plane.journal_append("a", None, b"x")
    run(first, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
