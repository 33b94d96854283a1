"""What a process keeps of one database, however many planes are on it: its pool, its clock and its bells.

None of it is shared with a forked child, which opens its own: two processes on one connection would read
each other's answers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
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
from lakeshore.planes.postgres_connection import Connection, Session
from lakeshore.planes.postgres_marks import Marks

POOL = 8
"""The most connections a process opens to one database, beside the one that listens."""
RIDE_OUT = 30.0
"""How long a call tries again while the database is away, or waits for a connection, seconds."""
_ASK_AGAIN = 2.0
"""How often the pool is asked again, seconds: it gives up making a connection to a server that is away."""
_SESSION = " ".join(
    f"-c {name}={value}"
    for name, value in {
        # A queue's statistics are old as soon as they are made: whatever they say, the indexes are in the
        # order that a claim asks for.
        **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "jit"), "off"),
        "plan_cache_mode": "force_generic_plan",
        # A process that is stopped amid a transaction does not keep its locks for ever; one that is gone
        # does not keep its session.
        "lock_timeout": "30s",
        "idle_in_transaction_session_timeout": "60s",
        "tcp_keepalives_idle": "60",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "6",
        # What a role or database may have set otherwise.
        "synchronous_commit": "on",
        "statement_timeout": "0",
        "default_transaction_read_only": "off",
        "search_path": "pg_catalog",
        "default_tablespace": "",  # a table in partitions is refused one
        "extra_float_digits": "1",
        "array_nulls": "on",
        "standard_conforming_strings": "on",  # off, psycopg spoils the bytes that an array holds
    }.items()
)
_DRIFT = 0.001
"""How much less sure the clock is, a second after it was read."""
_IDLE_SESSIONS_END = 140000
"""The version that brought a time limit for idle sessions."""
_Pool = psycopg_pool.ConnectionPool[Session]
# What it says of a server that is away is in the errors of the verbs; without a handler it goes to stderr.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


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
        self.pooled = False
        """Whether a pooler stands between: sessions may be others' too, and were not started as asked."""
        self.bells = PostgresBelfry(self._connect, lambda: not self.pooled)
        self._mark = os.urandom(8).hex()
        self._drained_at = 0.0
        self._marks = Marks()
        self.lost: deque[str] = deque(maxlen=POOL)
        """Transactions that broke amid their work; the server may not know it yet, and keep their locks."""
        self._offset, self._unsure, self._read_at = 0.0, float("inf"), 0.0
        self._lock = threading.Lock()
        self._pool: _Pool | None = None

    # -- connections ------------------------------------------------------------

    def _conninfo(self) -> str:
        options = dict(self.address.options)
        if not self.pooled:
            given = options.get("options") or ""
            options["options"] = f"{_SESSION} -c lakeshore.session={self._mark} {given}".strip()
        return conninfo.make_conninfo("", **options)

    def _connect(self) -> Session:
        """Open one connection, in autocommit mode, beside the pool."""
        try:
            raw = Session.connect(self._conninfo(), autocommit=True)
        except psycopg.OperationalError as error:
            if self.pooled or "unsupported startup parameter" not in str(error):
                raise
            self._behind_pooler()
            return self._connect()
        self._set_up(raw)
        return raw

    def _set_up(self, raw: Session) -> None:
        raw.prepare_threshold = None if self.plain else 2
        raw.prepared_max = 500
        raw.adapters.register_dumper(int, Int8Dumper)  # one type, so one prepared statement
        if not self.pooled and raw.info.server_version >= _IDLE_SESSIONS_END:
            raw.execute(postgres_statements.load(writing=False)["stay"], prepare=False)

    def _behind_pooler(self) -> None:
        # Statements are not prepared there: a session that is handed on may know another by the same name.
        self.pooled = self.plain = True

    def check(self) -> None:
        """Connect once, so that what is wrong with the address is said at once and in full."""
        with self._connect() as raw:
            self._hear_clock(raw)
            if not self.pooled:
                row = raw.execute(postgres_statements.load(writing=False)["marked"], prepare=False).fetchone()
                if row is None or row[0] != self._mark:
                    self._behind_pooler()

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
        pool, raw = self._lent()
        try:
            yield Connection(
                raw,
                writing=writing,
                clock=self.now,
                marks=self._marks,
                trip=2 * self._unsure,
                pooled=self.pooled,
            )
        finally:
            pool.putconn(raw)

    def _lent(self) -> tuple[_Pool, Session]:
        end = time.monotonic() + RIDE_OUT
        while True:
            pool = self._opened()
            left = end - time.monotonic()
            try:
                return pool, pool.getconn(max(0.001, min(left, _ASK_AGAIN)))
            except psycopg_pool.PoolClosed:
                if pool is self._pool:  # else statements are no longer prepared, over other connections
                    raise
            except psycopg_pool.PoolTimeout as error:
                if left > _ASK_AGAIN:
                    continue
                self.check()  # when the database is away this says why
                raise PlaneUnavailable(
                    f"{self.address}: all {POOL} connections of this process have been busy for "
                    f"{RIDE_OUT:g} s. Use fewer threads, or look for a lock that is held in pg_stat_activity."
                ) from error

    def end_lost(self, tx: Connection) -> None:
        """End what is left of transactions that broke, before they are run again."""
        while self.lost:
            with contextlib.suppress(IndexError):  # another thread took it
                tx.rows("end_lost", {"xid": self.lost.popleft()})

    def drop_dead(self, since: float) -> None:
        """Close the connections that were there at `since`, when one of them was found dead.

        None is asked whether it lives: over a line that is down each question takes as long as the first.
        """
        pool = self._pool
        with self._lock:
            if pool is None or self._drained_at > since:
                return
            self._drained_at = time.monotonic()
        pool.drain()

    def _opened(self) -> _Pool:
        pool = self._pool
        if pool is None:
            with self._lock:
                pool = self._pool
                if pool is None:
                    pool = self._pool = psycopg_pool.ConnectionPool(
                        self._conninfo(),
                        kwargs={"autocommit": True},
                        connection_class=Session,
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


def _at_exit() -> None:
    """Have others told what was rung last, by a program that closes nothing."""
    for database in list(_databases.values()):
        database.bells.close(within=1.0)


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _abandoned.extend(_databases.values())
    _databases.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
