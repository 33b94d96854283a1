"""`Dispatch`: the plane that is one SQLite file, or `:memory:`; the only door to apsw.

The file's rules: never two SQLite libraries on it in one process, never a plain `open()` of it, its
-wal or its -shm while a plane is open (closing would drop SQLite's locks), every write in
`BEGIN IMMEDIATE` and in its turn. Rows are power-safe (`synchronous=FULL`), what is derived from them is
process-safe (`NORMAL`); both share one WAL, so a durable commit also covers the frames before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import apsw

from lakeshore import settings
from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes import doorbell, sqlite_turn, statements
from lakeshore.planes.contract import check_name
from lakeshore.planes.sqlite_files import boot_id, is_own, make_private, refuse_network
from lakeshore.planes.store import Store, Transaction

APPLICATION_ID = 0x6C6B7368
"""``"lksh"``, in the file's header: this file is a plane of ours."""
SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0
WAL_LIMIT_BYTES = 64 * 1024 * 1024
_SAFE_SQLITE = (3, 51, 3)
_SAFE_BACKPORTS = ((3, 50, 7), (3, 44, 6))
_FORK_PATIENCE = 35.0
_READS_PATIENCE = 5.0

T = TypeVar("T")
_planes: weakref.WeakSet[Dispatch] = weakref.WeakSet()


