"""A store with something of everything, for the tests that move it; and what is in one, row by row."""

from __future__ import annotations

from typing import Any

import apsw

from lakeshore.planes.contract import Submission
from lakeshore.planes.moving_side import TABLES
from lakeshore.planes.store import Store
from lakeshore.planes.store_tokens import Tokens
from lakeshore.planes.store_within import Within

ODD = "ключ ✓ \U0001f600 a\u0301 '; DROP TABLE invocation; -- %s :ns {x}"


def fill(engine: Store) -> str:
    """Put jobs of every state, journals and tokens into a store; returns a token."""
    plane = Within(engine, "default")
    plane.submit_many("q", [Submission(envelope=b"e%d" % n, id=f"m{n}", priority=n % 3) for n in range(20)])
    plane.submit("q", b"", id="keyed", key=ODD, priority=-1e308, parent="m0")
    plane.submit("q", b"later", id="delayed", delay=3600.0)
    plane.submit("big", b"B" * 100_000, id="large")
    for state in ("succeeded", "failed", "retried", "released", "lapsed", "cancelled", "requeued"):
        plane.submit("w", state.encode(), id=state)
    for _ in range(6):
        held = plane.claim("w", "worker ü", lease=60)
        assert held is not None
        plane.journal_extend(held.id, [b"f0", b"", b"\0" * 300], worker_id="worker ü", fence=held.fence)
        plane.journal_append(f"{held.id}.log", None, b"line")
        if held.id == "succeeded":
            plane.ack(held.id, "worker ü", result=b"R" * 80_000, fence=held.fence, frame=b"end")
        elif held.id == "failed":
            plane.nack(held.id, "worker ü", error="E: nul \0 and ✓", retry=False, fence=held.fence)
        elif held.id == "retried":
            plane.nack(
                held.id, "worker ü", error={"type": "E", "message": "m", "traceback": "t\n"}, delay=900
            )
        elif held.id == "released":
            plane.release(held.id, "worker ü", fence=held.fence)
            held = plane.claim("w", "worker ü", lease=60)  # again: a new attempt in its journals
            assert held is not None
            plane.nack(held.id, "worker ü", error="E", retry=False)
        elif held.id == "lapsed":
            plane.heartbeat(held.id, "worker ü", lease=0.0, fence=held.fence)
    plane.cancel("cancelled")
    plane.cancel("requeued")
    plane.requeue("requeued")
    plane.submit("gone", b"", id="pruned")
    plane.cancel("pruned")
    for n in range(40):
        plane.journal_append("topic/" + ODD[:20], None, b"t%d" % n)
    plane.journal_trim("topic/" + ODD[:20], keep_last=11)
    plane.journal_append("closed", 7, b"last", final=True)
    other = Within(engine, ODD[:60])
    other.submit("q", b"mine", id="m0", key="k")
    other.submit_many("q", [Submission(envelope=b"o", id=f"o{n}") for n in range(5)])
    other.submit_saying("q", Submission(envelope=b"s", id="said"), {"title": "a"})
    plane.prune(older_than=0, states=("cancelled",), limit=1)
    return Tokens(engine).create(ns=ODD[:60], role="worker", name="the box")[0]


def clear_presence(path: Any) -> None:
    """Take out who was at work in a file; nobody is."""
    raw = apsw.Connection(str(path))
    raw.execute("DELETE FROM worker")
    raw.close()


def rows_of_file(path: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of a file's moved tables, by SQL of this test's own."""
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {
            table.name: raw.execute(
                f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY 1, 2"
            ).fetchall()
            for table in TABLES
        } | {"high": raw.execute("SELECT name, seq FROM sqlite_sequence ORDER BY name").fetchall()}
    finally:
        raw.close()


def without_leases(rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Return rows but for when a claim lapses, which each store's own clock tells."""
    lease = {TABLES[0].columns.index(name) for name in ("lease_until", "lease_boot")}
    return rows | {
        "invocation": [
            tuple("lease" if n in lease and value is not None else value for n, value in enumerate(row))
            for row in rows["invocation"]
        ]
    }
