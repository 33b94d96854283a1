"""One PostgreSQL connection of a plane: what it may run, and its errors in our words.

Every transaction is named by the database, so that one whose COMMIT was not answered can be asked about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as said
from psycopg.pq import TransactionStatus

from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes import postgres_statements
from lakeshore.planes.engine import Transaction
from lakeshore.planes.postgres_address import Address
from lakeshore.planes.postgres_marks import Marks
from lakeshore.planes.store_producers import Vanished

R = TypeVar("R")
FRAMES = 2000
"""Frames a read takes at a time."""
ROWS = 5000
"""Rows an INSERT for many makes at a time."""
_COLUMNS = ("id", "priority", "key", "parent", "not_before", "envelope")
_LOOKS = frozenset({"claim_ready", "ack_and_claim_ready", "next_due"})
_ENTERING = frozenset({"submit", "submit_many", "requeue", "release", "nack_retry", "promote"})
"""What puts rows among the ready ones."""
CLASHES = (
    said.SerializationFailure,
    said.DeadlockDetected,
    said.UniqueViolation,
    said.ForeignKeyViolation,
)
"""What only says that two transactions met; the one that is told was rolled back whole, and runs again."""
_AWAY = frozenset(
    {
        *("57P01", "57P02", "57P03", "57P05"),  # a server that stops, crashed, starts; an idle session ended
        *("25P03", "25P04"),  # a transaction was idle, or took, too long for the server
        *("25006", "53300"),  # it has handed over to another; too many sessions
        "57014",  # somebody cancelled the statement
    }
)
"""What ends a transaction for no fault of its own, so that it runs again; also all of the class 08."""
MOVED = "LK001"
"""What a database says that was moved to another store (moving_postgres.sql)."""
SILENCE = 60.0
"""A server that has not gone on amid a statement for so long is given up, seconds: it is stopped, or what
lies between is, and still takes what it is sent. Longer than a lock is waited for."""


class Session(psycopg.Connection[Any]):
    """A connection to PostgreSQL on which no answer is waited for without end."""

    def wait(self, gen: Generator[Any, Any, R], *args: Any, **kwargs: Any) -> R:
        """Wait for what psycopg does; raises `psycopg.OperationalError` after `SILENCE`."""
        return super().wait(self._impatient(gen), *args, **kwargs)

    def _impatient(self, gen: Generator[Any, Any, R]) -> Generator[Any, Any, R]:
        try:
            wanted, heard_at = next(gen), time.monotonic()
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard_at = now
                elif now - heard_at > SILENCE:
                    self.close()
                    raise psycopg.OperationalError(f"no answer within {SILENCE:g} s; the line was given up")
                wanted = gen.send(ready)
        except StopIteration as done:
            return cast(R, done.value)


class Connection(Transaction):
    """What a verb runs within a transaction, or a read.

    Parameters
    ----------
    raw : psycopg.Connection
        In autocommit mode: a transaction begins and ends by statements of ours.
    writing : bool
        Whether rows that are looked at are held until the commit.
    clock : callable
        The database's time as this process knows it.
    marks : Marks
        Where looks at queues begin.
    trip : float
        What a round trip takes at least, seconds.
    pooled : bool
        Whether a transaction is to bring along what a session of its own was started with.
    """

    takes = True

    def __init__(
        self,
        raw: Session,
        *,
        writing: bool,
        clock: Callable[[], float],
        marks: Marks | None = None,
        trip: float = 0.0,
        pooled: bool = False,
    ) -> None:
        self.raw, self.topics = raw, list[str]()
        self._sql = postgres_statements.load(writing=writing)
        self._cursor = raw.cursor(binary=True)
        self._clock = clock
        self._pooled, self._marks, self._trip = pooled, marks or Marks(), trip
        self._entered: list[tuple[str, str | None, float | None]] = []
        self.xid: str | None = None
        self.span: str | None = None

    def begin(self, *, making: bool = False) -> tuple[float, float]:
        """Begin a transaction; returns the database's clock, and this machine's monotonic one beside it."""
        asked = time.monotonic()
        cursor = self.raw.execute(self._sql["begin_making" if making else "begin"])
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        self.xid, self.span = str(row[0]), row[2]
        if self._pooled:
            self.raw.execute(self._sql["settle"])
        if self.span is None:
            self.rows("new_span", {})  # the first write since the server crashed
        return float(row[1]), (asked + time.monotonic()) / 2

    def commit(self) -> None:
        """Commit; raises what the database says, which may be nothing at all."""
        self.raw.execute(self._sql["commit"])
        self._take_marks_back()

    def roll_back(self) -> None:
        """Undo the transaction, if there is still one to undo."""
        if not self.raw.closed and self.raw.info.transaction_status is not TransactionStatus.IDLE:
            self.raw.execute(self._sql["rollback"])

    def _run(self, name: str, params: dict[str, Any]) -> psycopg.Cursor[Any]:
        cursor = self._cursor.execute(self._sql[name], {**_without_nul(params), "asked": self._clock()})
        if name in _ENTERING:
            top = max(params["priority_each"]) if name == "submit_many" else params.get("priority")
            self._entered.append((params["ns"], params.get("queue"), top))
            if self.raw.info.transaction_status is TransactionStatus.IDLE:
                self._take_marks_back()
        return cursor

    def rows(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run the statement `name` and return all its rows."""
        if name in _LOOKS:
            return self._looked(name, params)
        cursor = self._run(name, params)
        return cursor.fetchall() if cursor.description else []

    def _looked(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a look at a queue from its mark on, or whole; a claim leaves its mark where it ended."""
        peek, again = name == "next_due", False
        while True:
            look = self._marks.look(params["ns"], params["queue"], self._clock(), peek=peek, wholly=again)
            rows = self._run(name, {**params, **look.params}).fetchall()
            if peek:
                self._marks.peeked(look, ready=bool(rows[0][2]))
                return rows
            taken = [row for row in rows if row[1] is not None]
            last = (taken[-1][7], taken[-1][1]) if taken else None
            done, fused = bool(rows[0][0]), name != "claim_ready"
            # The first column: of the one that more is due, of the other that the job was ended.
            again = self._marks.looked(look, last, due=done is not fused, trip=self._trip, committed=fused)
            if fused or not again:
                return [row[:7] for row in rows]

    def _take_marks_back(self) -> None:
        entered, self._entered = self._entered, []
        for each in entered:
            self._marks.entered(*each)

    def changed(self, name: str, params: dict[str, Any]) -> int:
        """Run the statement `name` and return how many rows it changed."""
        return self._run(name, params).rowcount

    def added(self, name: str, params: dict[str, Any]) -> int | None:
        """Run the INSERT `name` and return the new row's number, or None when it added none."""
        row = self._run(name, params).fetchone()
        return None if row is None else int(row[0])

    def added_many(self, name: str, params: Sequence[dict[str, Any]]) -> list[int | None]:
        """Run the INSERT `name` for each, in order, by a statement for many; as `added` answers each."""
        ids = {each["id"] for each in params}
        if len(ids) < len(params) or len(params) == 1:  # its answer names rows by their ids
            return [self.added(name, each) for each in params]
        seqs: dict[str, int] = {}
        for start in range(0, len(params), ROWS):
            some = params[start : start + ROWS]
            columns = {f"{column}_each": [each[column] for each in some] for column in _COLUMNS}
            seqs.update({id: seq for seq, id in self.rows(f"{name}_many", {**some[0], **columns})})
        return [seqs.get(each["id"]) for each in params]

    def take(self, params: dict[str, Any], n: int, *, newest: bool = False) -> list[tuple[Any, ...]] | None:
        """Claim up to `n` ready rows by one statement; None when others are due as well."""
        rows = self.rows("claim_newest_ready" if newest else "claim_ready", {**params, "n": n})
        if rows[0][0]:
            return None
        return [row[1:] for row in rows if row[1] is not None]

    def run_many(self, name: str, params: Iterable[dict[str, Any]]) -> None:
        """Run the statement `name` once for each set of parameters."""
        asked = self._clock()
        self._cursor.executemany(self._sql[name], [{**each, "asked": asked} for each in params])

    def frames(self, params: dict[str, Any], max_bytes: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Run the statement ``frames`` until it ends or `max_bytes` are read; True when it had ended."""
        taken = self.rows("frames", {**params, "max_bytes": max_bytes, "n": FRAMES})
        whole = len(taken) < FRAMES and sum(len(body) for _, body in taken) < max_bytes
        return [(seq, bytes(body)) for seq, body in taken], whole

    def ring(self, *topics: str) -> None:
        """Ring these topics once the transaction has committed."""
        self.topics += topics


def _without_nul(params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters whose error texts hold no NUL, which this engine's text cannot."""
    odd = {name: text for name in ("error", "traceback") if "\0" in (text := params.get(name) or "")}
    return {**params, **{name: text.replace("\0", "\\x00") for name, text in odd.items()}} if odd else params


def is_away(error: Exception) -> bool:
    """Whether the server or the way to it is gone, so that another connection may do."""
    if isinstance(error, psycopg.Error) and error.sqlstate in _AWAY:
        return True
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    # Without a SQLSTATE it was no server that spoke, but the connection that broke.
    return error.sqlstate is None or error.sqlstate.startswith("08")


def unavailable(address: Address, error: Exception) -> DispatchError:
    """Say in our words what PostgreSQL or psycopg said, with host and database, and the way out."""
    text = address.without_secrets(" ".join(str(error).split()) or type(error).__name__)
    start = f"{address}: {text}"
    if isinstance(error, psycopg.Error) and error.sqlstate == MOVED:
        return PlaneUnavailable(f"{address}: {error.diag.message_primary}")
    if isinstance(error, Vanished):
        return PlaneUnavailable(
            f"{address}: the number that a new job gets is taken, as after a restore without sequences. Call "
            "setval('lakeshore.invocation_seq_seq', …) with the highest seq of lakeshore.invocation. Nothing "
            "was submitted."
        )
    if isinstance(error, (said.DuplicateTable, said.DuplicateObject, said.DuplicateFunction)):
        return PlaneUnavailable(
            f"{start}. The schema lakeshore holds what another program made: give lakeshore a database of "
            "its own."
        )
    if isinstance(error, said.RaiseException):
        return PlaneUnavailable(
            f"{start}. A trigger that is not lakeshore's refuses this: look for it on the tables of the "
            "schema lakeshore."
        )
    if isinstance(error, said.DiskFull):
        return PlaneUnavailable(f"{start}. Make space and try again. Nothing acknowledged is lost.")
    if isinstance(error, said.QueryCanceled):
        return PlaneUnavailable(
            f"{start}. Statements are cancelled there again and again: look for a statement_timeout of the "
            "role, database or pooler, and for who cancels them."
        )
    if isinstance(error, said.LockNotAvailable):
        return PlaneUnavailable(
            f"{start}. Another session holds a lock: find it in pg_stat_activity, end it, and try again."
        )
    if isinstance(error, said.InsufficientPrivilege):
        return PlaneUnavailable(
            f"{start}. The role must own the schema lakeshore, or be allowed to create it (GRANT CREATE ON "
            "DATABASE), or be granted what docs/postgres.md lists."
        )
    if isinstance(error, (said.UndefinedTable, said.InvalidSchemaName, said.UndefinedColumn)):
        return PlaneUnavailable(
            f"{start}. The tables of the schema lakeshore were altered or dropped: restore a backup, or drop "
            "the schema (a new one is made)."
        )
    if is_away(error) or isinstance(error, psycopg.OperationalError):
        return PlaneUnavailable(
            f"{start}. Check that the server runs and takes this address, role and password, then try again. "
            "Nothing acknowledged is lost."
        )
    return DispatchError(f"{start}. This is a fault of lakeshore; please report it.")
