"""What can be seen of a PostgreSQL database's health: read once, for the doctor's findings and for metrics.

A look only reads, has an end, and waits for no lock; what this role may not see it names, and goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
from psycopg import errors as said
from psycopg.rows import namedtuple_row

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import statements
from lakeshore.planes.engine import Transaction
from lakeshore.planes.measures import Measure
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.planes.postgres_connection import Connection
from lakeshore.planes.postgres_schema import Version, version_of

_LOOKS: Final = (
    *("server", "locks", "transactions", "prepared", "slots", "replicas", "connections"),
    *("wraparound", "tables", "indexes", "oldest_finished"),
)
_UNSEEN: Final = (
    *(said.InsufficientPrivilege, said.LockNotAvailable, said.QueryCanceled),
    *(said.UndefinedTable, said.UndefinedColumn, said.UndefinedFunction, said.UndefinedObject),
    *(said.FeatureNotSupported, said.ObjectNotInPrerequisiteState, said.InvalidSchemaName),
)
"""What one look may be refused with while the others can be had: a right, a lock, another make of server."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a database saw.

    Attributes
    ----------
    rows : dict
        By statement of ``sql/postgres_health.sql``, its rows; each has the statement's columns by name.
    unseen : dict
        By statement, why it could not be had.
    skew : float
        Seconds that the database's clock is ahead of this machine's.
    version : Version or None
        Of the tables; None where it cannot be told, as on a standby.
    """

    rows: dict[str, list[Any]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    skew: float = 0.0
    version: Version | None = None

    def of(self, name: str) -> list[Any]:
        """Return the rows of a statement, none where it could not be had."""
        return self.rows.get(name, [])

    def one(self, name: str) -> Any:
        """Return the first row of a statement, or None."""
        rows = self.of(name)
        return rows[0] if rows else None


def look(plane: PostgresDispatch) -> Look:
    """Look at the database of a plane.

    Raises
    ------
    PlaneUnavailable
        When it cannot be reached.
    """

    def work(tx: Transaction) -> Look:
        assert isinstance(tx, Connection)
        seen = _look(tx.raw)
        try:
            return replace(seen, version=version_of(tx, plane._address))
        except PlaneUnavailable as error:
            return replace(seen, unseen={**seen.unseen, "schema": str(error)})

    return plane._read(work)


def _look(raw: psycopg.Connection[Any]) -> Look:
    sql = statements.load("postgres_health.sql")
    seen = Look()
    skew = 0.0
    with raw.cursor(row_factory=namedtuple_row) as cursor:
        for name in _LOOKS:
            asked = time.time()
            try:
                cursor.execute(sql["begin"].encode())
                cursor.execute(sql[name].encode(), prepare=False)
                seen.rows[name] = cursor.fetchall()
            except _UNSEEN as error:
                seen.unseen[name] = error.diag.message_primary or type(error).__name__
            finally:
                with contextlib.suppress(psycopg.Error):  # a broken connection has nothing to undo
                    cursor.execute(sql["rollback"].encode())
            if name == "server" and seen.of(name):
                skew = seen.one(name).clock - (asked + time.time()) / 2
    return Look(seen.rows, seen.unseen, skew)


def measures(plane: PostgresDispatch) -> Iterator[Measure]:
    """Look at the database, and yield what can be measured; what cannot be seen is left out."""
    seen = look(plane)
    server = seen.one("server")
    if server is not None:
        yield Measure("database_bytes", server.bytes)
        yield Measure("durable", is_durable(server))
        yield Measure("autovacuum", server.autovacuum and server.track_counts)
        yield Measure("standby", server.standby)
        yield Measure("notify_queue_ratio", server.notify_queue)
        yield Measure("clock_ahead_seconds", seen.skew)
        yield Measure("connections_limit", server.max_connections)
    if seen.version is not None:
        yield Measure("schema_version", seen.version.found)
    yield from _sizes(seen)
    yield from _sessions(seen)
    yield from _replication(seen)


def _sizes(seen: Look) -> Iterator[Measure]:
    """Yield the sizes, in all and by table; our tables are few, so they may be labels."""
    tables, indexes, oldest = seen.of("tables"), seen.of("indexes"), seen.one("oldest_finished")
    if tables:
        yield Measure("bytes", sum(each.bytes for each in tables), ("tables",))
        yield Measure("bytes", sum(each.index_bytes for each in tables), ("indexes",))
    for each in tables:
        of_it = (each.name,)
        yield Measure("table_bytes", each.bytes + each.index_bytes, of_it)
        yield Measure("rows", each.rows, of_it)
        yield Measure("dead_rows", each.dead, of_it)
        spare = [each.spare_bytes, *(index.spare_bytes for index in indexes if index.root == each.name)]
        if None not in spare:
            yield Measure("spare_bytes", sum(spare), of_it)
        if each.vacuumed_at is not None:
            yield Measure("vacuumed_timestamp_seconds", each.vacuumed_at, of_it)
    if indexes:
        yield Measure("invalid_indexes", sum(not each.valid and not each.being_made for each in indexes))
    if oldest is not None and oldest.finished_at is not None:
        yield Measure("oldest_finished_timestamp_seconds", oldest.finished_at)


def _sessions(seen: Look) -> Iterator[Measure]:
    if "connections" in seen.rows:
        sessions = seen.of("connections")
        ours = sum(each.n for each in sessions if each.ours)
        yield Measure("connections", ours, ("lakeshore",))
        yield Measure("connections", sum(each.n for each in sessions) - ours, ("other",))
    for by, name in (("session", "transactions"), ("prepared", "prepared")):
        if name in seen.rows:
            oldest = max((each.seconds or 0.0 for each in seen.of(name)), default=0.0)
            yield Measure("open_transaction_seconds", oldest, (by,))
    for by, name in (("session", "transactions"), ("prepared", "prepared"), ("slot", "slots")):
        if name in seen.rows:
            yield Measure("held_transactions", max((each.held for each in seen.of(name)), default=0), (by,))
    if "locks" in seen.rows:
        yield Measure("lock_waits", len(seen.of("locks")))
    oldest = seen.one("wraparound")
    if oldest is not None:
        yield Measure("wraparound_transactions", max(oldest.xids, oldest.mxids))


def _replication(seen: Look) -> Iterator[Measure]:
    if "replicas" in seen.rows:
        replicas = seen.of("replicas")
        yield Measure("replicas", len(replicas))
        behind = [each.bytes for each in replicas if each.bytes is not None]  # hidden from some roles
        if behind:
            yield Measure("replication_lag_bytes", max(behind))
            yield Measure("replication_lag_seconds", max(each.seconds or 0.0 for each in replicas))
    if "slots" in seen.rows:
        slots = seen.of("slots")
        for active in (True, False):
            yield Measure("slots", sum(each.active is active for each in slots), (str(active).lower(),))
        yield Measure("slot_bytes", max((each.bytes for each in slots), default=0))


def is_durable(server: Any) -> bool:
    """Whether an acknowledged commit survives a crash of the database server, by its settings."""
    return bool(server.fsync and server.full_page_writes and server.synchronous_commit != "off")
