"""Moving a store into another: every row as it is, exactly once, though it is killed at any point.

The source stands still while it is read, and both are walked in the order of their keys, so that what the
target has already is passed over and what differs is put right: going on after a kill, running twice and
moving back are one and the same. Until all is verified the target is closed to everybody else, and the source
from then on: at no moment can a job be claimed from both.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from lakeshore.errors import DispatchError
from lakeshore.planes import protocol
from lakeshore.planes.moving_side import (
    INVOCATION,
    PRESENT_SECONDS,
    TABLES,
    Busy,
    Gate,
    Row,
    Selection,
    Side,
    Table,
)
from lakeshore.planes.store_within import RESERVED
from lakeshore.states import State

Show = Callable[[str, int, int | None], object]
"""Told what is being done, how many rows of how many are through (None: not known)."""
_BATCH_ROWS: Final = 5_000
_BATCH_BYTES: Final = 8_000_000
_SHOWN_EVERY: Final = 1_000
_STATE, _TEXTS = INVOCATION.index("state") + 1, ("error", "traceback")
_FLOATS: Final = tuple(
    INVOCATION.index(name) + 1
    for name in ("priority", "submitted_at", "not_before", "started_at", "finished_at")
)
_TEXT_AT: Final = tuple(INVOCATION.index(name) + 1 for name in _TEXTS)
_LEASE: Final = slice(INVOCATION.index("lease_until") + 1, INVOCATION.index("lease_boot") + 2)


class Tally:
    """Counts and digests of the rows of one side, by namespace and table."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[Any]] = {}
        self.rows = 0
        self.body_bytes = 0

    def add(self, table: Table, row: Row) -> None:
        """Count a row: its digest goes over its values in an exact form that every engine gives back."""
        kept = self._kept.get((row[0] or "", table.name))
        if kept is None:
            kept = self._kept[row[0] or "", table.name] = [0, hashlib.blake2b(digest_size=16)]
        packed: bytes = msgpack.packb(row[1:])
        kept[0] += 1
        kept[1].update(packed)
        self.rows += 1
        self.body_bytes += len(packed)

    def told(self) -> dict[tuple[str, str], tuple[int, str]]:
        """Return ``{(namespace, table): (rows, digest)}``."""
        return {place: (kept[0], kept[1].hexdigest()) for place, kept in sorted(self._kept.items())}


@dataclass(slots=True)
class Moved:
    """What a move did.

    Attributes
    ----------
    rows : dict
        ``{(namespace, table): (rows, digest)}``, the same on both sides.
    copied, removed : int
        Rows that were written to the target, and taken out of it.
    payload_bytes : int
        What the rows hold.
    seconds : float
        How long it took.
    closed : bool
        Whether the source is closed now.
    keeps_files : bool
        Whether a server keeps files beside the store.
    already : bool
        Whether there was nothing to do: it was moved before, and the target may have gone on since.
    """

    rows: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    copied: int = 0
    removed: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    closed: bool = False
    keeps_files: bool = False
    already: bool = False


