"""What can be measured of a store, whatever its engine: each measure once, with its meaning and its labels.

An engine yields those that it has; a server shows them as ``lakeshore_store_`` and the name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lakeshore.planes.contract import Plane

if TYPE_CHECKING:
    from lakeshore.planes.postgres import PostgresDispatch
    from lakeshore.planes.sqlite import Dispatch


class Measure(NamedTuple):
    """One value.

    Attributes
    ----------
    name : str
        A name of `MEANINGS`.
    value : float
        In the unit that the name ends with.
    labels : tuple of str
        A value for each label of the name.
    """

    name: str
    value: float
    labels: tuple[str, ...] = ()


MEANINGS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "bytes": ("Size of the store on disk, by part.", ("part",)),
    "reusable_bytes": ("Part of the file that new rows are put into before it grows.", ()),
    "free_bytes": ("Free space of the disk that the file is on.", ()),
    "rows": ("Rows of a table, estimated.", ("table",)),
    "dead_rows": ("Rows of a table that wait for vacuum, estimated.", ("table",)),
    "table_bytes": ("Size of a table with its indexes.", ("table",)),
    "spare_bytes": ("Part of a table and its indexes that no row needs, estimated.", ("table",)),
    "vacuumed_timestamp_seconds": ("When a table was last vacuumed.", ("table",)),
    "oldest_finished_timestamp_seconds": ("When the longest kept of the ended jobs ended.", ()),
    "schema_version": ("Version of the tables.", ()),
    "invalid_indexes": ("Indexes that were not made to the end.", ()),
    "database_bytes": ("Size of the whole database.", ()),
    "durable": ("1 where what is acknowledged survives a crash of the server, by its settings.", ()),
    "autovacuum": ("1 where the server vacuums by itself.", ()),
    "standby": ("1 where the database only follows another.", ()),
    "clock_ahead_seconds": ("How far the database's clock is ahead of the server's.", ()),
    "connections": ("Connections of all clients to the database server, ours and others.", ("owner",)),
    "connections_limit": ("Connections that the database server takes.", ()),
    "open_transaction_seconds": ("Age of the oldest open transaction.", ("by",)),
    "held_transactions": (
        "Transactions begun since the oldest one held open; dead rows of these cannot be vacuumed.",
        ("by",),
    ),
    "lock_waits": ("Sessions that wait for a lock of another.", ()),
    "wraparound_transactions": (
        "Age of the oldest transaction that is not frozen; at two billion the database server stops.",
        (),
    ),
    "notify_queue_ratio": ("How full the queue of notifications is.", ()),
    "replicas": ("Standbys that follow the database now.", ()),
    "replication_lag_bytes": ("WAL that the slowest standby has not replayed.", ()),
    "replication_lag_seconds": ("How late the slowest standby replays.", ()),
    "slots": ("Replication slots, by whether somebody reads them.", ("active",)),
    "slot_bytes": ("WAL kept for the replication slot that is furthest behind.", ()),
}
"""By name, what it means and its labels."""


def measures(plane: Plane) -> Iterator[Measure]:
    """Measure a store; nothing for a plane that is none.

    Raises
    ------
    PlaneUnavailable
        When it cannot be reached.
    """
    database, file = as_postgres(plane), as_sqlite(plane)
    if database is not None:
        from lakeshore.planes import postgres_health

        yield from postgres_health.measures(database)
    elif file is not None:
        from lakeshore.planes import sqlite_health

        yield from sqlite_health.measures(file)


# Without importing what only that engine needs: where it is not loaded, there is no such plane either.


def as_postgres(plane: Plane) -> PostgresDispatch | None:
    """Return a plane that is a PostgreSQL database as such, else None."""
    loaded = sys.modules.get("lakeshore.planes.postgres")
    return plane if loaded is not None and isinstance(plane, loaded.PostgresDispatch) else None


def as_sqlite(plane: Plane) -> Dispatch | None:
    """Return a plane that is a SQLite file as such, else None."""
    loaded = sys.modules.get("lakeshore.planes.sqlite")
    return plane if loaded is not None and isinstance(plane, loaded.Dispatch) else None
