"""`Dispatch`: the plane that is one SQLite file, or `:memory:`; with its siblings the only door to apsw.

The file's rules: never two SQLite libraries on it in one process, never a plain `open()` of it, its
-wal or its -shm while a plane is open (closing would drop SQLite's locks), every write in
`BEGIN IMMEDIATE` and in its turn. Rows are power-safe (`synchronous=FULL`), what is derived from them is
process-safe (`NORMAL`); both share one WAL, so a durable commit also covers the frames before it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw

from lakeshore import settings
from lakeshore.errors import CaptureError, DispatchError, PlaneUnavailable
from lakeshore.planes import doorbell, sqlite_fork, sqlite_schema, sqlite_turn, statements
from lakeshore.planes.contract import check_name
from lakeshore.planes.engine import Transaction
from lakeshore.planes.sqlite_connection import (
    BUSY_SECONDS,
    Connection,
    Reader,
    refuse_old_sqlite,
    unavailable,
    way_out,
)
from lakeshore.planes.sqlite_files import (
    bells_of,
    boot_id,
    is_own,
    make_private,
    refuse_foreign,
    refuse_network,
)
from lakeshore.planes.sqlite_place import Place
from lakeshore.planes.store import Store

PAGE_BYTES = 2048
"""Half of SQLite's own choice: a commit writes whole pages, and of small rows this writes a fifth less."""
_READERS_KEPT = 8

T = TypeVar("T")


