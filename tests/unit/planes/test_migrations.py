"""Migrations: an older file becomes the new version whole, or stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from lakeshore import Dispatch, PlaneUnavailable
from lakeshore.planes import migrations, sqlite_schema, statements
from lakeshore.planes.migrations import Migration

COLUMNS = """
    ns TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    queue TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    seen_at REAL NOT NULL,
    note TEXT,
    PRIMARY KEY (ns, worker_id, queue)
"""
STEP = f"""
CREATE TABLE new ({COLUMNS}) STRICT, WITHOUT ROWID;
INSERT INTO new SELECT *, NULL FROM worker;
DROP TABLE worker;
ALTER TABLE new RENAME TO worker;
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of version 1 with a job that ran, one that runs and one that waits."""
    path = tmp_path / "p.sqlite"
    with Dispatch(path) as plane:
        for i in range(3):
            plane.submit("gpu", b"e" * (3000 if i else 10), id=f"j{i}")
        for _ in range(2):
            plane.claim("gpu", "w", lease=1000.0)
        plane.journal_append("j0", None, b"f")
        plane.ack("j0", "w", result=b"r", frame=b"end")
    return path


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Migration]]:
    """Pretend that this lakeshore is of version 2, whose workers have notes; the steps may be changed."""
    schema = statements.load("sqlite.sql")
    head, _, tail = schema["schema"].partition("CREATE TABLE worker (")
    rest = tail.partition(") STRICT, WITHOUT ROWID;")[2]
    made = f"{head}CREATE TABLE worker ({COLUMNS}) STRICT, WITHOUT ROWID;{rest}"
    monkeypatch.setitem(schema, "schema", made)
    steps = [Migration(2, "workers_have_notes", STEP)]
    monkeypatch.setattr(migrations, "known", lambda engine: tuple(steps))
    sqlite_schema.tables_of_schema.cache_clear()
    yield steps
    sqlite_schema.tables_of_schema.cache_clear()


def content(path: Path) -> tuple[int, list[tuple[object, ...]]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = db.execute("SELECT * FROM invocation ORDER BY seq").fetchall()
        return db.pragma("user_version"), [*rows, *db.execute("SELECT * FROM frame")]
    finally:
        db.close()


def test_an_older_file_is_migrated_when_it_is_opened(old: Path, next_version: list[Migration]) -> None:
    before = content(old)
    assert sqlite_schema.version_of(old) == sqlite_schema.Version(1, 2, tuple(next_version))
    with Dispatch(old) as plane:
        assert plane.result("j0", timeout=0) == b"r"
        assert [job and job.id for job in (plane.claim("gpu", "w2"), plane.claim("gpu", "w2"))] == [
            "j2",
            None,
        ]
        plane.ack("j1", "w", fence=1)
        assert [worker["worker_id"] for worker in plane.workers()] == ["w2", "w"]
    assert before[0] == 1
    assert sqlite_schema.version_of(old) == sqlite_schema.Version(2, 2, ())
    with Dispatch(old) as plane:
        assert plane.count("gpu", "succeeded") == 2


@pytest.mark.parametrize(
    "bad", ["DROP TABLE nothing", "INSERT INTO worker VALUES (1)", "CREATE TABLE more (x)"]
)
def test_a_step_that_fails_changes_nothing(old: Path, next_version: list[Migration], bad: str) -> None:
    before = content(old)
    next_version[0] = Migration(2, "bad", f"{STEP}; {bad}")
    with pytest.raises(PlaneUnavailable, match="cannot be brought up to date") as caught:
        Dispatch(old)
    assert str(old) in str(caught.value)
    assert content(old) == before


def test_the_text_for_an_empty_file_makes_a_plane(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    db = apsw.Connection(str(path))
    db.execute(sqlite_schema.sql_from(0))
    db.close()
    with Dispatch(path) as plane:
        assert plane.submit("gpu", b"e", id="a") == "a"


def test_the_text_for_an_older_file_brings_it_up_to_date(old: Path, next_version: list[Migration]) -> None:
    db = apsw.Connection(str(old))
    db.execute(sqlite_schema.sql_from(1))
    db.close()
    assert sqlite_schema.version_of(old).pending == ()
    assert sqlite_schema.sql_from(2) == ""
    with Dispatch(old) as plane:
        assert plane.count("gpu") == 1


def test_the_released_steps_lead_from_one_version_to_the_next() -> None:
    assert [step.version for step in migrations.known("sqlite")] == list(
        range(2, migrations.newest("sqlite") + 1)
    )


@pytest.mark.parametrize("names", [["to_3_x"], ["to_2_x", "to_2_y"], ["second"]])
def test_a_list_with_a_gap_is_refused(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "load", lambda file: dict.fromkeys(names, "SELECT 1"))
    with pytest.raises(RuntimeError, match="migrations"):
        migrations.known.__wrapped__("sqlite")


def test_the_version_of_what_is_no_plane_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    for path in (empty, tmp_path / "none.sqlite"):
        with pytest.raises(PlaneUnavailable, match=path.name):
            sqlite_schema.version_of(path)
