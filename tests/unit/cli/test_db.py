"""`lakeshore db`: what it says and does of a file and of a database, and of what is neither."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import apsw
import postgres_server
import pytest

from lakeshore import Dispatch
from lakeshore.cli.app import run
from lakeshore.planes import migrations, sqlite_schema
from lakeshore.planes.migrations import Migration
from lakeshore.planes.postgres import PostgresDispatch

STEP = Migration(2, "workers_are_found_by_host", "CREATE INDEX by_host ON worker (host)")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A plane's file with a job, and a worker that asked for it."""
    path = tmp_path / "jobs.sqlite"
    with Dispatch(path) as plane:
        plane.submit("gpu", b"e", id="a")
        plane.claim("gpu", "w1")
    return path


@pytest.fixture
def next_version(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend, once the file is made, that this lakeshore knows one step more for it."""
    made = sqlite_schema.tables_of_schema() | {("index", "by_host", STEP.sql)}
    monkeypatch.setattr(sqlite_schema, "tables_of_schema", lambda: made)
    monkeypatch.setattr(migrations, "known", lambda engine: (STEP,))


def say(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["db", *words]) == 0
    return capfd.readouterr().out


def told(capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(say(capfd, *words, "--json"))


def test_a_file_is_brought_up_to_date_and_a_copy_of_what_it_was_stays(
    file: Path, next_version: None, capfd: pytest.CaptureFixture[str]
) -> None:
    before = say(capfd, "status", "--plane", str(file))
    assert "schema 1; this lakeshore knows 2" in before
    assert "pending  2: workers are found by host" in before
    assert "w1 on gpu" in before
    assert STEP.sql in say(capfd, "sql", "--store", str(file))
    assert say(capfd, "sql", "--store", str(file), "--to", "1") == ""
    assert told(capfd, "migrate", "--plane", str(file)) == [{"version": 2, "name": STEP.name}]
    assert told(capfd, "migrate", "--plane", str(file)) == []
    after = told(capfd, "status", "--plane", str(file))
    assert (after["found"], after["pending"], after["sessions"]) == (2, [], None)
    assert [worker["worker_id"] for worker in after["workers"]] == ["w1"]
    (copy,) = file.parent.glob("jobs.sqlite-before-2-*")
    assert copy.stat().st_mode & 0o777 == 0o600
    db = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    assert (db.pragma("user_version"), db.pragma("application_id")) == (1, sqlite_schema.APPLICATION_ID)
    assert db.execute("SELECT id FROM invocation").fetchall() == [("a",)]
    db.close()


def test_a_file_of_today_has_nothing_pending(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "up to date" in say(capfd, "status", "--plane", str(file.parent / "jobs.sqlite"))
    assert say(capfd, "sql", "--plane", str(file)) == ""
    assert say(capfd, "migrate", "--plane", f"sqlite:///{file}") == "up to date; steps taken: 0\n"
    assert list(file.parent.glob("*before*")) == []


def test_a_database_is_made_and_brought_up_to_date(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dsn = postgres_server.shared().fresh()
    newest = migrations.newest("postgres")
    address = tmp_path / "address"
    address.write_text(dsn)
    assert "no tables yet" in say(capfd, "status", "--store-file", str(address))
    assert "CREATE TABLE lakeshore.invocation" in say(capfd, "sql", "--store", dsn)
    assert run(["db", "migrate", "--store", dsn]) == 0
    out, err = capfd.readouterr()
    assert out == f"up to date; the tables were made, of schema {newest}\n"
    assert err == f"making the tables, of schema {newest}\n"
    assert say(capfd, "migrate", "--store", dsn) == "up to date; steps taken: 0\n"
    with PostgresDispatch(dsn) as plane:
        plane.claim("gpu", "w1")
        shown = say(capfd, "status", "--plane", dsn)
    assert f"schema {newest}; this lakeshore knows {newest}" in shown
    assert "w1 on gpu in default" in shown
    assert "(lakeshore)" in shown, "its sessions"
    assert told(capfd, "status", "--plane", dsn)["pending"] == []
    assert told(capfd, "sql", "--plane", dsn) == {"sql": ""}


@pytest.mark.parametrize("verb", ["status", "sql", "migrate"])
def test_what_is_no_file_is_not_waited_for(
    tmp_path: Path, verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Opening a pipe that nobody writes to would wait for ever."""
    os.mkfifo(tmp_path / "pipe.sqlite")
    assert run(["db", verb, "--store", str(tmp_path / "pipe.sqlite")]) == 3
    assert "is no file" in capfd.readouterr().err


@pytest.mark.parametrize("to", ["file", "database"])
def test_a_store_that_was_moved_says_where_to(
    file: Path, tmp_path: Path, to: str, capfd: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "new.sqlite") if to == "file" else postgres_server.shared().fresh()
    assert run(["migrate", str(file), target, "--running", "lapse"]) == 0
    back = str(tmp_path / "back.sqlite")
    assert run(["migrate", target, back, "--running", "lapse"]) == 0
    capfd.readouterr()
    for moved in (str(file), target):
        for verb in ("status", "sql", "migrate"):
            assert run(["db", verb, "--store", moved]) == 3
            out, err = capfd.readouterr()
            assert out == ""
            assert "this store was moved to" in err
            assert err.count("\n") == 1
        assert (back if moved == target else target.partition("?")[0].rpartition("/")[2]) in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--store", "https://control.example"], "Run this where the store is"),
        (["--store", "mysql://x"], "Run this where the store is"),
        (["--store", "/nowhere/x.sqlite"], "there is no file"),
        ([], "Name a store"),
    ],
)
def test_what_is_no_store_is_refused(
    words: list[str], says: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in ("status", "sql", "migrate"):
        assert run(["db", command, *words]) in (2, 3)
        assert says in capfd.readouterr().err


def test_a_version_that_is_none_is_refused(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "sql", "--store", str(file), "--to", "7"]) == 2
    assert "--to 7: wants a version from 1 to 1" in capfd.readouterr().err


def test_another_programs_file_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.sqlite"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE x (y)")
    db.close()
    before = path.read_bytes()
    for command in ("status", "sql", "migrate"):
        assert run(["db", command, "--store", str(path)]) == 3
        assert "another program's" in capfd.readouterr().err
    assert path.read_bytes() == before
