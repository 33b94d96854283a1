"""The commands on jobs, queues and workers; each asks the plane and prints."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshore.cli import JOB_FAILED, completion
from lakeshore.cli.where import on_plane
from lakeshore.errors import DispatchError, NotSupported, WaitTimeout
from lakeshore.planes.contract import Plane

if TYPE_CHECKING:
    from lakeshore.queues.stream import Stream

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="An id, or its unique beginning.",
        show_default=False,
        autocompletion=completion.refs,
    ),
]
Refs = Annotated[
    list[str],
    typer.Argument(metavar="REF", help="Ids, or their unique beginnings.", autocompletion=completion.refs),
]
Queue = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE", help="Only this queue.", show_default=False, autocompletion=completion.queues
    ),
]
Timeout = Annotated[
    str | None, typer.Option(metavar="S", help="Seconds (or 5m, 2h) to wait; default: for ever.")
]
Since = Annotated[int, typer.Option(help="Go on after this frame.")]
_PRUNED_AT_A_TIME = 2000
_PAGE = 1000
_LOOK_SECONDS = 0.5
_NAMED_ELSEWHERE = 50
"""Rows whose names a plane that is no file of this machine is asked for, one by one."""


def _find(plane: Plane, ref: str) -> str:
    from lakeshore.cli.find import find

    return find(plane, ref)


def seconds(text: str | None) -> float | None:
    """Read an option that is a duration."""
    from lakeshore.settings import duration

    return None if text is None else duration(text)


@on_plane
def list_jobs(
    plane: Plane,
    queue: Queue = None,
    state: Annotated[
        str | None,
        typer.Option(help="queued, running, succeeded, failed, cancelled.", autocompletion=completion.states),
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most so many.")] = 20,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    from lakeshore.cli import tables
    from lakeshore.states import State

    if state is not None and state not in tuple(State):
        raise typer.BadParameter(f"--state {state!r}: wants one of {', '.join(State)}")
    rows = plane.invocations(queue, state=state, limit=limit)
    tables.jobs(rows if json else _named(plane, rows), json=json)


def _named(plane: Plane, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the names; a plane elsewhere is asked for few, and only where somebody looks."""
    from lakeshore.planes.names import name_of

    elsewhere = getattr(plane, "path", None) is None
    if elsewhere and not (sys.stdout.isatty() and len(rows) <= _NAMED_ELSEWHERE):
        return rows
    try:
        return [{**row, "name": name_of(plane, row["id"])} for row in rows]
    except DispatchError:  # an older control plane, or one that is gone again: the rows will do
        return rows


@on_plane
def show(plane: Plane, ref: Ref, json: Json = False) -> None:
    """Show one job's row."""
    from lakeshore.cli import tables
    from lakeshore.planes.names import name_of

    id = _find(plane, ref)
    row = plane.get(id) or {}
    with contextlib.suppress(NotSupported):
        row = {"id": id, "name": name_of(plane, id), **row}
    tables.row(row, json=json)


@on_plane
def result(plane: Plane, ref: Ref, timeout: Timeout = None, json: Json = False) -> None:
    """Wait for a job and print its result."""
    from lakeshore.cli import tables
    from lakeshore.queues.encoding import decode

    packed = _wait(plane, _find(plane, ref), seconds(timeout), quiet=json)
    tables.value(decode(packed), json=json)


def _wait(plane: Plane, id: str, timeout: float | None, *, quiet: bool) -> bytes:
    """Wait for the result, showing on a terminal what the job says of its progress."""
    from lakeshore.cli.progress import bar
    from lakeshore.queues.unserved import NOTICE, timed_out, unserved

    start = time.monotonic()
    end = math.inf if timeout is None else start + timeout
    notice = start + NOTICE if timeout is None else math.inf
    shows = not quiet and sys.stderr.isatty()
    follow = _progress_of(plane, id)
    with bar(id, quiet=quiet) as show:
        while True:
            if shows:
                show(*follow())
            left = min(end, notice) - time.monotonic()
            part = max(0.0, min(left, _LOOK_SECONDS) if shows else left)
            try:
                return plane.result(id, timeout=None if part == math.inf else part)
            except WaitTimeout as error:
                late, now = error, time.monotonic()
            if timeout is not None and now >= end:
                if part < timeout:
                    late = WaitTimeout(
                        f"result: invocation {id!r} has not ended within {timeout:g} s. "
                        "It goes on; ask again with its id."
                    )
                raise timed_out(plane, id, timeout, late)
            if now >= notice:
                notice = math.inf
                if (said := unserved(plane, id)) is not None:
                    typer.echo(f"lakeshore: {id} {said}", err=True)


