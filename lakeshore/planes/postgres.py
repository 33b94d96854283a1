"""`PostgresDispatch`: the plane that is a PostgreSQL database; with its siblings the only door to psycopg.

The same rows, verbs and rules as in a file, for many machines: no state is kept outside the database. Its
rules: times are the database's, writers run side by side and hold the rows that they decide by, a transaction
that was rolled back is run again, and one whose answer was lost is asked about before it is.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import errors as said

from lakeshore.errors import CaptureError, DispatchError, PlaneUnavailable
from lakeshore.planes import postgres_address, postgres_database, postgres_schema
from lakeshore.planes.contract import check_name
from lakeshore.planes.engine import Transaction
from lakeshore.planes.postgres_connection import CLASHES, Connection, is_away, unavailable
from lakeshore.planes.postgres_database import Database
from lakeshore.planes.postgres_prune import PruningByDays
from lakeshore.planes.store import Store
from lakeshore.planes.store_producers import Vanished

_CLASHES = 50
_PAUSE = (0.05, 0.4)
_GIVE_WAY = 3.0
"""How long a commit whose answer was lost may take before its session is ended, seconds."""

T = TypeVar("T")


class PostgresDispatch(PruningByDays, Store):
    """A dispatch plane in a PostgreSQL database (13 or newer), for any number of machines.

    Parameters
    ----------
    dsn : str
        ``postgresql://user:password@host:5432/database``, with libpq's parameters and environment. The
        tables are in its schema ``lakeshore``, made at the first use. The password may come from
        ``PGPASSWORD`` or ``~/.pgpass`` instead; it appears in no message.
    ns : str
        The namespace, default ``"default"``.

    Raises
    ------
    PlaneUnavailable
        When the database cannot be reached or used, or is of a newer version. The message names host and
        database, and the way out.
    ValueError
        When `dsn` or `ns` is malformed.

    Notes
    -----
    A process opens at most 8 connections to one database and one more that listens, however many planes and
    waiters it has.
    """

    def __init__(self, dsn: str, *, ns: str = "default") -> None:
        self._ns = check_name(ns, "ns")
        self._address = postgres_address.read(dsn)
        self._seen: dict[tuple[str, str], float] = {}
        self._closed: str | None = None
        self._join()

    def _join(self) -> None:
        try:
            self._database = postgres_database.database_at(self._address, self._set_up)
        except psycopg.Error as error:
            raise unavailable(self._address, error) from error
        self._bells = self._database.bells
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"PostgresDispatch({self._address.shown!r}, ns={self._ns!r})"

    def __enter__(self) -> PostgresDispatch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise CaptureError(
            f"{self!r} cannot be pickled or copied: a plane does not leave its process, nor its password. "
            "Make one where it is needed: PostgresDispatch(dsn)."
        )

    @property
    def trusted(self) -> bool:
        """False: others than this user may write to the database."""
        return False

    def close(self) -> None:
        """Close the connections with the last plane on them. Verbs after this raise `DispatchError`."""
        if self._closed is None:
            self._closed = "it was closed"
            if self._pid == os.getpid():
                postgres_database.leave(self._database)

    # -- transactions ---------------------------------------------------------

    def _write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        def attempt(database: Database) -> T:
            with database.connection(writing=True) as tx:
                database.end_lost(tx)
                answer, unanswered = self._transact(tx, work, database)
                topics = tx.topics
            # Asked once the broken connection was given back: all of the pool's may have broken at once.
            if unanswered is not None and not self._was_committed(database, tx, unanswered):
                raise unanswered
            if topics:
                self._bells.ring(list(dict.fromkeys(topics)))
            return answer

        return self._again_and_again(attempt)

    def _read(self, work: Callable[[Transaction], T]) -> T:
        def attempt(database: Database) -> T:
            with database.connection(writing=False) as tx:
                return work(tx)

        return self._again_and_again(attempt)

    def _alone(self, name: str, params: dict[str, Any], *topics: str) -> list[tuple[Any, ...]] | None:
        """Run one statement in autocommit, which needs no name for its transaction: it is run again."""

        def attempt(database: Database) -> list[tuple[Any, ...]] | None:
            if database.pooled:  # a transaction brings along what a session of its own would have
                return None
            with database.connection(writing=True) as tx:
                rows = tx.rows(name, params)
            if rows and rows[0][0]:
                self._bells.ring(list(topics))
            return rows

        return self._again_and_again(attempt)

    def _transact(
        self, tx: Connection, work: Callable[[Transaction], T], database: Database, *, making: bool = False
    ) -> tuple[T, psycopg.Error | None]:
        """Do `work` and commit; returns the error too when the COMMIT was not answered."""
        asked = time.monotonic()
        try:
            theirs, mono = tx.begin(making=making)
            database.heard(theirs, mono, mono - asked)
            answer = work(tx)
        except BaseException as error:
            if tx.xid is not None and isinstance(error, psycopg.Error) and is_away(error):
                database.lost.append(tx.xid)
            with contextlib.suppress(psycopg.Error):  # it broke: the server rolls back by itself
                tx.roll_back()
            raise
        try:
            tx.commit()
        except psycopg.Error as error:
            if not is_away(error):
                raise
            return answer, error
        return answer, None

    def _was_committed(self, database: Database, broken: Connection, lost: psycopg.Error) -> bool:
        """Ask, over another connection, what became of a transaction whose COMMIT was not answered.

        After a crash of the server a "committed" may be another's; then the work is run again, as a caller
        would repeat it: ids and fences answer it, a claim that was made lapses, a frame may stand twice.
        """
        asked = {"xid": broken.xid, "span": broken.span}
        began = time.monotonic()
        end = began + postgres_database.RIDE_OUT
        database.drop_dead(began)
        while True:
            try:
                with database.connection(writing=False) as tx:
                    fate, crashed = tx.rows("fate", asked)[0]
                    if fate == "in progress" and time.monotonic() > began + _GIVE_WAY:
                        tx.rows("end_lost", asked)
            except said.DataError:  # another server took over, which never saw it
                return False
            except psycopg.Error as error:
                if not is_away(error) or time.monotonic() > end:
                    raise PlaneUnavailable(
                        f"{self._address} went away during a commit, and whether it was made cannot be "
                        "asked. Look whether it was (get, count), then go on."
                    ) from lost
                fate, crashed = "in progress", False
            if fate != "in progress":
                return bool(fate == "committed" and not crashed and broken.span)
            if time.monotonic() > end:
                raise unavailable(self._address, lost) from lost
            time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - only spreads the tries

    def _again_and_again(self, attempt: Callable[[Database], T]) -> T:
        """Attempt until it is through; each attempt that failed has left nothing behind."""
        end, clashes = float("inf"), 0
        while True:
            if self._closed:
                raise DispatchError(f"{self!r} cannot be used: {self._closed}. Make a new PostgresDispatch.")
            if self._pid != os.getpid():
                self._seen = {}
                self._join()
            database, began = self._database, time.monotonic()
            try:
                return attempt(database)
            except (said.InvalidSqlStatementName, said.DuplicatePreparedStatement) as error:
                if database.plain:
                    raise unavailable(self._address, error) from error
                database.forget_prepared()
            except (*CLASHES, Vanished) as error:
                clashes += 1
                if clashes > _CLASHES:
                    raise unavailable(self._address, error) from error
                time.sleep(random.uniform(0, 0.001 * min(clashes, 20)))  # noqa: S311 - as above
            except psycopg.Error as error:
                end = min(end, time.monotonic() + postgres_database.RIDE_OUT)
                if not is_away(error) or time.monotonic() > end:
                    raise unavailable(self._address, error) from error
                database.drop_dead(began)
                time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - as above

    # -- clocks ---------------------------------------------------------------

    def _now(self) -> float:
        return self._database.now()

    def _lease_clock(self) -> float:
        return self._database.now()

    # -- opening --------------------------------------------------------------

    def _set_up(self, database: Database) -> None:
        """Adopt the database; without a plane, one is made, and one of an older schema is refused."""
        database.check()
        with database.connection(writing=True) as tx:
            version = postgres_schema.version_of(tx, self._address)
            if version.found and not version.pending:
                return
            _, unanswered = self._transact(
                tx, lambda _: postgres_schema.make(tx, self._address), database, making=True
            )
            if unanswered is not None:
                raise unanswered
