"""A SQLite file that is moved, or moved to: one side of `planes/moving.py`.

It is opened as the plane opens it (a private file, a local disk, nothing foreign beside it), but on
connections of its own: rows stream through one while the other writes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from lakeshore import settings
from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes import migrations, sqlite_schema, statements
from lakeshore.planes.moving_side import (
    CLOSED,
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
from lakeshore.planes.sqlite import PAGE_BYTES
from lakeshore.planes.sqlite_connection import Connection, refuse_old_sqlite, unavailable
from lakeshore.planes.sqlite_files import boot_id, make_private, refuse_foreign, refuse_network
from lakeshore.planes.store_within import RESERVED


class SqliteSide(Side):
    """A file.

    Parameters
    ----------
    path : Path
        The file; as a target it is made when missing.
    is_target : bool
        Whether it is moved to.
    """

    def __init__(self, path: Path, *, is_target: bool = False) -> None:
        refuse_old_sqlite()
        self._path = path.expanduser().absolute()
        self.shown = str(self._path.resolve())
        self._is_target = is_target
        self._sql = statements.load("moving_sqlite.sql")
        self._writer: Connection | None = None
        self._held = False

    def look(self) -> Gate | None:
        """Open or make the file, and read its gate; see `Side.look`."""
        if not self._path.parent.is_dir():
            raise PlaneUnavailable(
                f"open: the directory {str(self._path.parent)!r} does not exist. Make it, or name another."
            )
        if not settings.read().allow_network_fs:
            refuse_network(self._path.parent)
        if not self._path.exists():
            if not self._is_target:
                raise PlaneUnavailable(f"open: there is no file {str(self._path)!r}. Check the path.")
            return None
        with self._saying():
            tx = self._opened()
            if tx.raw.pragma("user_version") == CLOSED:
                return self._gate(tx)
            if not sqlite_schema.is_plane(tx.raw, self._path):
                if self._is_target:
                    return None
                raise PlaneUnavailable(f"open: {str(self._path)!r} is empty: nothing to move.")
            found, newest = tx.raw.pragma("user_version"), migrations.newest("sqlite")
            if found != newest:
                raise PlaneUnavailable(
                    f"open: {str(self._path)!r} is of schema {found}, and {newest} is the newest. Bring it "
                    "up to date first: lakeshore db migrate."
                )
        return None

    def is_same(self, other: Side) -> bool:
        """Whether both are one file, by whatever name: a link of either kind is one."""
        if not isinstance(other, SqliteSide):
            return False
        try:
            return self._path.samefile(other._path)
        except FileNotFoundError:
            return self.shown == other.shown
        except OSError as error:
            raise PlaneUnavailable(f"open: {self.shown!r}: {error.strerror or error}.") from error

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Hold the write lock."""
        with self._saying():
            tx = self._opened()
            tx.execute("BEGIN IMMEDIATE")
            self._held = True
            try:
                yield
            finally:
                self._held = False
                if tx.raw.in_transaction:
                    tx.execute("ROLLBACK")

    def busy(self, ns: str | None) -> Busy:
        """Return who works at it."""
        with self._saying():
            tx = self._opened()
            running = tx.rows("running", {"ns": ns, "boot": boot_id(), "mono": time.monotonic()})
            seen = tx.rows("present", {"ns": ns, "since": time.time() - PRESENT_SECONDS})
        names = ("ns", "worker_id", "queue", "host", "pid", "seen_at")
        return Busy(running, [{**dict(zip(names, row, strict=True)), "running": 0} for row in seen])

    def tokens(self) -> list[tuple[str, bytes]]:
        """Return each token's id and what is kept of it."""
        with self._saying():
            return [(id, kept) for id, kept in self._opened().rows("tokens", {"reserved": RESERVED})]

    def counts(self, ns: str | None) -> dict[str, int]:
        """Return how many rows each table has; a frame of another namespace counts too."""
        if not self._has_tables():
            return dict.fromkeys((table.name for table in TABLES), 0)
        with self._saying():
            row = self._opened().rows("counts" if ns is None else "counts_of", {"ns": ns} if ns else {})[0]
        return dict(zip((table.name for table in TABLES), row, strict=True))

    def rows(self, table: Table, which: Selection) -> Iterator[Row]:
        """Yield a table's rows; on the connection that holds the lock, else on one of its own."""
        asked = {"ns": which.ns, "reserved": RESERVED, "tokens": json.dumps(which.tokens)}
        with self._saying():
            tx = self._opened() if self._held else Connection(self._path, self._sql)
            try:
                yield from tx.execute(self._sql[f"rows_{table.name}"], asked)
            finally:
                if not self._held:
                    tx.close(checkpoint=False)

    def put(self, table: Table, gone: list[Row], rows: list[Row]) -> None:
        """Delete and add rows in one transaction."""
        with self._writing() as tx:
            if gone:
                tx.raw.executemany(self._sql[f"remove_{table.name}"], gone)
            tx.raw.executemany(self._sql[f"put_{table.name}"], (row[1:] for row in rows))

    def high(self) -> Row:
        """Return the highest numbers there were."""
        if not self._has_tables():
            return (0, 0)
        with self._saying():
            return self._opened().rows("high", {})[0]

    def last(self) -> Row:
        """Return the highest numbers there are."""
        with self._saying():
            return self._opened().rows("last", {})[0]

    def close_for(self, gate: Gate) -> None:
        """Close it to everybody else; a missing or empty file is made a plane with it."""
        with self._saying():
            if not self._path.exists():
                make_private(self._path)
            tx = self._opened()
            if self._held:
                self._note(tx, gate)
                tx.execute("COMMIT")
                return
            if not self._has_tables():
                tx.raw.pragma("page_size", PAGE_BYTES)
            if tx.raw.pragma("journal_mode", "wal") != "wal":
                raise PlaneUnavailable(f"open: {str(self._path)!r} cannot use a WAL. Use a local directory.")
            with self._writing():
                found = None
                if tx.raw.pragma("user_version") == CLOSED:
                    found = self._gate(tx)
                else:
                    sqlite_schema.make(tx.raw, self._path)
                gate.refuse_other(found, sum(tx.rows("counts", {})[0]), self.shown)
                self._note(tx, gate)

    def _gate(self, tx: Connection) -> Gate:
        rows = tx.rows("gate", {}) if tx.rows("has_gate", {}) else []
        if not rows:
            raise without_note(repr(self.shown))
        return Gate(*rows[0])

    def _note(self, tx: Connection, gate: Gate) -> None:
        if tx.rows("has_gate", {}):
            tx.execute(self._sql["forget_note"])
        else:
            tx.execute(self._sql["close"])
            tx.raw.pragma("user_version", CLOSED)
        told = {"kind": gate.kind, "other": gate.other, "ns": gate.ns, "at": gate.at, "said": gate.said}
        tx.execute(self._sql["note"], told)

    def finish(self, high: Row) -> None:
        """Set the highest numbers and open it to everybody."""
        with self._writing() as tx:
            tx.execute(self._sql["forget_high"])
            tx.execute(self._sql["set_high"], {"seq": high[0], "jid": high[1]})
            tx.execute(self._sql["open"])
            tx.raw.pragma("user_version", migrations.newest("sqlite"))
            try:
                sqlite_schema.is_plane(tx.raw, self._path)
            except PlaneUnavailable as error:
                raise DispatchError(
                    f"migrate: {self.shown} was begun by another version of lakeshore, or altered. "
                    "Delete it, and run this again."
                ) from error

    def close(self) -> None:
        """Close the connections."""
        tx, self._writer = self._writer, None
        if tx is not None:
            with self._saying():
                tx.close()

    # -- connections ------------------------------------------------------------

    def _opened(self) -> Connection:
        if self._writer is None:
            refuse_foreign(self._path)
            self._writer = Connection(self._path, self._sql, "FULL")
            self._writer.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            self._writer.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # this opens -wal and -shm
            refuse_foreign(self._path)
        return self._writer

    def _has_tables(self) -> bool:
        if not self._path.exists():
            return False
        with self._saying():
            return bool(self._opened().raw.pragma("application_id"))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction."""
        with self._saying():
            tx = self._opened()
            tx.execute("BEGIN IMMEDIATE")
            try:
                yield tx
                tx.execute("COMMIT")
            finally:
                if tx.raw.in_transaction:
                    tx.execute("ROLLBACK")
            if tx.checkpoints.due:
                tx.checkpoint(in_turn=True)

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except (apsw.Error, UnicodeDecodeError) as error:
            raise unavailable(self._path, error) from error
        except OSError as error:
            raise PlaneUnavailable(f"open: {str(self._path)!r}: {error.strerror or error}.") from error