class _Connection(Transaction):
    """One SQLite connection, and the bells to ring after its transaction."""

    __slots__ = ("_execute", "_sql", "raw", "topics")

    def __init__(self, raw: apsw.Connection, sql: dict[str, str]) -> None:
        self.raw, self._sql, self._execute = raw, sql, raw.execute
        self.topics: list[str] = []

    def rows(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run the statement `name` and return all its rows."""
        return self._execute(self._sql[name], params).fetchall()

    def run_many(self, name: str, params: Iterable[dict[str, Any]]) -> None:
        """Run the statement `name` once for each set of parameters."""
        self.raw.executemany(self._sql[name], params)

    def ring(self, *topics: str) -> None:
        """Ring these topics once the transaction has committed."""
        self.topics += topics


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
        When `ns` is malformed.

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
        _refuse_old_sqlite()
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError(f"path {path!r}: wants a file's path, or ':memory:'")
        self._ns = check_name(ns, "ns")
        self._path = None if text == ":memory:" else Path(text).expanduser().absolute()
        self._durable = durable
        self._sql = statements.load("verbs.sql", "sqlite.sql")
        self._seen: dict[tuple[str, str], float] = {}
        self._closed: str | None = None
        self._pool_lock = threading.Condition(threading.Lock())
        self._readers: list[_Connection] = []
        self._reading = 0
        self._rows: _Connection | None = None
        self._frames: _Connection | None = None
        self._boot = boot_id()
        self._turn = sqlite_turn.turn_for(None)
        if self._path is None:
            self._bells = doorbell.belfry(None)
            self._rows = self._frames = self._open()
            self._create(self._rows.raw)
        else:
            self._open_file(self._path)
        _planes.add(self)

    def __repr__(self) -> str:
        where = ":memory:" if self._path is None else str(self._path)
        return f"Dispatch({where!r}, ns={self._ns!r})"

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
        if self._closed:
            return
        with self._turn.lock:
            self._closed = "it was closed"
            self._drop_connections()
        self._bells.close()
        _planes.discard(self)

    # -- transactions ---------------------------------------------------------

    def _write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        turn = self._turn
        turn.announce()
        with turn.lock:
            try:
                turn.queue_up()
                tx = self._writer(durable)
                answer, topics = self._transact(tx, work), tx.topics
            finally:
                turn.leave()
        turn.yield_to_others()
        if topics:
            self._bells.ring(list(dict.fromkeys(topics)))
        return answer

    def _transact(self, tx: _Connection, work: Callable[[Transaction], T]) -> T:
        raw, tx.topics = tx.raw, []
        try:
            if raw.in_transaction:  # an interrupt struck between two statements
                raw.execute("ROLLBACK")
            raw.execute("BEGIN IMMEDIATE")
            answer = work(tx)
            raw.execute("COMMIT")
        except BaseException as error:
            if raw.in_transaction:
                with contextlib.suppress(apsw.Error):  # a failed commit may have rolled back itself
                    raw.execute("ROLLBACK")
            if isinstance(error, apsw.Error):
                raise self._unavailable(error) from error
            raise
        return answer

    def _read(self, work: Callable[[Transaction], T]) -> T:
        if self._path is None:
            with self._turn.lock:
                return work(self._writer(True))
        with self._reader() as tx:
            try:
                return work(tx)
            except apsw.Error as error:
                raise self._unavailable(error) from error

    def _writer(self, durable: bool) -> _Connection:
        """Return the connection for rows or for frames, opening it when needed; within a turn."""
        self._check_usable()
        if durable and self._durable:
            if self._rows is None:
                self._rows = self._open("FULL")
            return self._rows
        if self._frames is None:
            self._frames = self._open("NORMAL")
        return self._frames

    @contextlib.contextmanager
    def _reader(self) -> Iterator[_Connection]:
        self._check_usable()
        with self._pool_lock:
            tx = self._readers.pop() if self._readers else None
            self._reading += 1
        try:
            if tx is None:
                tx = self._open()
            yield tx
        finally:
            with self._pool_lock:
                self._reading -= 1
                if tx is not None:
                    self._readers.append(tx)
                self._pool_lock.notify_all()

    def _check_usable(self) -> None:
        if self._closed:
            raise DispatchError(f"{self!r} cannot be used: {self._closed}. Make a new Dispatch.")

    def _lease_epoch(self) -> str:
        return self._boot

    # -- opening --------------------------------------------------------------

    def _open_file(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise PlaneUnavailable(
                f"open: the directory {str(path.parent)!r} does not exist. Make it, or name another file."
            )
        if not settings.read().allow_network_fs:
            refuse_network(path.parent)
        try:
            make_private(path)
            self._turn = sqlite_turn.turn_for(path)
            self._bells = doorbell.belfry(path.with_name(f"{path.name}-bells"))
            with self._turn.lock:
                try:
                    self._turn.queue_up()
                    self._retry(self._set_up)
                finally:
                    self._turn.leave()
        except apsw.Error as error:
            self._drop_connections()
            raise self._unavailable(error) from error
        except OSError as error:
            raise PlaneUnavailable(
                f"open: {str(path)!r}: {error.strerror or error}. {self._way_out(error.errno == 28)}"
            ) from error

    def _set_up(self) -> None:
        """Adopt the file: ours already, or empty and now made ours; anything else is refused."""
        if self._frames is None:
            self._frames = self._open("NORMAL")
        raw = self._frames.raw
        with contextlib.closing(raw.execute("PRAGMA journal_mode=WAL")) as mode:
            if mode.fetchall() != [("wal",)]:
                raise PlaneUnavailable(f"open: {str(self._path)!r} cannot use a WAL. Use a local directory.")
        raw.execute("BEGIN IMMEDIATE")
        try:
            self._create(raw)
            raw.execute(self._sql["claim_other_boots"], {"boot": self._boot})
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise

    def _create(self, raw: apsw.Connection) -> None:
        application = raw.pragma("application_id")
        version = raw.pragma("user_version")
        if application == APPLICATION_ID:
            if version > SCHEMA_VERSION:
                raise PlaneUnavailable(
                    f"open: {str(self._path)!r} was made by a newer lakeshore (schema {version}, this one "
                    f"knows {SCHEMA_VERSION}). Upgrade: pip install -U jupyter-lakeshore."
                )
            return
        if application != 0 or raw.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
            raise PlaneUnavailable(
                f"open: {str(self._path)!r} is another program's database. Name another file; nothing was "
                "written to this one."
            )
        raw.execute(self._sql["schema"])
        raw.pragma("application_id", APPLICATION_ID)
        raw.pragma("user_version", SCHEMA_VERSION)

    def _open(self, synchronous: str = "NORMAL") -> _Connection:
        name = ":memory:" if self._path is None else str(self._path)
        raw = apsw.Connection(
            name, flags=apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if self._path is None else 0)
        )
        raw.set_busy_handler(_Patience())
        raw.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        raw.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        raw.pragma("synchronous", synchronous)
        raw.pragma("journal_size_limit", WAL_LIMIT_BYTES)
        return _Connection(raw, self._sql)

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

    # -- failures -------------------------------------------------------------

    def _unavailable(self, error: apsw.Error) -> Exception:
        """Say in our words what SQLite said, with the file and the way out."""
        name = ":memory:" if self._path is None else str(self._path)
        said = f"{name!r}: {error}"
        if isinstance(error, (apsw.BusyError, apsw.LockedError)):
            return PlaneUnavailable(
                f"{said}: another process has held its write lock for {BUSY_SECONDS:g} s. "
                "Find it (an open transaction in a database viewer, a backup) and end it, then try again."
            )
        if isinstance(error, apsw.NotADBError):
            return PlaneUnavailable(
                f"{said}. It is no lakeshore database: move it away, or name another file."
            )
        if isinstance(error, apsw.CorruptError):
            return PlaneUnavailable(
                f"{said}. The file is damaged: keep a copy, then move it away (a new one is made) or "
                "restore a backup."
            )
        full = isinstance(error, apsw.FullError)
        if full or isinstance(
            error, (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)
        ):
            return PlaneUnavailable(f"{said}. {self._way_out(full)}")
        return DispatchError(f"{said}. This is a fault of lakeshore; please report it.")

    def _way_out(self, full: bool) -> str:
        advice = "Make space and try again" if full else "Check the directory, its permissions and its disk"
        if self._path == settings.read().database:
            advice += ", or set LAKESHORE_HOME to another local directory"
        return f"{advice}. Nothing acknowledged is lost."

    # -- fork -----------------------------------------------------------------

    def _drop_connections(self) -> None:
        with self._pool_lock:
            self._close_connections()

    def _close_connections(self, *, checkpoint: bool = True) -> None:
        connections = {tx for tx in (self._rows, self._frames, *self._readers) if tx is not None}
        self._rows = self._frames = None
        self._readers = []
        for tx in connections:
            if not checkpoint:
                tx.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            tx.raw.close()

    def _before_fork(self) -> None:
        """Turn reads away until `_after_fork`; writes already wait for their turn."""
        if self._path is None:
            return
        self._pool_lock.acquire()
        self._pool_lock.wait_for(lambda: self._reading == 0, _READS_PATIENCE)
        self._close_connections(checkpoint=False)

    def _after_fork(self, *, child: bool) -> None:
        if self._path is None:
            if child:
                self._turn.renew()
                self._closed = "a :memory: plane does not outlive a fork"
            return
        if child:
            self._pool_lock = threading.Condition(threading.Lock())
            self._reading = 0
            self._seen = {}
            self._bells.close()
        else:
            self._pool_lock.release()


class _Patience:
    """A busy handler that waits in Python, so that Ctrl-C ends it."""

    def __init__(self) -> None:
        self._end = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._end = now + BUSY_SECONDS
        if now > self._end:
            return False
        time.sleep(min(0.0002 * 2 ** min(tries, 6), 0.01))
        return True


def _refuse_old_sqlite() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version >= _SAFE_SQLITE or any(version[:2] == v[:2] and version >= v for v in _SAFE_BACKPORTS):
        return
    raise PlaneUnavailable(
        f"open: SQLite {apsw.sqlite_lib_version()} can lose committed writes when processes share a file. "
        "Upgrade: pip install -U apsw."
    )


class _Fork:
    """SQLite's locks belong to the process, so no connection may be open across a fork.

    New calls are turned away first, calls in flight end, every connection and side-lock descriptor
    closes; parent and child open again at their next call.
    """

    def __init__(self) -> None:
        self._held: list[sqlite_turn.Turn] = []
        self._forked: list[Dispatch] = []

    def before(self) -> None:
        self._forked = list(_planes)
        memory = [plane._turn for plane in self._forked if plane._path is None]
        self._held = [
            turn for turn in (*sqlite_turn.all_turns(), *memory) if turn.lock.acquire(timeout=_FORK_PATIENCE)
        ]
        for plane in self._forked:
            plane._before_fork()
        for turn in self._held:
            turn.close_for_fork()

    def in_parent(self) -> None:
        for plane in self._forked:
            plane._after_fork(child=False)
        for turn in self._held:
            turn.lock.release()

    def in_child(self) -> None:
        doorbell.forget_in_child()
        for plane in self._forked:
            plane._after_fork(child=True)
        for turn in self._held:
            turn.renew()


if hasattr(os, "register_at_fork"):
    _fork = _Fork()
    os.register_at_fork(before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child)
