"""`lakeshore migrate`: move a store into another, with what a person must know before and after."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakeshore.cli.jobs import Json
from lakeshore.errors import LakeshoreError

if TYPE_CHECKING:
    from lakeshore.planes.moving import Moved
    from lakeshore.planes.moving_side import Busy, Side

_LINE_SECONDS = 5.0
"""How often progress is told where no bar can be drawn."""
_INTERRUPTED = 130


def migrate(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A SQLite file, or postgresql://…", show_default=False)
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A new SQLite file, or an empty postgresql://…", show_default=False
        ),
    ],
    namespace: Annotated[
        str | None, typer.Option(metavar="NS", help="Move this namespace alone (default: all).")
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait for running jobs and workers to end.")
    ] = 0.0,
    running: Annotated[
        str,
        typer.Option(
            metavar="refuse|lapse",
            help="What to do about running jobs: refuse to move, or run them again as if their workers died.",
        ),
    ] = "refuse",
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave SOURCE open. Its jobs can then run twice: once in each.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Fill a TARGET that held jobs before, all gone since. What ended there runs again.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look whether it could be moved.")] = False,
    json: Json = False,
) -> None:
    """Move a store, whole and verified, to another: a file to PostgreSQL, back, or either to its like."""
    from lakeshore.cli import tables
    from lakeshore.planes import moving
    from lakeshore.planes.contract import check_name
    from lakeshore.planes.moving_side import Busy

    if running not in ("refuse", "lapse"):
        raise typer.BadParameter(f"--running {running!r}: wants refuse or lapse.")
    if namespace is not None:
        check_name(namespace, "namespace")
        if not (keep or dry_run):
            raise typer.BadParameter(
                "--namespace: the store stays open for its other namespaces, so this one cannot be closed in "
                "it. Give --keep too, and run its workers on TARGET alone from then on."
            )
    moved = None
    try:
        with contextlib.ExitStack() as stack:
            here = stack.enter_context(_side(source, "SOURCE"))
            there = stack.enter_context(_side(target, "TARGET"))
            if dry_run:
                busy, counts, already = moving.survey(here, there, ns=namespace, again=again)
                busy = Busy(busy.running, [each for each in busy.workers if not _is_gone(each)])
                return _could(here, there, busy, counts, already=already, json=json)
            with _progress(quiet=json) as show:
                moved = moving.move(
                    here,
                    there,
                    ns=namespace,
                    keep=keep,
                    lapse=running == "lapse",
                    wait=wait,
                    again=again,
                    is_gone=_is_gone,
                    show=show,
                    switching=_switching,
                )
    except KeyboardInterrupt:
        if moved is None:
            _say_stopped(source, target, json=json)
            raise typer.Exit(_INTERRUPTED) from None
    if json:
        tables.value(_in_json(here, there, moved), json=True)
        return None
    return _tell(here, there, moved)


def _side(text: str, name: Literal["SOURCE", "TARGET"]) -> contextlib.AbstractContextManager[Side]:
    """Return a side for the length of a block; nothing is opened yet."""
    from lakeshore import settings
    from lakeshore.errors import NotSupported
    from lakeshore.planes.default import is_postgres

    is_target = name == "TARGET"
    if is_postgres(text):
        try:
            from lakeshore.planes.postgres_moving import PostgresSide
        except ModuleNotFoundError as exc:
            raise NotSupported(
                f"{name} postgresql://…: {exc.name} is not installed. Run: pip install "
                "'jupyter-lakeshore[postgres]'"
            ) from None
        return contextlib.closing(PostgresSide(text, is_target=is_target))
    if text.startswith(("http://", "https://")):
        raise NotSupported(
            f"{name} {text.partition('://')[0]}://…: is a control plane, which hands out jobs and not its "
            "store. Run this where the store is, and give its file or postgresql://…, as `lakeshore serve "
            "--store` has it."
        )
    if "://" in text and not text.startswith("sqlite:///"):
        raise typer.BadParameter(
            f"{name} {text.partition('://')[0]}://…: wants a SQLite file, or postgresql://…"
        )
    if not text or "\0" in text or text == ":memory:":
        raise typer.BadParameter(f"{name} {text!r}: wants a SQLite file, or postgresql://…")
    from lakeshore.cli.where import path_of
    from lakeshore.planes.sqlite_moving import SqliteSide

    return contextlib.closing(SqliteSide(path_of(text, settings.read()), is_target=is_target))


def _is_gone(worker: dict[str, Any]) -> bool:
    from lakeshore.cli.processes import is_gone

    return is_gone(worker)


@contextlib.contextmanager
def _switching() -> Iterator[None]:
    """Let the first Ctrl-C wait for the block: it takes a moment, and between its steps nobody can work."""

    def hold(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, old)
        typer.echo(
            "lakeshore: the copy is verified, and is being opened; Ctrl-C again breaks that off", err=True
        )

    old = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _say_stopped(source: str, target: str, *, json: bool) -> None:
    """Say how a move that was broken off left both, as they say themselves."""
    import json as jsonlib

    from lakeshore.cli.terminal import json_text, shown

    here, there = _side(source, "SOURCE"), _side(target, "SOURCE")
    with here as one, there as other:
        try:
            at_source, at_target = one.look(), other.look()
            is_known = True
        except LakeshoreError:  # TARGET was not begun, or one of them is away
            at_source, at_target, is_known = None, None, False
        if at_source is not None and at_source.kind == "to":
            what = (
                f"{one.shown} is closed, and {other.shown} not open yet: nobody can work until the same "
                "command, given again, has opened it, which takes a moment."
                if at_target is not None
                else f"The move was through: go on in {other.shown}."
            )
        elif is_known and at_target is None:
            what = "Nothing was done."
        else:
            what = (
                f"{one.shown} is as it was; what was copied stays in {other.shown}, which is closed until "
                "the same command, given again, is through."
            )
    message = f"migrate: stopped. {what}"
    told = {"error": {"code": "interrupted", "message": message}}
    text = json_text(jsonlib.dumps(told, ensure_ascii=False)) if json else f"lakeshore: {shown(message)}"
    typer.echo(text, err=True)


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, int, int | None], object]]:
    """Show a bar on a terminal, elsewhere a line now and then."""
    from lakeshore.cli.progress import bar

    if quiet or sys.stderr.isatty():
        with bar("migrate:", quiet=quiet) as shown:
            yield lambda what, done, total: shown(done, total, _done(what, done, total))
        return
    told: list[Any] = ["", time.monotonic()]

    def line(what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if what != told[0] or now - told[1] >= _LINE_SECONDS:
            told[:] = [what, now]
            typer.echo(_done(what, done, total), err=True)

    yield line


def _done(what: str, done: int, total: int | None) -> str:
    if total is None:
        return what
    return f"{what}: {done:,} of {max(done, total):,} rows"


def _could(here: Side, there: Side, busy: Busy, counts: dict[str, int], *, already: bool, json: bool) -> None:
    from lakeshore.cli import tables
    from lakeshore.planes.moving import told

    if json:
        workers = [each["worker_id"] for each in busy.workers]
        tables.value(
            {
                "source": here.shown,
                "target": there.shown,
                "already": already,
                "rows": counts,
                "running": [row[1] for row in busy.running],
                "workers": workers,
            },
            json=True,
        )
        return
    if already:
        typer.echo(f"{here.shown} was moved to {there.shown} before: there is nothing to do")
        return
    rows = ", ".join(f"{n:,} {name}s" for name, n in counts.items())
    typer.echo(f"{here.shown} ({rows}) can be moved to {there.shown}")
    if busy:
        typer.echo(f"but first its workers must stop: {told(busy)}")


def _in_json(here: Side, there: Side, moved: Moved) -> dict[str, Any]:
    return {
        "source": here.shown,
        "target": there.shown,
        "already": moved.already,
        "source_closed": moved.closed,
        "copied": moved.copied,
        "removed": moved.removed,
        "seconds": round(moved.seconds, 3),
        "verified": [
            {"namespace": ns, "table": table, "rows": rows, "digest": digest}
            for (ns, table), (rows, digest) in moved.rows.items()
        ],
    }


def _tell(here: Side, there: Side, moved: Moved) -> None:
    from lakeshore.cli.terminal import one_line
    from lakeshore.planes.store_within import RESERVED

    if moved.already:
        typer.echo(f"{here.shown} was moved to {there.shown} before. Nothing was changed.")
        return
    for (ns, table), (rows, digest) in moved.rows.items():
        name = "(tokens and notes of servers)" if ns == RESERVED else one_line(ns)
        typer.echo(f"{name}  {table}  {rows:,} rows  {digest}  the same on both sides")
    total = sum(rows for rows, _ in moved.rows.values())
    rate = f", {total / moved.seconds:,.0f} rows/s" if moved.seconds > 1 else ""
    typer.echo(
        f"{total:,} rows in {moved.seconds:.1f} s{rate}; {moved.copied:,} copied, "
        f"{total - moved.copied:,} were there"
    )
    if moved.closed:
        typer.echo(
            f"{here.shown} is closed now: whoever comes there is told to go to {there.shown}. It can be "
            "moved back by the same command the other way round, and deleted once you are sure."
        )
    else:
        typer.echo(
            f"WARNING: {here.shown} is still open (--keep). Start no worker on one of the two: a job that is "
            "queued in both runs twice."
        )
    if moved.keeps_files:
        typer.echo(
            "Files and code that a server keeps are beside the store, not in it: give `lakeshore serve` the "
            "same --storage (or LAKESHORE_HOME) as before."
        )
