"""One SQLite connection of a plane: how it is opened, what it may run, and its errors in our words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

from lakeshore import settings
from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes.engine import Transaction

BUSY_SECONDS = 30.0
WAL_LIMIT_BYTES = 64 * 1024 * 1024
CHECKPOINT_PAGES = 1000
"""About 2 MiB of WAL. A checkpoint syncs twice and copies each page once, so rarer would be cheaper; but a
commit into a WAL that is written over, not made longer, syncs in half the time, so it begins anew early."""
_OVERDUE_PAGES = 2000
"""How much longer the WAL may grow where each commit is one that somebody waits for (claims)."""
_RESTART_PAGES = 12_000
"""About 24 MiB: from here on a checkpoint waits for readers: while one always reads, the WAL would grow
without end."""
_RESTART_SECONDS = 0.2
_SAFE_SQLITE = (3, 51, 3)
_SAFE_BACKPORTS = ((3, 50, 7), (3, 44, 6))


class Connection(Transaction):
    """A connection, its statements, and the topics to ring after its transaction.

    Parameters
    ----------
    path : Path or None
        The file, which must exist; None for a database in memory.
    sql : dict
        Statements by name.
    synchronous : {"FULL", "NORMAL"}
        Whether a commit survives a power cut, or only the process.
    """

    def __init__(self, path: Path | None, sql: dict[str, str], synchronous: str = "NORMAL") -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if path is None else 0)
        self.raw = apsw.Connection(":memory:" if path is None else str(path), flags=flags)
        self.patience = _Patience()
        self.raw.set_busy_handler(self.patience)
        self.raw.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        self.raw.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        # Without this SQLite plans anew at each run of a statement whose parameters may meet a partial index.
        self.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.raw.pragma("synchronous", synchronous)
        self.checkpoints = Checkpoints()
        self.raw.set_wal_hook(self.checkpoints)
        self.raw.pragma("journal_size_limit", WAL_LIMIT_BYTES)
        self.execute = self.raw.execute
        self.topics: list[str] = []
        self._sql = sql

    def rows(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run the statement `name` and return all its rows."""
        return self.execute(self._sql[name], params).fetchall()

    # A write asks SQLite how many rows it changed. RETURNING would say it too, but it keeps its answer in a
    # table of its own, made and dropped with each run: a third of the cost of a small write.

    def changed(self, name: str, params: dict[str, Any]) -> int:
        """Run the statement `name` and return how many rows it changed."""
        self.execute(self._sql[name], params)
        return self.raw.changes()

    def added(self, name: str, params: dict[str, Any]) -> int | None:
        """Run the INSERT `name` and return the new row's number, or None when it added none."""
        self.execute(self._sql[name], params)
        return self.raw.last_insert_rowid() if self.raw.changes() else None

    def run_many(self, name: str, params: Iterable[dict[str, Any]]) -> None:
        """Run the statement `name` once for each set of parameters."""
        self.raw.executemany(self._sql[name], params)

    def frames(self, params: dict[str, Any], max_bytes: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Run the statement ``frames`` until it ends or `max_bytes` are read; True when it had ended."""
        taken: list[tuple[int, bytes]] = []
        cursor = self.execute(self._sql["frames"], params)
        for seq, body in cursor:
            taken.append((seq, body))
            max_bytes -= len(body)
            if max_bytes <= 0:
                cursor.close(True)
                return taken, False
        return taken, True

    def ring(self, *topics: str) -> None:
        """Ring these topics once the transaction has committed."""
        self.topics += topics

    def checkpoint(self, *, in_turn: bool) -> bool:
        """Copy the WAL back into the file; True when all was copied, and the next write begins it anew.

        Out of turn others write meanwhile, so something is left; within it nothing is, but for what a
        reader still needs, and for readers it waits (a little) only once the WAL is long.
        """
        pages, copied = self.checkpoints.pages, -1
        restart = in_turn and pages >= _RESTART_PAGES
        mode = apsw.SQLITE_CHECKPOINT_RESTART if restart else apsw.SQLITE_CHECKPOINT_PASSIVE
        self.patience.seconds = _RESTART_SECONDS
        try:
            pages, copied = self.raw.wal_checkpoint(mode=mode)
        except apsw.Error:
            pass  # the commits stand; a later checkpoint, or the next open, copies them
        finally:
            self.patience.seconds = BUSY_SECONDS
        self.checkpoints.made(pages, whole=copied == pages)
        return copied == pages

    def close(self, *, checkpoint: bool = True) -> None:
        """Close it; without a checkpoint the WAL is left as it is, also by the last connection."""
        if not checkpoint:
            self.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.raw.close()


class Reader:
    """A place for a reading connection. Who reads holds `lock`, and so does who closes it."""

    __slots__ = ("__weakref__", "lock", "tx")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tx: Connection | None = None

    def close(self, *, checkpoint: bool = True) -> None:
        """Close the connection, within `lock`; the next read opens another."""
        tx, self.tx = self.tx, None
        if tx is not None:
            tx.close(checkpoint=checkpoint)


class _Patience:
    """A busy handler that waits in Python, so that Ctrl-C ends it."""

    def __init__(self) -> None:
        self.seconds = BUSY_SECONDS
        self._end = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._end = now + self.seconds
        if now > self._end:
            return False
        time.sleep(min(0.0002 * 2 ** min(tries, 6), 0.01))
        return True


class Checkpoints:
    """When the WAL has grown enough to be copied back into the file; SQLite tells its pages at each commit.

    Attributes
    ----------
    pages : int
        What the WAL held at the last commit of this connection.
    """

    __slots__ = ("_next", "pages")

    def __init__(self) -> None:
        self._next, self.pages = CHECKPOINT_PAGES, 0

    def __call__(self, raw: apsw.Connection, name: str, pages: int) -> int:
        """Note the WAL's pages after a commit; called by SQLite, within it."""
        self.pages = pages
        if pages < CHECKPOINT_PAGES:
            self._next = CHECKPOINT_PAGES
        return apsw.SQLITE_OK

    @property
    def due(self) -> bool:
        """Whether one is to be made now."""
        return self.pages >= self._next

    @property
    def overdue(self) -> bool:
        """Whether it can wait no longer."""
        return self.pages >= self._next + _OVERDUE_PAGES

    def made(self, pages: int, *, whole: bool) -> None:
        """Note one that was made. Where it left something, the next is not at each commit from here on."""
        self.pages = 0 if whole else pages
        self._next = CHECKPOINT_PAGES if whole else pages + CHECKPOINT_PAGES // 4


def refuse_old_sqlite() -> None:
    """Refuse a SQLite with the WAL-reset bug.

    Raises
    ------
    PlaneUnavailable
        Naming the version and the upgrade.
    """
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version >= _SAFE_SQLITE or any(version[:2] == v[:2] and version >= v for v in _SAFE_BACKPORTS):
        return
    raise PlaneUnavailable(
        f"open: SQLite {apsw.sqlite_lib_version()} can lose committed writes when processes share a file. "
        "Upgrade: pip install -U apsw."
    )


def unavailable(path: Path | None, error: apsw.Error | UnicodeDecodeError) -> DispatchError:
    """Say in our words what SQLite said, with the file and the way out."""
    said = f"{':memory:' if path is None else str(path)!r}: {error}"
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return PlaneUnavailable(
            f"{said}: another process has held its write lock for {BUSY_SECONDS:g} s. "
            "Find it (an open transaction in a database viewer, a backup) and end it, then try again."
        )
    if isinstance(error, apsw.NotADBError):
        return PlaneUnavailable(f"{said}. It is no lakeshore database: move it away, or name another file.")
    if isinstance(error, (apsw.CorruptError, UnicodeDecodeError)):
        return PlaneUnavailable(
            f"{said}. The file is damaged: keep a copy, then move it away (a new one is made) or "
            "restore a backup."
        )
    extended = getattr(error, "extendedresult", None)  # not in apsw's stubs
    if extended == apsw.SQLITE_CONSTRAINT_TRIGGER:
        return PlaneUnavailable(said)  # the store was moved, and says where to (moving_sqlite.sql)
    full = isinstance(error, apsw.FullError)
    unusable = (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)
    if full or isinstance(error, unusable):
        return PlaneUnavailable(f"{said}. {way_out(path, full=full)}")
    return DispatchError(f"{said}. This is a fault of lakeshore; please report it.")


def way_out(path: Path | None, *, full: bool) -> str:
    """Return what to do about a file that cannot be used."""
    advice = "Make space and try again" if full else "Check the directory, its permissions and its disk"
    if path is not None and path == settings.read().database:
        advice += ", or set LAKESHORE_HOME to another local directory"
    return f"{advice}. Nothing acknowledged is lost."