def _progress_of(plane: Plane, id: str) -> Callable[[], tuple[float, float | None, str | None]]:
    """Return a look at the newest progress of a job, or at its state where it says none."""
    from lakeshore.wire import Assembler

    journal, cursor = f"{id}.progress", -1
    newest: dict[str, Any] = {}

    def look() -> tuple[float, float | None, str | None]:
        nonlocal cursor
        try:
            for seq, frame in plane.journal_read(journal, since=cursor, timeout=0):
                cursor = seq
                event = Assembler().feed(frame)
                if event is not None and event.kind == "value" and isinstance(event.value, dict):
                    newest.update(event.value)
        except WaitTimeout:  # these were all
            pass
        if not newest:
            return 0.0, None, (plane.get(id) or {}).get("state")
        note = newest.get("note")
        return (
            _finite(newest.get("done")) or 0.0,
            _finite(newest.get("total")),
            note if isinstance(note, str) else None,
        )

    return look


def _finite(value: Any) -> float | None:
    """Return a number that a bar can show; a job may have told any."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@on_plane
def stream(plane: Plane, ref: Ref, since: Since = -1, timeout: Timeout = None, json: Json = False) -> None:
    """Print what a job yields, a line a value, as it comes."""
    from lakeshore.cli import tables
    from lakeshore.queues.stream import Stream

    id = _find(plane, ref)
    follow = Stream(plane, id, since=since, timeout=seconds(timeout))
    with _reading(follow, "stream", "yielded"):
        for item in follow:
            tables.line(item, json=json)


@on_plane
def logs(plane: Plane, ref: Ref, since: Since = -1, timeout: Timeout = None, json: Json = False) -> None:
    """Print what a job prints, as it comes."""
    from lakeshore.cli import tables
    from lakeshore.cli.terminal import RESET, has_colours, log_text, shown
    from lakeshore.queues.stream import Stream

    id = _find(plane, ref)
    follow = Stream(plane, id, since=since, timeout=seconds(timeout), journal=f"{id}.log", raises=False)
    coloured: set[bool] = set()
    try:
        with _reading(follow, "logs", "printed"):
            for item in follow:
                if json:
                    tables.line(item, json=True)
                elif "text" in item:
                    err = item["stream"] == "stderr"
                    text = log_text(item["text"], colours=has_colours(sys.stderr if err else sys.stdout))
                    if "\x1b" in text:
                        coloured.add(err)
                    typer.echo(text, nl=False, err=err)
                else:
                    typer.echo(shown(tables.display_text(item["display"])))
    finally:
        for err in coloured:
            typer.echo(RESET, nl=False, err=err)


@contextlib.contextmanager
def _reading(follow: Stream, verb: str, did: str) -> Iterator[None]:
    """Say a silence in the words of the command that reads, and how to read on."""
    from lakeshore.queues.unserved import unserved

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: typer.echo(f"lakeshore: {message}", err=True)
            yield
    except WaitTimeout:
        id = follow.id
        said = unserved(follow.plane, id) or f"goes on; read on with: lakeshore {verb} {id}" + (
            f" --since {follow.cursor}" if follow.cursor >= 0 else ""
        )
        raise WaitTimeout(f"{verb}: {id} has {did} nothing for {follow.timeout:g} s. It {said}") from None


@on_plane
def cancel(plane: Plane, refs: Refs, json: Json = False) -> None:
    """Cancel queued or running jobs."""
    _each(plane, refs, "cancel", "cancelled", "had ended already", json=json)


@on_plane
def requeue(plane: Plane, refs: Refs, json: Json = False) -> None:
    """Queue failed or cancelled jobs again."""
    _each(plane, refs, "requeue", "queued again", "is neither failed nor cancelled", json=json)


def _each(plane: Plane, refs: list[str], verb: str, done: str, missed: str, *, json: bool) -> None:
    from lakeshore.cli import tables

    ids = [_find(plane, ref) for ref in refs]
    outcome = {id: bool(getattr(plane, verb)(id)) for id in ids}
    if json:
        tables.value(outcome, json=True)
    else:
        for id, made in outcome.items():
            typer.echo(f"{id} {done if made else missed}")
    if not all(outcome.values()):
        raise typer.Exit(JOB_FAILED)


@on_plane
def list_queues(plane: Plane, json: Json = False) -> None:
    """Count the jobs of each queue by state."""
    from lakeshore.cli import tables

    tables.queues(plane.queues(), json=json)


@on_plane
def list_workers(
    plane: Plane,
    queue: Queue = None,
    everyone: Annotated[bool, typer.Option("--all", help="Those that are gone too.")] = False,
    json: Json = False,
) -> None:
    """List the workers that asked for jobs."""
    from lakeshore.cli import tables
    from lakeshore.cli.processes import is_gone

    rows = [{**worker, "gone": is_gone(worker)} for worker in plane.workers(queue)]
    tables.workers(rows, everyone=everyone, json=json)


@on_plane
def prune(
    plane: Plane,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Since they ended: 30d, 12h, 90m, 45s.", show_default="30d, of --dry-run only"
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these: succeeded, failed, cancelled (repeatable).", autocompletion=completion.states
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; say how many jobs would go.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete jobs that ended long ago, with all they yielded and printed."""
    from lakeshore.cli import tables
    from lakeshore.cli.progress import bar
    from lakeshore.states import TERMINAL

    states = set(state or TERMINAL)
    if not states <= TERMINAL:
        raise typer.BadParameter(
            f"--state {min(states - TERMINAL)!r}: wants one of {', '.join(sorted(TERMINAL))}"
        )
    if older_than is None and not dry_run:
        raise typer.BadParameter("prune: say how long ago they ended, as --older-than 30d.")
    age = with_unit(older_than or "30d", "--older-than")
    if dry_run:
        count = _prunable(plane, states, time.time() - age, quiet=json)
        if json:
            tables.value({"deleted": 0, "would_delete": count}, json=True)
        else:
            asked = "" if older_than else ": they ended more than 30d ago"
            typer.echo(f"{count} job{'' if count == 1 else 's'} would be deleted{asked}")
        return
    deleted, more = 0, True
    with bar("deleting", quiet=json) as shown:
        while more:
            now = plane.prune(older_than=age, states=states, limit=_PRUNED_AT_A_TIME)
            deleted, more = deleted + now, now == _PRUNED_AT_A_TIME
            shown(deleted, None, f"{deleted:,} jobs")
    if json:
        tables.value({"deleted": deleted}, json=True)
    else:
        typer.echo(f"{deleted} job{'' if deleted == 1 else 's'} deleted")


def with_unit(text: str, option: str) -> float:
    """Read a duration in seconds; one without its unit might be meant in days, and what it does is done."""
    bare = text.strip()
    if bare.replace(".", "", 1).isdecimal() and float(bare) > 0:
        raise typer.BadParameter(
            f"{option} {text!r}: of what? Write the unit: {bare}d (days), {bare}h, {bare}m or {bare}s."
        )
    age = seconds(bare)
    assert age is not None
    return age


def _prunable(plane: Plane, states: set[str], before: float, *, quiet: bool) -> int:
    """Count the jobs that ended before a time, a page of rows after the other."""
    from lakeshore.cli.progress import bar

    count = 0
    with bar("counting", quiet=quiet) as shown:
        for state in sorted(states):
            rows = plane.invocations(state=state, limit=_PAGE)
            while rows:
                count += sum((row["finished_at"] or before) < before for row in rows)
                shown(count, None, f"{count:,} jobs")
                rows = plane.invocations(state=state, limit=_PAGE, before=rows[-1]["id"])
    return count
