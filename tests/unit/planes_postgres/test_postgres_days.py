"""Frames lie by days: where a journal's go, and what pruning drops whole, deletes by rows, or leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psycopg
import pytest

from lakeshore.planes.postgres import PostgresDispatch

DAY = 1 << 40
_TEST_SECONDS = 30.0


def day_that_stays() -> int:
    """Return today's number; where midnight (UTC) would fall into a test, tomorrow's, once it has come."""
    left = 86400 - time.time() % 86400
    if left < _TEST_SECONDS:
        time.sleep(left + 0.01)
    return int(time.time() // 86400)


class Days:
    """A plane, whose clock cannot be turned, with partitions as if it had been there before."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.today = dsn, day_that_stays()
        self.plane = PostgresDispatch(dsn)
        self.raw = psycopg.connect(dsn, autocommit=True)
        for (name,) in self.all("SELECT name FROM lakeshore.frame_day WHERE first > 0"):
            self.do(f"DROP TABLE lakeshore.{name}")
        self.do("DELETE FROM lakeshore.frame_day WHERE first > 0")
        self.do("ALTER TABLE lakeshore.frame DETACH PARTITION lakeshore.frame_0")
        bound = f"FOR VALUES FROM (0) TO ({DAY * 1000})"
        self.do(f"ALTER TABLE lakeshore.frame ATTACH PARTITION lakeshore.frame_0 {bound}")

    def do(self, sql: str) -> None:
        self.raw.execute(sql.encode())

    def all(self, sql: str) -> list[tuple[object, ...]]:
        return self.raw.execute(sql.encode()).fetchall()

    def begin(self, ago: int) -> None:
        """Make the partition of the day so long ago; journals go there until a later one is begun."""
        first = (self.today - ago) * DAY
        bound = f"FOR VALUES FROM ({first}) TO ({first + DAY})"
        self.do(f"CREATE TABLE lakeshore.ago_{ago} PARTITION OF lakeshore.frame {bound}")
        self.do(f"INSERT INTO lakeshore.frame_day (first, name) VALUES ({first}, 'ago_{ago}')")
        self.do("SELECT pg_advisory_lock(7809632846571366)")  # another session is about making days

    def go_on(self) -> None:
        """Let the days of today and after be made."""
        self.do("SELECT pg_advisory_unlock_all()")

    def run(self, id: str, *, ns: str = "default", frames: int = 3) -> None:
        """Run a job that ended long ago."""
        with PostgresDispatch(self.dsn, ns=ns) as plane:
            plane.submit("gpu", b"e", id=id)
            job = plane.claim("gpu", "w")
            assert job is not None
            plane.journal_extend(id, [b"frame"] * frames)
            plane.journal_append(f"{id}.log", None, b"said")
            plane.ack(id, "w", result=b"r")
        self.do(f"UPDATE lakeshore.invocation SET finished_at = finished_at - 40 * 86400 WHERE id = '{id}'")

    def lies(self) -> dict[object, object]:
        """Return how many frames each partition has."""
        return dict(self.all("SELECT tableoid::regclass::text, count(*) FROM lakeshore.frame GROUP BY 1"))  # type: ignore[arg-type]

    def names(self) -> list[object]:
        return [
            name
            for (name,) in self.all("SELECT name FROM lakeshore.frame_day WHERE first > 0 ORDER BY first")
        ]

    def close(self) -> None:
        self.raw.close()
        self.plane.close()


@pytest.fixture
def days(fresh: str) -> Iterator[Days]:
    made = Days(fresh)
    yield made
    made.close()


