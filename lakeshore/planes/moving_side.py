"""A side of a move: which tables are moved, why a store may be closed, and what an engine supplies.

What each side gives and takes is rows of plain values, in the order of their keys; the move itself
(`planes/moving.py`) knows no engine.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal

from lakeshore.errors import DispatchError, PlaneUnavailable

Row = tuple[Any, ...]
"""A row of a table, the namespace that it belongs to first."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is moved.

    Attributes
    ----------
    name : str
        Its name in every engine.
    key : int
        How many of the first columns make its key.
    columns : tuple of str
        All its columns.
    """

    name: str
    key: int
    columns: tuple[str, ...]


INVOCATION: Final = (
    *("seq", "ns", "id", "queue", "state", "priority", "key", "parent", "attempt", "fence", "losses"),
    *("worker_id", "after", "submitted_at", "not_before", "lease_until", "lease_boot", "started_at"),
    *("finished_at", "error", "traceback", "result", "envelope"),
)
"""The columns of the rows of jobs."""
TABLES: Final = (
    Table("invocation", 1, INVOCATION),
    Table("payload", 2, ("seq", "part", "body")),
    Table(
        "journal",
        1,
        ("jid", "ns", "id", "stem", "next_seq", "trimmed_to", "attempt_seq", "closed", "posted_at"),
    ),
    Table("frame", 2, ("jid", "seq", "body")),
)
STAYS: Final = {
    "worker": "who asked for jobs there; a worker tells of itself again with its first claim",
    "schema_version": "the version of those tables; the target has its own",
    "migration": "how those tables came to be",
    "frame_day": "the partitions that PostgreSQL keeps frames in; what is moved there lies in the first",
    "span": "names the time since that database's last crash",
    "sqlite_sequence": "the highest numbers, which are set with `set_high`",
}
"""The tables that are not moved, and why."""
CLOSED: Final = 2**31 - 1
"""The version that a store shows to others while it is filled, and after it was moved."""
PRESENT_SECONDS: Final = 30.0
"""A worker that asked for jobs within this time is there."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Why a store is closed.

    Attributes
    ----------
    kind : {"from", "to"}
        It is being filled from `other`; or it was moved to it.
    other : str
        The other store, as it may be shown.
    ns : str or None
        The one namespace that is moved, None for all.
    at : float
        Since when, Unix seconds.
    """

    kind: Literal["from", "to"]
    other: str
    ns: str | None
    at: float

    def refuse_other(self, found: Gate | None, rows: int, shown: str) -> None:
        """Raise `DispatchError` where a target has another gate by now, or has rows and none."""
        if self.kind != "from":
            return
        taken = found is not None and (found.other, found.ns) != (self.other, self.ns)
        if taken or (found is None and rows):
            raise DispatchError(
                f"migrate: the target {shown} was taken by another program just now. Name another target."
            )

    @property
    def said(self) -> str:
        """What whoever comes to the store is told."""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))
        what = "this store" if self.ns is None else f"namespace {self.ns!r} of this store"
        if self.kind == "to":
            return f"{what} was moved to {self.other} on {when}. Go on there."
        return (
            f"this store is being filled from {self.other} since {when}. Wait until `lakeshore migrate` is "
            "through; if it was broken off, run it again."
        )


def without_note(shown: str) -> PlaneUnavailable:
    """Return what is said of a store that is closed, and does not hold why."""
    return PlaneUnavailable(
        f"open: {shown} was closed by `lakeshore migrate`, and its note of where it was moved is gone: it "
        "was altered by hand. Restore a backup."
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are meant: of one namespace with what servers keep about it, or (None) all."""

    ns: str | None = None
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Busy:
    """Who still works at a store: running jobs ``(ns, id, queue, worker)``, and workers that are there."""

    running: Sequence[Row] = ()
    workers: Sequence[dict[str, Any]] = ()

    def __bool__(self) -> bool:
        return bool(self.running or self.workers)


class Side(ABC):
    """A store that is moved, or moved to; each engine has its own (`sqlite_moving`, `postgres_moving`)."""

    shown: str
    """Where it is, without secrets."""

    @abstractmethod
    def look(self) -> Gate | None:
        """Make sure that it is a store of the newest version; returns why it is closed, None when it is not.

        Raises
        ------
        PlaneUnavailable
            When it is none, of another version, or cannot be reached.
        """

    @abstractmethod
    def is_same(self, other: Side) -> bool:
        """Whether both are one store."""

    @abstractmethod
    def still(self) -> AbstractContextManager[None]:
        """Keep everybody else from writing within the block; what is read there is of one moment."""

    @abstractmethod
    def busy(self, ns: str | None) -> Busy:
        """Return who works at it."""

    @abstractmethod
    def tokens(self) -> list[tuple[str, bytes]]:
        """Return each token's id and what is kept of it."""

    @abstractmethod
    def counts(self, ns: str | None) -> dict[str, int]:
        """Return about how many rows each table has, of a namespace or in all."""

    @abstractmethod
    def rows(self, table: Table, which: Selection) -> Iterator[Row]:
        """Yield a table's rows in the order of their keys, few of them in memory."""

    @abstractmethod
    def put(self, table: Table, gone: list[Row], rows: list[Row]) -> None:
        """Delete rows by their keys and add others, in one transaction."""

    @abstractmethod
    def high(self) -> Row:
        """Return the highest number that a row, and that a journal, ever had; 0 where there was none."""

    @abstractmethod
    def last(self) -> Row:
        """Return the highest number that a row, and that a journal, has now."""

    @abstractmethod
    def close_for(self, gate: Gate) -> None:
        """Close it to everybody else, durably; within `still` that ends the block's transaction.

        Raises
        ------
        DispatchError
            When it was filled, or began to be filled from another store, since `look`.
        """

    def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """Do what a filled target wants before it is opened, and may take long."""

    @abstractmethod
    def finish(self, high: Row) -> None:
        """Set the highest numbers and open it to everybody, in one durable transaction."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it, as it is."""
