"""``lakeshore worker``: starts and supervises `python -m lakeshore.daemon`, lists workers, and stops them."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from lakeshore.cli import STILL_RUNNING
from lakeshore.cli.jobs import Json, Queue, list_workers, seconds
from lakeshore.cli.where import named, on_plane, place
from lakeshore.planes.contract import Plane

worker_app = typer.Typer(
    help="Run workers: each is `python -m lakeshore.daemon`, supervised.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_FLAGS = (
    "QUEUE (or --queue QUEUE, or LAKESHORE_QUEUE) says which queue, --plane DIR|URL (or --store; or "
    "--store-file FILE, which holds it) which plane. All other flags are the daemon's: see "
    "python -m lakeshore.daemon --help."
)


@worker_app.command(context_settings=_PASS_ON, epilog=_FLAGS)
def start(
    context: typer.Context,
    workers: Annotated[int, typer.Option(min=1, help="How many, each a process of its own.")] = 1,
) -> None:
    """Run workers until told to stop."""
    from lakeshore.cli.supervise import Supervisor

    raise typer.Exit(Supervisor(_checked(context.args), workers).run())


@worker_app.command(context_settings=_PASS_ON, epilog=_FLAGS)
def once(context: typer.Context) -> None:
    """Run at most one job, then leave."""
    from lakeshore.cli.supervise import run_once

    raise typer.Exit(run_once(_checked(context.args)))


worker_app.command("status", help="List the workers that asked for jobs (as `lakeshore workers`).")(
    list_workers
)


@worker_app.command()
@on_plane
def stop(
    plane: Plane,
    queue: Queue = None,
    timeout: Annotated[str, typer.Option(metavar="S", help="Seconds to wait for them to drain.")] = "45",
    now: Annotated[bool, typer.Option("--now", help="Hand running jobs back at once.")] = False,
    json: Json = False,
) -> None:
    """End the workers you started on this machine."""
    from lakeshore.cli import tables

    patience = seconds(timeout)
    assert patience is not None
    rows = _stop(plane.workers(queue), patience, now=now, quiet=json)
    tables.stopped(rows, json=json)
    if any(row["outcome"] == "drains" for row in rows):
        raise typer.Exit(STILL_RUNNING)


def _stop(workers: list[dict[str, Any]], patience: float, *, now: bool, quiet: bool) -> list[dict[str, Any]]:
    """Tell those of `workers` that are ours to drain; returns a row for each process that runs."""
    from lakeshore.cli.processes import Process
    from lakeshore.cli.progress import bar

    host = socket.gethostname()
    seen: dict[int, dict[str, Any]] = {}
    for worker in sorted(workers, key=lambda worker: worker["seen_at"]):
        if worker["host"] == host:
            seen[worker["pid"]] = worker
    rows: list[dict[str, Any]] = []
    told: list[tuple[Process, dict[str, Any]]] = []
    with ExitStack() as stack:
        for pid, worker in seen.items():
            try:
                process = Process(pid)
            except ProcessLookupError:
                continue
            stack.callback(process.close)
            row = {name: worker[name] for name in ("worker_id", "queue", "pid")}
            reason = process.why_not(worker["seen_at"])
            rows.append(row | {"outcome": "left alone", "reason": reason})
            if reason is None:
                process.send(signal.SIGTERM)
                if now:
                    process.send(signal.SIGINT)  # another number: two of the same may arrive as one
                told.append((process, rows[-1]))
        end = time.monotonic() + patience
        with bar("draining", quiet=quiet) as shown:
            for done, (process, row) in enumerate(told):
                shown(done, len(told), f"{done} of {len(told)}")
                ended = process.ended_within(max(0.0, end - time.monotonic()))
                row["outcome"] = "stopped" if ended else "drains"
    return rows


def _checked(arguments: list[str]) -> list[str]:
    """Check the daemon's flags before one starts; a token goes on by the environment, never by argument."""
    from lakeshore import daemon
    from lakeshore.planes.default import is_postgres
    from lakeshore.planes.http_address import Address

    arguments = _at_plane(arguments)
    parser = daemon.parser()
    flags = parser.parse_args(arguments)
    environment = daemon.check(parser, flags)
    if environment.url is not None and not is_postgres(environment.url):
        Address.read(environment.url, insecure=environment.insecure)
    root = flags.root or environment.root
    if root is not None and not Path(root).expanduser().exists():
        option = "--root" if flags.root else "LAKESHORE_ROOT"
        raise typer.BadParameter(
            f"{option} {str(root)!r}: there is no such directory. Make it, or mend the name: after a slip "
            "nobody would find what jobs write."
        )
    if flags.token:
        os.environ["LAKESHORE_CLIENT_TOKEN"] = flags.token
    kept, _tokens = _taken_out("--token", arguments)
    return kept


def _at_plane(arguments: list[str]) -> list[str]:
    """Return the arguments without the plane's, said to the daemons in their own words: --url, or a home."""
    from lakeshore import settings
    from lakeshore.planes.default import is_postgres

    kept, planes = _taken_out("--plane", arguments)
    kept, stores = _taken_out("--store", kept)
    kept, files = _taken_out("--store-file", kept)
    plane = named(next(reversed([*planes, *stores]), None), Path(files[-1]) if files else None)
    if plane is None:
        return kept
    url, file = place(plane, None)
    if url is not None:
        return [*kept, "--url", url]
    if any(each == "--url" or each.startswith("--url=") for each in kept):
        raise typer.BadParameter("--plane FILE and --url: give one, a file or a control plane.")
    assert file is not None
    if is_postgres(file):
        os.environ["LAKESHORE_URL"] = file  # not among the arguments, which other users may list
        return kept
    path = Path(file.removeprefix("sqlite:///")).expanduser().absolute()
    name = settings.read().database.name
    if path.name == name:
        path = path.parent
    elif path.is_file() or path.suffix:
        raise typer.BadParameter(
            f"--plane {file!r}: a worker's file is a {name} in a directory of its own. Give that directory."
        )
    os.environ["LAKESHORE_HOME"] = str(path)
    os.environ.pop("LAKESHORE_URL", None)
    return kept


def _taken_out(flag: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without a flag, and the values it was given."""
    kept: list[str] = []
    values: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == flag:
            value = next(rest, None)
            if value is None:
                raise typer.BadParameter(f"{flag} wants a value.")
            values.append(value)
        elif argument.startswith(f"{flag}="):
            values.append(argument.partition("=")[2])
        else:
            kept.append(argument)
    return kept, values
