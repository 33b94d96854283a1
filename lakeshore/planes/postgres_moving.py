"""A PostgreSQL database that is moved, or moved to: one side of `planes/moving.py`.

Rows stream through COPY in its binary form, which parses nothing and keeps nothing: one session reads while
another writes. Both are sessions of their own, beside the pool of any plane.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes import migrations, postgres_address, postgres_schema, statements
from lakeshore.planes.moving_side import (
    PRESENT_SECONDS,
    TABLES,
    Busy,
    Gate,
    Row,
    Selection,
    Side,
    Table,
    without_note,
)
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.planes.postgres_connection import Session, unavailable
from lakeshore.planes.postgres_database import Database
from lakeshore.planes.store_within import RESERVED

_TYPES = {
    "invocation": (
        *("int8", "text", "text", "text", "text", "float8", "text", "text", "int8", "int8", "int8"),
        *("text", "text", "float8", "float8", "float8", "text", "float8"),
        *("float8", "text", "text", "bytea", "bytea"),
    ),
    "payload": ("int8", "text", "bytea"),
    "journal": ("int8", "text", "text", "text", "int8", "int8", "int8", "int8", "float8"),
    "frame": ("int8", "int8", "bytea"),
}


T = TypeVar("T")


class _Patient(Session):
    """A session that may be long about an answer: it walks, locks and counts whole tables."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait for what psycopg does, for as long as the line stands."""
        return psycopg.Connection.wait(self, gen, *args, **kwargs)