def test_a_new_plane_has_the_days_ahead(fresh: str) -> None:
    today = day_that_stays()
    with PostgresDispatch(fresh) as plane, psycopg.connect(fresh) as raw:
        made = raw.execute("SELECT first FROM lakeshore.frame_day ORDER BY 1").fetchall()
        assert [first // DAY for (first,) in made] == [0, *range(today, today + 8)]
        plane.submit("gpu", b"e", id="a")
        for journal in ("a", "a.log", "a.progress", "news"):
            plane.journal_append(journal, None, b"x")
        numbers = dict(raw.execute("SELECT id, jid FROM lakeshore.journal").fetchall())
        assert [numbers.pop("news") < 0, {jid // DAY for jid in numbers.values()}] == [True, {today}]


def test_the_first_journal_of_a_day_makes_the_partitions(days: Days) -> None:
    days.run("a")
    assert len(days.names()) == 8
    assert list(days.lies().values()) == [4]
    days.run("b")
    assert len(days.names()) == 8


def test_while_another_session_makes_them_a_journal_takes_the_day_before(days: Days) -> None:
    days.begin(ago=3)
    days.run("a")
    assert days.lies() == {"lakeshore.ago_3": 4}
    days.go_on()
    days.run("b")
    assert days.lies()["lakeshore.ago_3"] == 4


@pytest.fixture
def as_app(days: Days) -> Iterator[str]:
    """The address of a role that may only read and write rows."""
    role = f"app_{os.getpid()}"
    days.do(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA lakeshore TO {role}")
    days.do(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lakeshore TO {role}")
    days.do(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA lakeshore TO {role}")
    yield days.dsn.replace("postgres@", f"{role}@")
    days.do(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_that_makes_no_tables_has_days_made_and_dropped(days: Days, as_app: str) -> None:
    days.begin(ago=20)
    days.run("a")
    days.go_on()
    with PostgresDispatch(as_app) as plane:
        plane.submit("gpu", b"e", id="b")
        plane.journal_append("b", None, b"x")
        assert len(days.names()) == 9
        assert plane.prune(older_than=30 * 86400) == 1
    assert len(days.names()) == 8


def test_a_journal_is_taken_where_no_partition_can_be_made(days: Days, as_app: str) -> None:
    days.do("ALTER FUNCTION lakeshore.begin_days SECURITY INVOKER")
    with PostgresDispatch(as_app) as plane:
        plane.submit("gpu", b"e", id="a")
        plane.journal_append("a", None, b"x")
    assert days.lies() == {"lakeshore.frame_0": 1}


def test_a_day_whose_jobs_are_pruned_is_dropped_whole(days: Days) -> None:
    days.begin(ago=20)
    days.run("a")
    days.begin(ago=19)
    days.run("b")
    days.go_on()
    days.run("c")
    assert days.plane.prune(older_than=30 * 86400) == 3
    assert days.names()[0] == f"frame_{time.strftime('%Y%m%d', time.gmtime(days.today * 86400))}"
    assert days.all("SELECT to_regclass('lakeshore.ago_20'), to_regclass('lakeshore.ago_19')") == [
        (None, None)
    ]
    assert list(days.lies().values()) == [4], "of today's day others may still come"
    assert days.plane.prune(older_than=30 * 86400) == 0


def test_what_stays_keeps_its_day_until_the_rest_goes_by_rows(days: Days) -> None:
    """Another namespace keeps its job of that day for ever."""
    days.begin(ago=20)
    days.run("kept", ns="other")
    days.run("a")
    days.begin(ago=19)
    days.run("b")
    days.go_on()
    assert days.plane.prune(older_than=30 * 86400) == 2
    assert days.lies() == {"lakeshore.ago_20": 8}, "they wait for their day"
    assert days.names()[0] == "ago_20"
    days.plane.prune(older_than=86400)
    assert days.lies() == {"lakeshore.ago_20": 4}, "that day should have been empty long ago"
    with PostgresDispatch(days.dsn, ns="other") as other:
        assert [body for _, body in other.journal_read("kept", timeout=0)] == [b"frame"] * 3
        other.prune(older_than=0)
    assert days.lies() == {}
    assert "ago_20" not in days.names()


def test_a_partition_of_many_days_goes_by_rows(days: Days) -> None:
    days.begin(ago=20)
    days.run("a")
    days.run("b")
    days.do("UPDATE lakeshore.invocation SET finished_at = finished_at + 39 * 86400 WHERE id = 'b'")
    days.begin(ago=10)
    assert days.plane.prune(older_than=30 * 86400) == 1
    assert days.lies() == {"lakeshore.ago_20": 4}


def test_topics_and_what_was_before_the_partitions_go_by_rows(days: Days) -> None:
    days.do("SELECT pg_advisory_lock(7809632846571366)")
    days.run("old")
    days.plane.journal_append("news", None, b"x")
    days.do("UPDATE lakeshore.journal SET posted_at = posted_at - 40 * 86400 WHERE id = 'news'")
    assert days.lies() == {"lakeshore.frame_0": 4, "lakeshore.frame_topics": 1}
    assert days.plane.prune(older_than=30 * 86400) == 1
    assert days.lies() == {}


def test_a_journal_that_is_not_pruned_is_read_and_written_in_its_old_day(days: Days) -> None:
    days.begin(ago=20)
    days.plane.submit("gpu", b"e", id="long")
    days.plane.journal_append("long", None, b"0")
    days.begin(ago=19)
    days.go_on()
    days.plane.prune(older_than=0)
    assert days.plane.journal_append("long", None, b"1") == 1
    assert days.plane.journal_trim("long", keep_last=1) == 1
    days.plane.cancel("long")
    assert list(days.plane.journal_read("long", since=0, timeout=0)) == [(1, b"1")]
    assert days.names()[0] == "ago_20"


def test_a_day_that_somebody_reads_is_dropped_another_time_and_nobody_waits(days: Days) -> None:
    days.begin(ago=20)
    days.run("a")
    days.begin(ago=19)
    days.go_on()
    with psycopg.connect(days.dsn) as reader:
        reader.execute("SELECT count(*) FROM lakeshore.frame")
        began = time.monotonic()
        assert days.plane.prune(older_than=30 * 86400) == 1
        assert time.monotonic() - began < 5
        days.plane.journal_append("news", None, b"x")
        assert "ago_20" in days.names()
    days.plane.prune(older_than=30 * 86400)
    assert "ago_20" not in days.names()


def test_to_drop_a_day_writes_a_tenth_of_what_its_rows_would(
    days: Days, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the log that is written, which no other load of the machine changes."""
    written = {}
    for ago, way in ((20, "rows"), (18, "day")):
        days.begin(ago)
        for i in range(20):
            days.run(f"{way}-{i}", frames=500)
        days.begin(ago - 1)
        days.do(f"UPDATE lakeshore.frame_day SET by_rows = {way == 'rows'} WHERE name = 'ago_{ago}'")
        days.do("CHECKPOINT")
        ((before,),) = days.all("SELECT pg_current_wal_insert_lsn()")
        began = time.monotonic()
        assert days.plane.prune(older_than=30 * 86400) == 20
        seconds = time.monotonic() - began
        ((wrote,),) = days.all(f"SELECT (pg_current_wal_insert_lsn() - '{before}')::bigint")
        assert days.lies() == {}
        written[way] = int(str(wrote))
        with capsys.disabled():
            print(f"\n10,020 frames pruned by {way}: {seconds:.3f} s, {written[way]:,} bytes of log")
    assert written["day"] * 10 < written["rows"]
