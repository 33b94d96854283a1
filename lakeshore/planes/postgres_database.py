"""What a process keeps of one database, however many planes are on it: its pool, its clock and its bells.

None of it is shared with a forked child, which opens its own: two processes on one connection would read
each other's answers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg_pool
from psycopg import conninfo
from psycopg.types.numeric import Int8Dumper

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import postgres_statements
from lakeshore.planes.postgres_address import Address
from lakeshore.planes.postgres_bells import PostgresBelfry
from lakeshore.planes.postgres_connection import Connection

POOL = 8
"""The most connections a process opens to one database, beside the one that listens."""
RIDE_OUT = 30.0
"""How long a call tries again while the database is away, or waits for a connection, seconds."""
_SESSION = "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off \
-c plan_cache_mode=force_generic_plan -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
"""A queue's statistics are old as soon as they are made: whatever they say, the indexes are in the order that
a claim asks for. A process that is stopped amid a transaction does not keep its locks for ever."""
_DRIFT = 0.001
"""How much less sure the clock is, a second after it was read."""


class Database:
    """The pool, the clock and the bells of one address in this process.

    Parameters
    ----------
    address : Address
        Where it is.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.users = 0
        self.plain = False
        """Whether statements are not prepared: a pooler that hands sessions around does not keep them."""
        self.bells = PostgresBelfry(self._connect)
        self._options = True
        self._offset, self._unsure, self._read_at = 0.0, float("inf"), 0.0
        self._lock = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[psycopg.Connection[Any]] | None = None

    # -- connections ------------------------------------------------------------

    def _conninfo(self) -> str:
        options = dict(self.address.options)
        if self._options:
            options["options"] = f"{_SESSION} {options.get('options') or ''}".strip()
        return conninfo.make_conninfo("", **options)

    def _connect(self) -> psycopg.Connection[Any]:
        """Open one connection, in autocommit mode, beside the pool."""
        try:
            raw = psycopg.connect(self._conninfo(), autocommit=True)
        except psycopg.OperationalError as error:
            if not self._options or "unsupported startup parameter" not in str(error):
                raise
            self._options = False  # a pooler that takes none
            return self._connect()
        self._set_up(raw)
        return raw

    def _set_up(self, raw: psycopg.Connection[Any]) -> None:
        raw.prepare_threshold = None if self.plain else 2
        raw.prepared_max = 500
        raw.adapters.register_dumper(int, Int8Dumper)  # one type, so one prepared statement

    def check(self) -> None:
        """Connect once, so that what is wrong with the address is said at once and in full."""
        with self._connect() as raw:
            self._hear_clock(raw)

    def forget_prepared(self) -> None:
        """Prepare no statements from now on."""
        self.plain = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @contextmanager
    def connection(self, *, writing: bool) -> Iterator[Connection]:
        """Lend a connection for the block.

        Raises
        ------
        psycopg.Error
            When none can be had within `RIDE_OUT`.
        PlaneUnavailable
            When all are in use that long.
        """
        pool = self._opened()
        try:
            raw = pool.getconn(RIDE_OUT)
        except psycopg_pool.PoolTimeout as error:
            self.check()  # when the database is away this says why
            raise PlaneUnavailable(
                f"{self.address}: all {POOL} connections of this process have been busy for {RIDE_OUT:g} s. "
                "Use fewer threads, or look for a lock that is held in pg_stat_activity."
            ) from error
        try:
            yield Connection(raw, writing=writing, clock=self.now)
        finally:
            pool.putconn(raw)

    def drop_dead(self) -> None:
        """Have the pool look which of its idle connections are dead; called once one was found so."""
        pool = self._pool
        if pool is not None:
            pool.check()

    def _opened(self) -> psycopg_pool.ConnectionPool[psycopg.Connection[Any]]:
        pool = self._pool
        if pool is None:
            with self._lock:
                pool = self._pool
                if pool is None:
                    pool = self._pool = psycopg_pool.ConnectionPool(
                        self._conninfo(),
                        kwargs={"autocommit": True},
                        configure=self._set_up,
                        min_size=0,
                        max_size=POOL,
                        num_workers=1,
                        reconnect_timeout=5.0,
                        open=True,
                        name="lakeshore",
                    )
        return pool

    def close(self) -> None:
        """Close every connection."""
        self.bells.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    # -- the clock --------------------------------------------------------------

    def now(self) -> float:
        """Return the database's clock: as it was last read, carried on by this machine's monotonic one."""
        return time.monotonic() + self._offset

    def heard(self, theirs: float, mono: float, unsure: float) -> None:
        """Take note of a reading: their clock at our `mono`, give or take `unsure` seconds."""
        offset, known = theirs - mono, self._unsure + (mono - self._read_at) * _DRIFT
        if unsure <= known or abs(offset - self._offset) > unsure + known:
            self._offset, self._unsure, self._read_at = offset, unsure, mono

    def _hear_clock(self, raw: psycopg.Connection[Any]) -> None:
        asked = time.monotonic()
        row = raw.execute(postgres_statements.load(writing=False)["clock"]).fetchone()
        answered = time.monotonic()
        assert row is not None
        self.heard(float(row[0]), (asked + answered) / 2, (answered - asked) / 2)


_lock = threading.Lock()
_databases: dict[str, Database] = {}
_abandoned: list[Database] = []
"""The parent's, in a forked child: never closed here, which would end the parent's sessions."""


def database_at(address: Address, ready: Callable[[Database], None]) -> Database:
    """Return this process's `Database` for an address, to be given back to `leave`.

    Parameters
    ----------
    ready : callable
        Makes a database that this process did not know usable.
    """
    key = conninfo.make_conninfo("", **address.options)
    with _lock:
        found = _databases.get(key)
        if found is not None:
            found.users += 1
            return found
    made = Database(address)
    try:
        ready(made)
    except BaseException:
        made.close()
        raise
    with _lock:
        kept = _databases.setdefault(key, made)
        kept.users += 1
    if kept is not made:
        made.close()
    return kept


def leave(database: Database) -> None:
    """Close a database with the last plane that uses it."""
    with _lock:
        database.users -= 1
        if database.users:
            return
        for key in [key for key, each in _databases.items() if each is database]:
            del _databases[key]
    database.close()


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _abandoned.extend(_databases.values())
    _databases.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