class Dispatch(Store):
    """A dispatch plane in one SQLite file, shared by every process of this machine.

    Parameters
    ----------
    path : str or path
        The file, made with mode 0600 when missing; ``":memory:"`` (default) is a database of this
        object's own, shared by its threads and gone with `close`.
    ns : str
        The namespace, default ``"default"``.
    durable : bool
        True (default): a row that was acknowledged survives a power cut. False: it survives the
        process and costs a tenth.

    Raises
    ------
    PlaneUnavailable
        When the file cannot be opened, is not a plane, is corrupt, of a newer version, or on a network
        file system. The message holds the way out.
    ValueError
        When `path` or `ns` is malformed.

    Examples
    --------
    >>> from lakeshore import Dispatch
    >>> dp = Dispatch(":memory:")
    >>> dp.submit("gpu", b"payload", id="job-1")
    'job-1'
    >>> dp.claim("gpu", "worker-1").attempt
    1
    """

    def __init__(
        self, path: str | os.PathLike[str] = ":memory:", *, ns: str = "default", durable: bool = True
    ) -> None:
        refuse_old_sqlite()
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError(f"path {path!r}: wants a file's path, or ':memory:'")
        self._ns = check_name(ns, "ns")
        self._path = None if text == ":memory:" else Path(text).expanduser().absolute()
        self._durable = durable
        self._sql = statements.load("verbs.sql", "sqlite.sql")
        self._seen: dict[tuple[str, str], float] = {}
        self._closed: str | None = None
        self._rows: Connection | None = None
        self._frames: Connection | None = None
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._idle: list[Reader] = []
        self._held: list[Reader] = []
        self._forking = False
        self._boot = boot_id()
        self._place: Place | None = None
        if self._path is None:
            self._turn = sqlite_turn.turn_for(None)
            self._bells = doorbell.belfry(None)
            with self._turn.lock:
                sqlite_fork.watch(self)
                self._rows = self._frames = Connection(None, self._sql)
                sqlite_schema.make(self._rows.raw, None)
        else:
            self._open_file(self._path)

    def __repr__(self) -> str:
        where = ":memory:" if self._path is None else str(self._path)
        return f"Dispatch({where!r}, ns={self._ns!r})"

    def __enter__(self) -> Dispatch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise CaptureError(
            f"{self!r} cannot be pickled or copied: a plane does not leave its process. Make one where it "
            "is needed: Dispatch(path)."
        )

    @property
    def path(self) -> Path | None:
        """The file, or None for ``":memory:"``."""
        return self._path

    @property
    def trusted(self) -> bool:
        """True for `:memory:`, and for a file that nobody but this user may write to."""
        return self._path is None or is_own(self._path)

    def close(self) -> None:
        """Close every connection. Verbs after this raise `DispatchError`; a second close does nothing."""
        try:
            with self._turn.lock:
                self._closed = self._closed or "it was closed"
                self._close_writers()
            for reader in list(self._readers):
                with reader.lock:
                    reader.close()
        except apsw.Error as error:  # the last checkpoint failed: the WAL stays, and the next open takes it
            raise unavailable(self._path, error) from error
        self._bells.close()
        self._turn = sqlite_turn.turn_for(None)  # with the last plane on the file, its side file closes too

    # -- transactions ---------------------------------------------------------

    def _write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        turn, me = self._turn, threading.get_ident()
        turn.waiting[me] = None
        try:
            with turn.lock:
                try:
                    turn.take()
                    tx = self._writer(durable)
                    answer = self._transact(tx, work)
                    topics = tx.topics
                    turn.left = time.monotonic()
                finally:
                    turn.leave()
        finally:
            turn.waiting.pop(me, None)
        turn.yield_to_others()
        if topics:
            self._bells.ring(list(dict.fromkeys(topics)))
        # Who wakes nobody (a claim) is waited for himself, and leaves it to the next, unless it is overdue.
        if tx.checkpoints.due and (topics or tx.checkpoints.overdue):
            self._checkpoint(tx)
        return answer

    def _checkpoint(self, tx: Connection) -> None:
        """Copy the WAL back, after the bells: whoever they woke goes on meanwhile."""
        turn = self._turn
        with turn.lock:
            if tx not in (self._rows, self._frames):  # closed meanwhile
                return
            if tx.checkpoint(in_turn=False):
                return
            try:
                turn.take()
                tx.checkpoint(in_turn=True)
            finally:
                turn.leave()

    def _transact(self, tx: Connection, work: Callable[[Transaction], T]) -> T:
        """Run one transaction. What ends it is no Python function, which Ctrl-C could tear apart."""
        raw, tx.topics = tx.raw, []
        try:
            if raw.in_transaction:  # two interrupts struck, one of them within the ROLLBACK below
                tx.execute("ROLLBACK")
            if self._place is not None:
                self._place.check()
            tx.execute("BEGIN IMMEDIATE")
            answer = work(tx)
            tx.execute("COMMIT")
        except BaseException as error:
            try:
                if raw.in_transaction:
                    tx.execute("ROLLBACK")
            except apsw.Error:
                pass  # a failed commit has rolled itself back; `error` says why
            if isinstance(error, (apsw.Error, UnicodeDecodeError)):
                raise unavailable(self._path, error) from error
            raise
        return answer

    def _writer(self, durable: bool) -> Connection:
        """Return the connection for rows or for frames, opening it when needed; within a turn."""
        self._check_usable()
        try:
            if durable and self._durable:
                if self._rows is None:
                    self._rows = self._connect("FULL")
                return self._rows
            if self._frames is None:
                self._frames = self._connect("NORMAL")
            return self._frames
        except apsw.Error as error:
            raise unavailable(self._path, error) from error

    def _read(self, work: Callable[[Transaction], T]) -> T:
        if self._path is None:
            with self._turn.lock:
                return work(self._writer(True))
        while True:
            try:
                reader = self._idle.pop()
            except IndexError:
                reader = Reader()
                self._readers.add(reader)
            with reader.lock:
                if not self._forking:
                    self._check_usable()
                    try:
                        if reader.tx is None:
                            reader.tx = self._connect("NORMAL")
                        if self._place is not None:
                            self._place.check()
                        answer = work(reader.tx)
                    except (apsw.Error, UnicodeDecodeError) as error:
                        raise unavailable(self._path, error) from error
                    if len(self._idle) < _READERS_KEPT:
                        self._idle.append(reader)
                    return answer
            with self._turn.lock:
                pass  # a fork is under way, and holds every turn until it is over

    def _connect(self, synchronous: str) -> Connection:
        """Open a connection to the file; what SQLite reads beside it is ours before and after."""
        assert self._path is not None
        if self._place is not None:
            self._place.check()
        refuse_foreign(self._path)
        tx = Connection(self._path, self._sql, synchronous)
        try:
            tx.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # this opens -wal and -shm
            refuse_foreign(self._path)
            if self._place is not None:
                self._place.opened()
        except BaseException:
            tx.close(checkpoint=False)
            raise
        return tx

    def _check_usable(self) -> None:
        if self._closed:
            raise DispatchError(f"{self!r} cannot be used: {self._closed}. Make a new Dispatch.")

    def _lease_epoch(self) -> str:
        return self._boot

    # -- opening --------------------------------------------------------------

    def _open_file(self, path: Path) -> None:
        try:
            if not path.parent.is_dir():
                raise PlaneUnavailable(
                    f"open: the directory {str(path.parent)!r} does not exist. Make it, or name another file."
                )
            if (path.exists() or path.is_symlink()) and not path.is_file():
                raise PlaneUnavailable(f"open: {str(path)!r} is not a file. Name the plane's file.")
            if not settings.read().allow_network_fs:
                refuse_network(path.parent)
            self._turn = sqlite_turn.turn_for(path)
            with self._turn.lock:
                sqlite_fork.watch(self)
                make_private(path)
                self._place = Place(path)
                self._bells = doorbell.belfry(bells_of(path))
                try:
                    self._turn.take()
                    self._retry(self._set_up)
                except BaseException:
                    self._close_writers()
                    raise
                finally:
                    self._turn.leave()
        except apsw.Error as error:
            raise unavailable(path, error) from error
        except OSError as error:
            raise PlaneUnavailable(
                f"open: {str(path)!r}: {error.strerror or error}. {way_out(path, full=error.errno == 28)}"
            ) from error

    def _set_up(self) -> None:
        """Adopt the file: ours, migrated if older; empty, and made ours: else refused untouched."""
        if self._frames is None:
            self._frames = self._connect("NORMAL")
        raw = self._frames.raw
        if not sqlite_schema.is_plane(raw, self._path):
            raw.pragma("page_size", PAGE_BYTES)
        if raw.pragma("journal_mode", "wal") != "wal":
            raise PlaneUnavailable(f"open: {str(self._path)!r} cannot use a WAL. Use a local directory.")
        raw.execute("BEGIN IMMEDIATE")
        try:
            assert self._path is not None
            refuse_foreign(self._path)  # a file that was no WAL before has its -wal and -shm only now
            sqlite_schema.make(raw, self._path)
            raw.execute(self._sql["claim_other_boots"], {"boot": self._boot})
            if self._place is not None:
                self._place.opened()
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise

    def _retry(self, step: Callable[[], None]) -> None:
        """Take `step` again while another process is setting the same file up."""
        end = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return step()
            except (apsw.BusyError, apsw.LockedError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)

    def _close_writers(self, *, checkpoint: bool = True) -> None:
        """Close the writing connections, within a turn."""
        rows, self._rows = self._rows, None
        frames, self._frames = self._frames, None
        for tx in {rows, frames} - {None}:
            assert tx is not None
            tx.close(checkpoint=checkpoint)

    # -- fork -----------------------------------------------------------------

    def _before_fork(self) -> None:
        """Turn reads away until `_after_fork`, and close; writes wait for their turn, which is held."""
        if self._path is None:
            return
        self._forking = True
        for reader in list(self._readers):
            reader.lock.acquire()
            self._held.append(reader)
            reader.close(checkpoint=False)
        self._close_writers(checkpoint=False)
        if self._place is not None:
            self._place.closed()

    def _after_fork(self, *, child: bool) -> None:
        if self._path is None:
            if child:
                self._closed = "a :memory: plane does not outlive a fork"
                self._bells.renew()
            return
        if child:
            self._readers, self._idle = weakref.WeakSet(), []
            self._seen = {}
            self._bells.renew()
        else:
            for reader in self._held:
                reader.lock.release()
        self._held = []
        self._forking = False
