"""The command line: which commands there are, and how their errors become exit codes."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

import typer

from lakeshore.cli import JOB_FAILED, UNREACHABLE, USAGE, care, jobs
from lakeshore.cli.conform import conformance
from lakeshore.cli.db import db_app
from lakeshore.cli.demo import demo
from lakeshore.cli.move import migrate
from lakeshore.cli.serve import serve
from lakeshore.cli.terminal import json_text, shown
from lakeshore.cli.token import token_app
from lakeshore.cli.words import for_terminal
from lakeshore.cli.worker import worker_app
from lakeshore.errors import (
    DispatchError,
    InvocationCancelled,
    InvocationFailed,
    LakeshoreError,
    NotSupported,
    UnknownInvocation,
    WaitTimeout,
    WireError,
)
from lakeshore.version import __version__

app = typer.Typer(
    name="lakeshore",
    help="Durable jobs: look at them, follow them, run workers for them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("ls")(jobs.list_jobs)
app.command()(jobs.show)
app.command()(jobs.result)
app.command()(jobs.stream)
app.command()(jobs.logs)
app.command()(jobs.cancel)
app.command()(jobs.requeue)
app.command()(jobs.prune)
app.command("queues")(jobs.list_queues)
app.command("workers")(jobs.list_workers)
app.add_typer(worker_app, name="worker")
app.command()(serve)
app.add_typer(token_app, name="token")
app.add_typer(db_app, name="db")
app.command()(care.backup)
app.command()(care.doctor)
app.command()(migrate)
app.command()(demo)
app.command()(conformance)

_ClickError: Any = typer.BadParameter.__mro__[2]  # typer carries click within, or beside it, by version
_INTERRUPTED = 130
_AS_A_JOB_ENDED = (InvocationFailed, InvocationCancelled, WaitTimeout, WireError)
_AS_IT_WAS_USED = (UnknownInvocation, NotSupported, ValueError)


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code."""
    command = typer.main.get_command(app)
    json = "--json" in argv
    try:
        code = command.main(argv, prog_name="lakeshore", standalone_mode=False)
    except _ClickError as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":  # a bare command is a question
            typer.echo(exc.format_message())
            return 0
        return _say(exc.format_message(), USAGE, "usage", json=json)
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except BrokenPipeError:
        return 0
    except (LakeshoreError, ValueError) as exc:
        said = str(exc) if isinstance(exc, _AS_A_JOB_ENDED) else for_terminal(str(exc))
        return _say(said, _code(exc), getattr(exc, "code", "usage"), json=json)
    if code == _INTERRUPTED:  # typer makes Ctrl-C this code, or lets it through, by version
        return _say("interrupted; jobs go on", code, "interrupted", json=json)
    return code if isinstance(code, int) else 0


def _code(error: Exception) -> int:
    if isinstance(error, _AS_A_JOB_ENDED):
        return JOB_FAILED
    if isinstance(error, _AS_IT_WAS_USED):
        return USAGE
    return UNREACHABLE if isinstance(error, DispatchError) else JOB_FAILED


def _say(message: str, code: int, kind: str, *, json: bool) -> int:
    if json and message:
        told = {"error": {"code": kind, "message": message}}
        print(json_text(jsonlib.dumps(told, ensure_ascii=False)), file=sys.stderr)  # noqa: T201 - as below
    elif message:
        print(f"lakeshore: {shown(message)}", file=sys.stderr)  # noqa: T201 - the command line's own voice
    return code


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"lakeshore {__version__}")
        raise typer.Exit
