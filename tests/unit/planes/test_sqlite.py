"""What is SQLite's own in the plane: plans, namespaces, what a prune leaves, leases of another boot."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from lakeshore import Dispatch, PlaneUnavailable
from lakeshore.planes import sqlite_connection, statements, store_looks
from lakeshore.planes.contract import Submission

SQL = statements.load("verbs.sql", "sqlite.sql")
ONE_WALK = {
    "claim_other_boots": "SCAN invocation USING INDEX leased",
    **dict.fromkeys(("spare", "spare_again"), "SCAN invocation USING COVERING INDEX leased"),
}
"""The statements that may walk: they see running rows only."""


def plan(plane: Dispatch, name: str) -> list[str]:
    assert plane._rows is not None
    names = re.findall(r"(?<![:\w]):(\w+)", SQL[name])
    rows = plane._rows.execute("EXPLAIN QUERY PLAN " + SQL[name], dict.fromkeys(names, 1)).fetchall()
    return [str(row[3]) for row in rows]


@pytest.mark.parametrize("name", sorted(SQL.keys() - {"schema", "moved_where"}))
def test_no_statement_walks_or_sorts_the_rows(name: str) -> None:
    steps = plan(Dispatch(), name)
    walks = [step for step in steps if re.match(r"SCAN (invocation|frame|journal|payload)\b", step)]
    assert walks == ([ONE_WALK[name]] if name in ONE_WALK else [])
    assert name in ("workers", "list_running", "list_rare") or not any(
        "TEMP B-TREE" in step for step in steps
    ), steps


@pytest.mark.parametrize("name", ["heads_fifo", "heads_filo", "sample", "count_queued"])
def test_what_looks_at_ready_rows_reads_the_index_alone(name: str) -> None:
    assert all("COVERING INDEX ready" in step for step in plan(Dispatch(), name) if "ready" in step)


def test_no_statement_is_planned_again_at_each_run() -> None:
    plane = Dispatch()
    assert plane._rows is not None
    planned: dict[str, int] = {}

    def traced(event: dict[str, object]) -> None:
        status = event.get("stmt_status")
        if isinstance(status, dict):
            planned[str(event["sql"])] = status["SQLITE_STMTSTATUS_REPREPARE"]

    plane._rows.raw.trace_v2(apsw.SQLITE_TRACE_PROFILE, traced)
    for i in range(3):
        plane.submit("gpu", b"e", id=f"j{i}")
        job = plane.claim("gpu", "w")
        assert job is not None
        plane.journal_append(job.id, None, b"f")
        plane.ack(job.id, "w", frame=b"end")
        list(plane.journal_read(job.id, timeout=0))
        plane.claim("gpu", "w", kind="boltzmann")
        plane.count("gpu")
    plane._rows.raw.trace_v2(0, None)
    assert set(planned.values()) == {0}, {sql: n for sql, n in planned.items() if n}


def test_namespaces_share_a_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    one, two = Dispatch(path, ns="one"), Dispatch(path, ns="two")
    one.submit("gpu", b"1", id="same", key="k")
    assert two.submit("gpu", b"2", id="same", key="k") == "same"
    one.journal_append("same", None, b"f1", final=True)
    assert (one.envelope("same"), two.envelope("same")) == (b"1", b"2")
    job = two.claim("gpu", "w")
    assert job is not None
    assert job.envelope == b"2"
    assert two.claim("gpu", "w") is None
    assert (one.count("gpu"), two.count("gpu", "running")) == (1, 1)
    assert list(one.journal_read("same", timeout=0)) == [(0, b"f1")]
    two.ack("same", "w")
    assert list(two.journal_read("same", timeout=0)) == []
    assert [row["ns"] for row in one.invocations()] == ["one"]
    assert one.workers() == []
    assert one.prune(older_than=0) == 0
    assert two.prune(older_than=0) == 1
    assert one.envelope("same") == b"1"


def test_a_prune_leaves_nothing_of_a_row(tmp_path: Path) -> None:
    plane = Dispatch(tmp_path / "p.sqlite")
    for i in range(250):
        large = b"x" * (5000 if i % 2 else 10)
        plane.submit("gpu", large, id=f"j{i}", key=f"k{i}")
        job = plane.claim("gpu", "w")
        assert job is not None
        for journal in (job.id, f"{job.id}.log", f"{job.id}.progress"):
            plane.journal_extend(journal, [b"f"] * 3)
        plane.ack(job.id, "w", result=large, frame=b"end")
    assert plane.prune(older_than=0) == 250
    assert plane._rows is not None
    for table in ("invocation", "payload", "journal", "frame"):
        assert plane._rows.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)], table
    plane.submit("gpu", b"e", id="j0", key="k0")
    assert plane._rows.execute("SELECT seq FROM invocation").fetchall() == [(251,)], "order is never reused"


def test_a_lease_of_another_boot_has_lapsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.sqlite"
    with Dispatch(path) as plane:
        plane.submit("gpu", b"e", id="a")
        plane.claim("gpu", "w", lease=10_000.0)
    with Dispatch(path) as plane:
        assert plane.claim("gpu", "w2") is None, "the same boot"
    monkeypatch.setattr("lakeshore.planes.sqlite.boot_id", lambda: "another")
    with Dispatch(path) as plane:
        job = plane.claim("gpu", "w2")
        assert job is not None
        assert job.attempt == 2


def test_a_sqlite_that_loses_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, refused in (
        ("3.51.2", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.44.6", False),
        ("3.52.0", False),
    ):
        monkeypatch.setattr(sqlite_connection.apsw, "sqlite_lib_version", lambda version=version: version)
        if refused:
            with pytest.raises(PlaneUnavailable, match=rf"{version}.*pip install -U apsw"):
                sqlite_connection.refuse_old_sqlite()
        else:
            sqlite_connection.refuse_old_sqlite()


def test_a_large_journal_is_read_in_bounded_steps(tmp_path: Path) -> None:
    plane = Dispatch(tmp_path / "p.sqlite", durable=False)
    plane.journal_extend("topic", [b"x" * 1_000_000] * 20)
    plane.journal_append("topic", None, b"end", final=True)
    steps: list[int] = []
    batch = plane._batch

    def counted(tx, journal, cursor):  # type: ignore[no-untyped-def]
        frames, finished = batch(tx, journal, cursor)
        steps.append(len(frames))
        return frames, finished

    plane._batch = counted  # type: ignore[method-assign]
    assert sum(1 for _ in plane.journal_read("topic", timeout=1)) == 21
    assert max(steps) <= 9


def test_many_jobs_that_become_due_at_once_are_promoted_by_one_claim() -> None:
    plane = Dispatch()
    now = plane._now()
    plane.submit_many(
        "gpu", [Submission(envelope=b"", id=f"d{i}", delay=5.0, priority=i) for i in range(500)]
    )
    assert plane.claim("gpu", "w") is None
    plane._now = lambda: now + 10.0  # type: ignore[method-assign]
    job = plane.claim("gpu", "w")
    assert job is not None
    assert job.id == "d499", "the highest of all that are due"


def test_a_plane_that_is_dropped_closes_at_once(tmp_path: Path) -> None:
    plane = Dispatch(tmp_path / "p.sqlite")
    plane.submit("gpu", b"e", id="a")
    plane.count("gpu")
    assert (tmp_path / "p.sqlite-wal").exists()
    del plane
    assert not (tmp_path / "p.sqlite-wal").exists(), "no cycle keeps a connection until the next collection"


@pytest.mark.parametrize("state", [None, "queued", "running", "succeeded", "failed", "cancelled"])
def test_a_rare_queue_is_listed_by_the_indexes_alike(
    state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Dispatch() as plane:
        for i in range(60):
            plane.submit("rare" if i % 10 == 0 else "gpu", b"e", id=f"j{i}", delay=60.0 * (i % 3 == 0))
        for name in ("rare", "gpu"):
            for i, job in enumerate(plane.claim_many(name, "w", 30)[:-1]):
                if i % 3 == 0:
                    plane.ack(job.id, "w")
                elif i % 3 == 1:
                    plane.nack(job.id, "w", error="E", retry=False)
                else:
                    plane.cancel(job.id)
        asked = [(q, n, b) for q in ("rare", "gpu") for n in (0, 3, 100) for b in (None, "j30", "none")]

        def listed() -> list[list[str]]:
            pages = [plane.invocations(q, state=state, limit=n, before=b) for q, n, b in asked]
            return [[row["id"] for row in page] for page in pages]

        walked = listed()
        monkeypatch.setattr(store_looks, "_WALKED", 2)
        assert listed() == walked
        assert any(walked)
