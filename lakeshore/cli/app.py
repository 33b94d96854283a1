"""The commands and how their errors become exit codes; each command parses, asks the plane, and prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshore.cli import JOB_FAILED, UNREACHABLE, USAGE
from lakeshore.cli.worker import worker_app
from lakeshore.errors import (
    DispatchError,
    InvocationCancelled,
    InvocationFailed,
    LakeshoreError,
    NotSupported,
    PlaneUnavailable,
    UnknownInvocation,
    WaitTimeout,
)
from lakeshore.version import __version__

if TYPE_CHECKING:
    from lakeshore.planes.contract import Plane

app = typer.Typer(
    name="lakeshore",
    help="Durable jobs: look at them, follow them, run workers for them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(worker_app, name="worker")

_ClickError: Any = typer.BadParameter.__mro__[2]  # typer carries click within, or beside it, by version

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[
    str, typer.Argument(metavar="REF", help="An id, or its unique beginning.", show_default=False)
]
Refs = Annotated[list[str], typer.Argument(metavar="REF...", help="Ids, or their unique beginnings.")]
Queue = Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only this queue.", show_default=False)]
Timeout = Annotated[
    str | None, typer.Option(metavar="S", help="Seconds (or 5m, 2h) to wait; default: for ever.")
]


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(argv, prog_name="lakeshore", standalone_mode=False)
    except _ClickError as exc:
        return _say(exc.format_message(), USAGE)
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted; the job goes on", 130)
    except (InvocationFailed, InvocationCancelled, WaitTimeout) as exc:
        return _say(str(exc), JOB_FAILED)
    except (UnknownInvocation, NotSupported, ValueError) as exc:
        return _say(str(exc), USAGE)
    except PlaneUnavailable as exc:
        return _say(str(exc), UNREACHABLE)
    except DispatchError as exc:
        return _say(str(exc), UNREACHABLE)
    except LakeshoreError as exc:
        return _say(str(exc), JOB_FAILED)
    except BrokenPipeError:
        return 0
    return code if isinstance(code, int) else 0


def _say(message: str, code: int) -> int:
    if message:
        print(f"lakeshore: {message}", file=sys.stderr)  # noqa: T201 - the command line's own voice
    return code


def _plane() -> Plane:
    from lakeshore.planes.default import default_plane

    return default_plane()


def _find(plane: Plane, ref: str) -> str:
    from lakeshore.cli.find import find

    return find(plane, ref)


def _seconds(text: str | None) -> float | None:
    from lakeshore.settings import duration

    return None if text is None else duration(text)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"lakeshore {__version__}")
        raise typer.Exit


@app.command("ls")
def list_jobs(
    queue: Queue = None,
    state: Annotated[str | None, typer.Option(help="queued, running, succeeded, failed, cancelled.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most so many.")] = 20,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    from lakeshore.cli import tables
    from lakeshore.states import State

    if state is not None and state not in tuple(State):
        raise typer.BadParameter(f"--state {state!r}: wants one of {', '.join(State)}")
    tables.jobs(_plane().invocations(queue, state=state, limit=limit), json=json)


@app.command()
def show(ref: Ref, json: Json = False) -> None:
    """Show one job's row."""
    from lakeshore.cli import tables

    plane = _plane()
    tables.row(plane.get(_find(plane, ref)) or {}, json=json)


@app.command()
def result(ref: Ref, timeout: Timeout = None, json: Json = False) -> None:
    """Wait for a job and print its result."""
    from lakeshore.cli import tables
    from lakeshore.queues.encoding import decode

    plane = _plane()
    tables.value(decode(plane.result(_find(plane, ref), timeout=_seconds(timeout))), json=json)


@app.command()
def stream(
    ref: Ref,
    since: Annotated[int, typer.Option(help="Go on after this frame.")] = -1,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Print what a job yields, a line a value, as it comes."""
    from lakeshore.cli import tables
    from lakeshore.queues.stream import Stream

    plane = _plane()
    for item in Stream(plane, _find(plane, ref), since=since, timeout=_seconds(timeout)):
        tables.line(item, json=json)


@app.command()
def logs(
    ref: Ref,
    since: Annotated[int, typer.Option(help="Go on after this frame.")] = -1,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Print what a job prints, as it comes."""
    from lakeshore.cli import tables
    from lakeshore.queues.stream import Stream

    plane = _plane()
    id = _find(plane, ref)
    for item in Stream(plane, id, since=since, timeout=_seconds(timeout), journal=f"{id}.log", raises=False):
        if json:
            tables.line(item, json=True)
        elif "text" in item:
            typer.echo(item["text"], nl=False, err=item["stream"] == "stderr")
        else:
            typer.echo(tables.display_text(item["display"]))


@app.command()
def cancel(refs: Refs, json: Json = False) -> None:
    """Cancel queued or running jobs."""
    _each(refs, "cancel", "cancelled", "had ended already", json=json)


@app.command()
def requeue(refs: Refs, json: Json = False) -> None:
    """Queue failed or cancelled jobs again."""
    _each(refs, "requeue", "queued again", "is neither failed nor cancelled", json=json)


def _each(refs: list[str], verb: str, done: str, missed: str, *, json: bool) -> None:
    from lakeshore.cli import tables

    plane = _plane()
    ids = [_find(plane, ref) for ref in refs]
    outcome = {id: bool(getattr(plane, verb)(id)) for id in ids}
    if json:
        tables.value(outcome, json=True)
    else:
        for id, made in outcome.items():
            typer.echo(f"{id} {done if made else missed}")
    if not all(outcome.values()):
        raise typer.Exit(JOB_FAILED)


@app.command()
def queues(json: Json = False) -> None:
    """Count the jobs of each queue by state."""
    from lakeshore.cli import tables

    tables.queues(_plane().queues(), json=json)


@app.command()
def workers(queue: Queue = None, json: Json = False) -> None:
    """List the workers that asked for jobs."""
    from lakeshore.cli import tables

    tables.workers(_plane().workers(queue), json=json)


@app.command()
def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Since they ended: 30d, 12h, 90m, 3600.")],
    state: Annotated[
        list[str] | None, typer.Option(help="Only these: succeeded, failed, cancelled (repeatable).")
    ] = None,
    json: Json = False,
) -> None:
    """Delete jobs that ended long ago, with all they yielded and printed."""
    from lakeshore.cli import tables
    from lakeshore.states import TERMINAL

    states = set(state or TERMINAL)
    if not states <= TERMINAL:
        raise typer.BadParameter(
            f"--state {min(states - TERMINAL)!r}: wants one of {', '.join(sorted(TERMINAL))}"
        )
    age = _seconds(older_than)
    assert age is not None
    deleted = _plane().prune(older_than=age, states=states)
    if json:
        tables.value({"deleted": deleted}, json=True)
    else:
        typer.echo(f"{deleted} job{'' if deleted == 1 else 's'} deleted")