def plain(table: Table, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows in the form in which engines agree.

    A claim is a lapsed one in the other store, whose clock is another; -0.0 is 0.0, which a file does not
    tell apart; a NUL in an error's text is spelt out, as PostgreSQL's plane does.
    """
    if table.name != "invocation":
        yield from rows
        return
    for row in rows:
        new = list(row)
        new[_LEASE] = (0.0, "") if row[_STATE] == State.RUNNING else (None, None)
        for at in _FLOATS:
            if new[at] is not None:
                new[at] += 0.0
        for at in _TEXT_AT:
            if new[at] is not None and "\0" in new[at]:
                new[at] = new[at].replace("\0", "\\x00")
        yield tuple(new)


def move(
    source: Side,
    target: Side,
    *,
    ns: str | None = None,
    keep: bool = False,
    lapse: bool = False,
    wait: float = 0.0,
    again: bool = False,
    is_gone: Callable[[dict[str, Any]], bool] = lambda worker: False,
    show: Show = lambda what, done, total: None,
    switching: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Moved:
    """Move `source` into `target`, or go on with a move that was broken off.

    Parameters
    ----------
    ns : str, optional
        Move this namespace alone, with the tokens that are good in it and what servers noted of its jobs.
    keep : bool
        Leave the source open: its jobs can then be claimed from both.
    lapse : bool
        Move running jobs as if their workers had died just now, and mind no workers.
    wait : float
        Seconds to wait for running jobs to end and workers to go.
    again : bool
        Fill a target whose rows are gone, or which was made anew since the source was moved to it: what
        had ended there runs again.
    is_gone : callable
        Tells of a worker that asked for jobs a moment ago whether its process has ended.
    show : callable
        Told of the progress.
    switching : callable
        Makes what holds the two steps that close the one and open the other: between them both are closed.

    Raises
    ------
    DispatchError
        When the source is in use, the target holds anything else, or the copy does not come out the same.
    PlaneUnavailable
        When one of them is away or full. What was copied stays, and the same call goes on from there.
    """
    began = time.monotonic()
    at_source, at_target = _refuse(source, target, ns)
    if _is_through(source, target, at_source, at_target, again=again):
        return Moved(closed=True, already=True)
    end = time.monotonic() + wait
    while True:
        _drained(source, ns, lapse=lapse, end=end, is_gone=is_gone, show=show, closed=at_source is not None)
        with source.still():
            if at_source is None and not lapse and source.busy(ns).running:
                continue  # claimed between the look and the lock
            moved = _move(
                source, target, ns, keep=keep, at=(at_source, at_target), show=show, switching=switching
            )
        moved.seconds = time.monotonic() - began
        return moved


def survey(
    source: Side, target: Side, *, ns: str | None = None, again: bool = False
) -> tuple[Busy, dict[str, int], bool]:
    """Look whether `source` could be moved into `target`.

    Returns
    -------
    tuple
        Who works there, its rows by table, and whether it was moved there before.
    """
    already = _is_through(source, target, *_refuse(source, target, ns), again=again)
    return source.busy(ns), source.counts(ns), already


def _refuse(source: Side, target: Side, ns: str | None) -> tuple[Gate | None, Gate | None]:
    if source.is_same(target):
        raise DispatchError(
            f"migrate: {source.shown} and {target.shown} are one store, or another `lakeshore migrate` is at "
            "work in it. Name another target."
        )
    at_source, at_target = source.look(), target.look()
    if at_source is not None:
        if at_source.kind == "from":
            raise DispatchError(
                f"migrate: {source.shown} holds half of a copy of {at_source.other}, which is still whole. "
                "Go on with that one first."
            )
        if (at_source.other, at_source.ns) != (target.shown, ns):
            raise DispatchError(f"migrate: {source.shown}: {at_source.said}")
    if at_target is not None and (at_target.other, at_target.ns) != (source.shown, ns):
        raise DispatchError(
            f"migrate: the target {target.shown} is taken: {at_target.said} Name another target."
        )
    if at_target is None and at_source is None:
        there = target.counts(None)
        if any(there.values()) and not _alike(source, there, ns):
            raise DispatchError(
                f"migrate: the target {target.shown} is not empty ({_counted(there)}) and no copy of "
                f"{source.shown}. Name a new file or an empty database; what is there was not touched."
            )
    return at_source, at_target


def _is_through(
    source: Side, target: Side, at_source: Gate | None, at_target: Gate | None, *, again: bool
) -> bool:
    """Whether the source was moved to the target before, whatever became of its rows there.

    A store's highest numbers outlive its rows, and a move sets them: they tell a target whose jobs ended and
    were pruned from a new one. To copy into it would run them once more.

    Raises
    ------
    DispatchError
        When the target is not what the source was moved to, or held rows that are gone.
    """
    if at_target is not None and at_target.kind == "from":
        return False  # broken off: nobody worked there
    numbered = target.high()
    if at_source is None:
        if at_target is None and any(numbered) and not again and not any(target.counts(None).values()):
            raise DispatchError(
                f"migrate: the target {target.shown} is empty, but held jobs before (the last of them number "
                f"{numbered[0]:,}): should they be those of {source.shown}, what has ended there would run "
                "again. Name a new file or an empty database, or give --again."
            )
        return False
    if at_target is None and all(n >= last for n, last in zip(numbered, source.last(), strict=True)):
        return True
    if again:
        return False
    raise DispatchError(
        f"migrate: {source.shown} was moved to {target.shown} before, and what is there now is another "
        "store: made anew since, or one that was put back. Jobs that have ended since would run again. If "
        "that is meant, give --again."
    )


def _alike(source: Side, there: dict[str, int], ns: str | None) -> bool:
    """Whether it is worth comparing them row for row."""
    here = source.counts(None)
    return ns is not None or all(here[name] == there[name] for name in ("invocation", "journal"))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}s" for name, n in counts.items() if n)


def _drained(
    source: Side,
    ns: str | None,
    *,
    lapse: bool,
    end: float,
    is_gone: Callable[[dict[str, Any]], bool],
    show: Show,
    closed: bool,
) -> None:
    """Wait until nobody works at the source."""
    while not (lapse or closed):
        busy = source.busy(ns)
        busy = Busy(busy.running, [each for each in busy.workers if not is_gone(each)])
        if not busy:
            return
        if time.monotonic() >= end:
            raise DispatchError(f"migrate: {source.shown} is in use: {told(busy)}. Nothing was done. {_FIX}")
        show(f"waiting for {told(busy)}", 0, None)
        time.sleep(0.2)


_FIX: Final = (
    f"(Who ended elsewhere counts for {PRESENT_SECONDS:g} s after it last asked.) "
    "Stop the workers (lakeshore worker stop), or give --wait SECONDS; --running lapse goes on as if they "
    "had died, and their jobs run again."
)


def told(busy: Busy) -> str:
    """Return who works at a store, in words."""
    parts = []
    if busy.running:
        running = sorted(busy.running, key=lambda row: row[:2])
        some = ", ".join(f"{row[1]} ({row[2]!r}, held by {row[3]!r})" for row in running[:5])
        parts.append(f"{len(busy.running)} running: {some}{', …' if len(busy.running) > 5 else ''}")
    if busy.workers:
        workers = sorted(busy.workers, key=lambda each: (str(each["worker_id"]), str(each["queue"])))
        some = ", ".join(f"{each['worker_id']!r} on {each['queue']!r}" for each in workers[:5])
        parts.append(f"{len(busy.workers)} at work: {some}{', …' if len(busy.workers) > 5 else ''}")
    return "; ".join(parts)


def _move(
    source: Side,
    target: Side,
    ns: str | None,
    *,
    keep: bool,
    at: tuple[Gate | None, Gate | None],
    show: Show,
    switching: Callable[[], contextlib.AbstractContextManager[None]],
) -> Moved:
    """Copy, verify, close the source, open the target; in that order, within a source that stands still."""
    at_source, at_target = at
    which = _selection(source, ns)
    counts, high = source.counts(ns), source.high()
    moved = Moved()
    now = time.time()
    ours, theirs = Tally(), Tally()
    total = sum(counts.values()) or 1
    is_whole = at_target is None and any(target.counts(None).values())
    if not is_whole:
        target.close_for(Gate("from", source.shown, ns, now))
        for table in TABLES:
            _copy(source, target, table, which, ours, moved, total, show)
    else:  # a copy that was opened already, if it still is one
        for table in TABLES:
            for row in plain(table, source.rows(table, which)):
                ours.add(table, row)
    for table in TABLES:
        for row in plain(table, target.rows(table, Selection())):
            theirs.add(table, row)
            if theirs.rows % _SHOWN_EVERY == 0:
                show("verifying", theirs.rows, ours.rows)
    _same(source, target, ours, theirs, is_whole=is_whole)
    if not is_whole:
        target.settle()
    with switching():
        if at_source is None and not keep:
            source.close_for(Gate("to", target.shown, ns, now))
        if not is_whole:
            target.finish(high)
    moved.rows, moved.payload_bytes = ours.told(), ours.body_bytes
    moved.closed = at_source is not None or not keep
    moved.keeps_files = (RESERVED, "invocation") in moved.rows
    return moved


def _selection(source: Side, ns: str | None) -> Selection:
    if ns is None:
        return Selection()
    return Selection(ns, tuple(id for id, kept in source.tokens() if protocol.unpack(kept).get("ns") == ns))


def _copy(
    source: Side,
    target: Side,
    table: Table,
    which: Selection,
    ours: Tally,
    moved: Moved,
    total: int,
    show: Show,
) -> None:
    """Make one table of the target the source's, a batch a transaction."""
    gone: list[Row] = []
    rows: list[Row] = []
    held = 0

    def counted() -> Iterator[Row]:
        for row in plain(table, source.rows(table, which)):
            ours.add(table, row)
            if ours.rows % _SHOWN_EVERY == 0:
                show("copying", ours.rows, total)
            yield row

    for old, new in differences(counted(), plain(table, target.rows(table, Selection())), table.key):
        if old is not None:
            gone.append(old)
        if new is not None:
            rows.append(new)
            held += sum(len(value) for value in new if isinstance(value, (bytes, str)))
        if len(rows) + len(gone) >= _BATCH_ROWS or held >= _BATCH_BYTES:
            target.put(table, gone, rows)
            moved.copied, moved.removed = moved.copied + len(rows), moved.removed + len(gone)
            gone, rows, held = [], [], 0
    if rows or gone:
        target.put(table, gone, rows)
        moved.copied, moved.removed = moved.copied + len(rows), moved.removed + len(gone)


def differences(
    source: Iterable[Row], target: Iterator[Row], key: int
) -> Iterator[tuple[Row | None, Row | None]]:
    """Compare two tables in the order of their keys; yields ``(key to delete, row to add)``, each or None."""
    there = next(target, None)
    for row in source:
        at = row[1 : key + 1]
        while there is not None and there[1 : key + 1] < at:
            yield there[1 : key + 1], None
            there = next(target, None)
        if there is not None and there[1 : key + 1] == at:
            if there[1:] != row[1:]:
                yield at, row
            there = next(target, None)
        else:
            yield None, row
    while there is not None:
        yield there[1 : key + 1], None
        there = next(target, None)


def _same(source: Side, target: Side, ours: Tally, theirs: Tally, *, is_whole: bool) -> None:
    if ours.told() == theirs.told():
        return
    wanted, found = ours.told(), theirs.told()
    places = [place for place in sorted({*wanted, *found}) if wanted.get(place) != found.get(place)]
    some = "; ".join(
        f"{table}s of namespace {ns!r}: {wanted.get((ns, table), (0,))[0]:,} there, "
        f"{found.get((ns, table), (0,))[0]:,} here"
        for ns, table in places[:5]
    )
    if is_whole:
        raise DispatchError(
            f"migrate: the target {target.shown} is in use already, and differs from {source.shown} "
            f"({some}). Nothing was changed. Name a new file or an empty database."
        )
    raise DispatchError(
        f"migrate: the copy in {target.shown} differs from {source.shown} ({some}), so neither was switched "
        "over. Run it again: it puts right what differs."
    )
