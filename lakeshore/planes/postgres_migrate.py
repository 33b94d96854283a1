"""What `lakeshore db` does with a PostgreSQL database: tells where it stands, and takes the steps it lacks.

A step waits for a table only as long as others can wait behind it, and is tried again when that was not
enough; each is one transaction, so who is interrupted goes on where he was.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import psycopg
from psycopg import errors as said

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import migrations, postgres_address, postgres_schema
from lakeshore.planes.migrations import Migration, Say, Standing
from lakeshore.planes.postgres_address import Address
from lakeshore.planes.postgres_connection import Connection, unavailable
from lakeshore.planes.postgres_database import Database

T = TypeVar("T")
PATIENCE = 600.0
"""How long a step is tried again while its tables are in use, seconds."""
_PAUSE = (0.5, 2.0)
_WORKING = 300.0
"""A worker that asked for a job within so many seconds is shown."""


def standing(dsn: str) -> Standing:
    """Return where a database stands, without changing it.

    Raises
    ------
    PlaneUnavailable
        When it cannot be reached, holds no plane's tables that this lakeshore knows, or is a standby.
    """
    with _connected(dsn) as (tx, address):
        version = postgres_schema.version_of(tx, address)
        workers = tx.rows("who_works", {"cut": time.time() - _WORKING}) if version.found else []
        sessions = tx.rows("who_is_connected", {})
    return Standing(
        store=address.shown,
        found=version.found,
        newest=version.newest,
        oldest=version.oldest,
        pending=version.pending,
        workers=[
            dict(zip(("ns", "worker_id", "queue", "host", "version", "seen_at", "ago"), each, strict=True))
            for each in workers
        ],
        sessions=[
            dict(zip(("role", "application", "from", "sessions", "since"), each, strict=True))
            for each in sessions
        ],
    )


def sql(dsn: str, *, to: int | None = None) -> str:
    """Return as text what `migrate` would run.

    Raises
    ------
    PlaneUnavailable
        As `standing`.
    ValueError
        When there is no version `to`.
    """
    with _connected(dsn) as (tx, address):
        version = postgres_schema.version_of(tx, address)
    return postgres_schema.sql_for(version, migrations.up_to(version.pending, to, version.newest))


def migrate(dsn: str, *, say: Say, patience: float = PATIENCE) -> list[Migration]:
    """Make the tables of an empty database, or take the steps that it lacks; returns the steps taken.

    An empty database takes one, `migrations.MADE`.

    Parameters
    ----------
    say : callable
        Told in a line what goes on.
    patience : float
        How long to try a step again while its tables are in use, seconds.

    Raises
    ------
    PlaneUnavailable
        As `standing`, and when the role may not, or the tables stay in use. Steps that were taken stay.
    """
    taken = []
    with _connected(dsn) as (tx, address):
        version = postgres_schema.version_of(tx, address)
        if version.found == 0:
            say(f"making the tables, of schema {version.newest}")
            if _transact(tx, lambda: postgres_schema.make(tx, address)):
                return [Migration(version.newest, migrations.MADE, "")]
            say("another made them meanwhile")
            return []
        for step in version.pending:
            say(f"{step.version}: {step.name.replace('_', ' ')}")
            if _take(tx, address, step, say, patience):
                taken.append(step)
            else:
                say(f"{step.version}: another took it meanwhile")
    return taken


def _take(tx: Connection, address: Address, step: Migration, say: Say, patience: float) -> bool:
    end = time.monotonic() + patience
    while True:
        try:
            return _transact(tx, lambda: postgres_schema.take(tx, address, step))
        except (said.LockNotAvailable, said.DeadlockDetected) as error:
            if time.monotonic() > end:
                raise PlaneUnavailable(
                    f"migrate: {address}: step {step.version} found its tables in use for {patience:g} s and "
                    "changed nothing. Look for long transactions in pg_stat_activity, then run it again."
                ) from error
            say(f"{step.version}: its tables are in use; trying again")
            time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - only spreads the tries


def _transact(tx: Connection, work: Callable[[], T]) -> T:
    tx.begin(making=True)
    try:
        answer = work()
    except BaseException:
        tx.roll_back()
        raise
    tx.commit()
    return answer


@contextmanager
def _connected(dsn: str) -> Iterator[tuple[Connection, Address]]:
    """Open one connection for the block, and say in our words what goes wrong with it."""
    address = postgres_address.read(dsn)
    database = Database(address)
    try:
        database.check()
        with database.connection(writing=True) as tx:
            # A step may read a whole table; keepalives tell when the server is gone.
            tx.raw.wait = partial(psycopg.Connection.wait, tx.raw)  # type: ignore[method-assign]
            yield tx, address
    except psycopg.Error as error:
        raise unavailable(address, error) from error
    finally:
        database.close()
