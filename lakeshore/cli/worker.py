"""``lakeshore worker``: starts and supervises `python -m lakeshore.daemon`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

worker_app = typer.Typer(
    help="Run workers: each is `python -m lakeshore.daemon`, supervised.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_FLAGS = "All other flags are the daemon's: see python -m lakeshore.daemon --help."


@worker_app.command(context_settings=_PASS_ON, epilog=_FLAGS)
def start(
    context: typer.Context,
    workers: Annotated[int, typer.Option(min=1, help="How many, each a process of its own.")] = 1,
) -> None:
    """Run workers until they are told to stop; a crashed one starts again."""
    from lakeshore.cli.supervise import Supervisor

    raise typer.Exit(Supervisor(_checked(context.args), workers).run())


@worker_app.command(context_settings=_PASS_ON, epilog=_FLAGS)
def once(context: typer.Context) -> None:
    """Run at most one job, then leave."""
    from lakeshore.cli.supervise import run_once

    raise typer.Exit(run_once(_checked(context.args)))


def _checked(arguments: list[str]) -> list[str]:
    """Check the daemon's flags before one starts; a token goes on by the environment, never by argument."""
    from lakeshore import daemon

    parser = daemon.parser()
    flags = parser.parse_args(arguments)
    daemon.check(parser, flags)
    if flags.token:
        os.environ["LAKESHORE_CLIENT_TOKEN"] = flags.token
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--token":
            next(rest, None)
        elif not argument.startswith("--token="):
            kept.append(argument)
    return kept
