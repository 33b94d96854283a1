"""A database or an address that is not as we make it: worked with, or told with the way out."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

import psycopg
import pytest

from lakeshore import PlaneUnavailable, Submission
from lakeshore.planes.postgres import PostgresDispatch


def ask(dsn, sql):
    with psycopg.connect(dsn, autocommit=True) as raw:
        return raw.execute(sql)


def test_submits_under_a_key_beside_cancels_and_prunings(dsn):
    numbers, end, errors = itertools.count(), time.monotonic() + 1.5, []

    @contextlib.contextmanager
    def noting():
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
            errors.append(error)

    with PostgresDispatch(dsn, ns="keyed") as dp:

        def submit():
            with noting():
                while time.monotonic() < end:
                    dp.submit("q", b"e", id=f"j{next(numbers)}", key="k")
                    dp.submit_many(
                        "q", [Submission(envelope=b"e", id=f"j{next(numbers)}", key="k") for _ in range(3)]
                    )

        def remove():
            with noting():
                while time.monotonic() < end:
                    for row in dp.invocations("q"):
                        dp.cancel(row["id"])
                    dp.prune(older_than=0)

        threads = [threading.Thread(target=work) for work in (submit, submit, submit, remove, remove)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


def test_a_row_that_is_gone_before_it_is_looked_for_is_submitted_anew(fresh, monkeypatch):
    with PostgresDispatch(fresh) as dp:
        dp.submit("q", b"e", id="old", key="k")
        known, tries = dp._known, []

        def first(tx, params):
            tries.append(params["id"])
            if len(tries) == 1:
                ask(fresh, "DELETE FROM lakeshore.invocation")
            return known(tx, params)

        monkeypatch.setattr(dp, "_known", first)
        assert dp.submit("q", b"e", id="new", key="k") == "new"
        assert tries == ["new"]
        assert dp.count("q") == 1


def test_numbers_that_a_restore_lost_are_told_or_passed(fresh):
    with PostgresDispatch(fresh) as dp:
        dp.submit_many("q", [Submission(envelope=b"e", id=f"j{n}") for n in range(300)])
        ask(fresh, "SELECT setval('lakeshore.invocation_seq_seq', 1, false)")
        with pytest.raises(PlaneUnavailable, match=r"setval\('lakeshore.invocation_seq_seq'"):
            dp.submit("q", b"e", id="new")
        ask(fresh, "SELECT setval('lakeshore.invocation_seq_seq', max(seq)) FROM lakeshore.invocation")
        assert dp.submit("q", b"e", id="new") == "new"


def test_a_default_tablespace_is_no_hindrance(fresh):
    name = fresh.partition("@/")[2].partition("?")[0]
    ask(fresh, f"ALTER DATABASE {name} SET default_tablespace = 'pg_default'")
    with PostgresDispatch(fresh) as dp:
        dp.submit("q", b"e", id="j")
        assert dp.claim("q", "w").id == "j"
        assert dp.journal_append("j", 0, b"frame") == 0


@pytest.mark.parametrize("table", ["worker", "frame"])
def test_a_schema_that_is_anothers_is_told_and_left(fresh, table):
    ask(fresh, f"CREATE SCHEMA lakeshore; CREATE TABLE lakeshore.{table} (x int)")
    with pytest.raises(PlaneUnavailable, match="a database of its own"):
        PostgresDispatch(fresh)
    assert ask(fresh, f"SELECT * FROM lakeshore.{table}").fetchall() == []


def test_a_trigger_of_anothers_is_told(fresh):
    with PostgresDispatch(fresh) as dp:
        ask(
            fresh,
            "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not on Mondays'; END $$;"
            "CREATE TRIGGER no BEFORE INSERT ON lakeshore.invocation "
            "FOR EACH ROW EXECUTE FUNCTION public.no()",
        )
        with pytest.raises(PlaneUnavailable, match="not on Mondays.* A trigger that is not lakeshore's"):
            dp.submit("q", b"e", id="j")


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql+psycopg://me:hidden@h/db", r"^dsn: postgresql\+psycopg:// is the spelling of another"),
        ("postgres+asyncpg://me:hidden@h/db", r"^dsn: postgres\+asyncpg:// is"),
        ("postgresql://me:hidden@h/db?pool_size=5&schema=x", "pool_size, schema in it is no parameter"),
        ("postgresql://me:x@h/db?hidden=5", "cannot be read"),
    ],
)
def test_an_address_of_another_program_is_told(dsn, told):
    with pytest.raises(ValueError, match=told) as caught:
        PostgresDispatch(dsn)
    assert "hidden" not in str(caught.value)