class PostgresSide(Side):
    """A database.

    Parameters
    ----------
    dsn : str
        Its address, as `PostgresDispatch` takes it.
    is_target : bool
        Whether it is moved to.
    """

    def __init__(self, dsn: str, *, is_target: bool = False) -> None:
        self._dsn = dsn
        self._address = postgres_address.read(dsn)
        self.shown = self._address.shown
        self._is_target = is_target
        self._database = Database(self._address)
        self._sql = statements.load("moving_postgres.sql")
        self._writer: _Patient | None = None
        self._reader: _Patient | None = None
        self._held = False

    def look(self) -> Gate | None:
        """Connect, read the gate, and make a plane where there is none; see `Side.look`."""
        with self._saying():
            raw = self._opened()
            if raw.execute(self._sql["has_gate"]).fetchone():
                if self._is_target and self._one("step") != migrations.newest("postgres"):
                    raise PlaneUnavailable(
                        f"open: {self._address} was begun by another version of lakeshore. Drop its schema "
                        "lakeshore, or name another database, and run this again."
                    )
                return self._gate()
            version = self._version()
        if version.found and version.pending:
            raise PlaneUnavailable(
                f"open: {self._address} is of schema {version.found}, and {version.newest} is the newest. "
                "Bring it up to date first: lakeshore db migrate."
            )
        if not version.found:
            if not self._is_target:
                raise PlaneUnavailable(f"open: {self._address} holds no plane: nothing to move.")
            PostgresDispatch(self._dsn).close()
        return None

    def is_same(self, other: Side) -> bool:
        """Whether both are one database; a database also takes part in one move at a time.

        Raises
        ------
        DispatchError
            When another move is under way in this one.
        """
        with self._saying():
            if not self._one("alone"):
                raise DispatchError(
                    f"migrate: another `lakeshore migrate` is at work in {self.shown}. Wait for it to end."
                )
            if not isinstance(other, PostgresSide):
                return False
            with other._saying():
                return not other._one("alone")

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Lock the tables against writers, and read as of one moment."""
        with self._saying():
            raw = self._opened()
            self._run("begin_still")
            self._held = True
            try:
                yield
            finally:
                self._held = False
                with contextlib.suppress(psycopg.Error):  # it broke: the server rolls back by itself
                    if raw.info.transaction_status is not TransactionStatus.IDLE:
                        raw.execute(self._sql["rollback"])

    def busy(self, ns: str | None) -> Busy:
        """Return who works at it."""
        with self._saying():
            raw = self._opened()
            running = raw.execute(self._sql["running"], {"ns": ns}).fetchall()
            asked = {"ns": ns, "seconds": PRESENT_SECONDS}
            seen = raw.execute(self._sql["present"], asked).fetchall()
        names = ("ns", "worker_id", "queue", "host", "pid", "seen_at")
        return Busy(running, [{**dict(zip(names, row, strict=True)), "running": 0} for row in seen])

    def tokens(self) -> list[tuple[str, bytes]]:
        """Return each token's id and what is kept of it."""
        with self._saying():
            rows = self._opened().execute(self._sql["tokens"], {"reserved": RESERVED}).fetchall()
            return [(id, bytes(kept)) for id, kept in rows]

    def counts(self, ns: str | None) -> dict[str, int]:
        """Return how many rows each table has; a frame of another namespace counts too."""
        with self._saying():
            raw = self._opened()
            row = raw.execute(self._sql["counts" if ns is None else "counts_of"], {"ns": ns}).fetchone()
        assert row is not None
        return dict(zip((table.name for table in TABLES), row, strict=True))

    def rows(self, table: Table, which: Selection) -> Iterator[Row]:
        """Yield a table's rows; in the session that holds the locks, else in a second one."""
        with self._saying():
            raw = self._opened() if self._held else self._reading()
            tokens = ",".join(which.tokens)
            raw.execute(self._sql["ask"], {"ns": which.ns, "reserved": RESERVED, "tokens": tokens})
            with raw.cursor() as cursor, cursor.copy(self._sql[f"rows_{table.name}"].rstrip(";")) as copy:
                copy.set_types(["text", *_TYPES[table.name]])
                yield from copy.rows()

    def put(self, table: Table, gone: list[Row], rows: list[Row]) -> None:
        """Delete and add rows in one transaction."""
        with self._saying(), self._writing("begin_quick") as raw, raw.cursor() as cursor:
            if gone:
                cursor.executemany(self._sql[f"remove_{table.name}"], gone)
            if rows:
                with cursor.copy(self._sql[f"put_{table.name}"].rstrip(";")) as copy:
                    copy.set_types(_TYPES[table.name])
                    for row in rows:
                        copy.write_row(row[1:])

    def high(self) -> Row:
        """Return the highest numbers there were."""
        with self._saying():
            row: Row | None = self._opened().execute(self._sql["high"]).fetchone()
        assert row is not None
        return row

    def last(self) -> Row:
        """Return the highest numbers there are."""
        with self._saying():
            row: Row | None = self._opened().execute(self._sql["last"]).fetchone()
        assert row is not None
        return row

    def close_for(self, gate: Gate) -> None:
        """Close it to everybody else."""
        with self._saying():
            if self._held:
                self._note(gate)
                self._run("commit")
            else:
                with self._writing("begin") as raw:
                    found = self._gate() if self._one("has_gate") else None
                    row = raw.execute(self._sql["counts"]).fetchone()
                    gate.refuse_other(found, sum(row or ()), self.shown)
                    if found is not None and found.kind == "to":
                        self._run("clear")
                    self._note(gate)

    def _note(self, gate: Gate) -> None:
        raw = self._opened()
        if raw.execute(self._sql["has_gate"]).fetchone():
            self._run("forget_note")
        else:
            self._run("close")
        told = {"kind": gate.kind, "other": gate.other, "ns": gate.ns, "at": gate.at, "said": gate.said}
        raw.execute(self._sql["note"], told)

    def settle(self) -> None:
        """Gather statistics."""
        with self._saying():
            self._run("gather")

    def finish(self, high: Row) -> None:
        """Set the highest numbers and open it to everybody."""
        with self._saying(), self._writing("begin") as raw:
            raw.execute(self._sql["set_high"], {"seq": high[0], "jid": high[1]})
            self._run("open")

    def close(self) -> None:
        """Close the sessions."""
        for raw in (self._writer, self._reader):
            if raw is not None:
                raw.close()
        self._writer = self._reader = None
        self._database.close()

    def _gate(self) -> Gate:
        row = self._opened().execute(self._sql["gate"]).fetchone()
        if row is None:
            raise without_note(self.shown)
        return Gate(*row)

    def _version(self) -> postgres_schema.Version:
        with self._database.connection(writing=False) as tx:
            return postgres_schema.version_of(tx, self._address)

    # -- sessions ---------------------------------------------------------------

    def _connect(self) -> _Patient:
        try:
            raw = _Patient.connect(self._database._conninfo(), autocommit=True)
        except psycopg.OperationalError as error:
            if "unsupported startup parameter" not in str(error):
                raise
            raise PlaneUnavailable(
                f"open: {self._address} is a pooler. Give the database's own address: a move needs sessions "
                "of its own."
            ) from error
        self._database._set_up(raw)
        raw.prepare_threshold = (
            None  # each is said a few times, and several of them are more than one statement
        )
        raw.execute(self._sql["session"])
        return raw

    def _opened(self) -> _Patient:
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    def _reading(self) -> _Patient:
        if self._reader is None:
            self._reader = self._connect()
        return self._reader

    def _run(self, name: str) -> None:
        """Run statements without parameters."""
        self._opened().execute(self._sql[name])

    def _one(self, name: str) -> Any:
        row = self._opened().execute(self._sql[name]).fetchone()
        return row is not None and row[0]

    @contextlib.contextmanager
    def _writing(self, begin: str) -> Iterator[_Patient]:
        raw = self._opened()
        self._run(begin)
        try:
            yield raw
            self._run("commit")
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # it broke: the server rolls back by itself
                raw.execute(self._sql["rollback"])
            raise

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into ours."""
        try:
            yield
        except psycopg.Error as error:
            raise unavailable(self._address, error) from error
