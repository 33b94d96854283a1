"""``lakeshore db``: which version a store's tables have, and what brings them up to date.

A store is a SQLite file or a PostgreSQL database; a control plane's is looked after where it is.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from lakeshore.cli.jobs import Json
from lakeshore.cli.serve import StoreFile
from lakeshore.cli.terminal import one_line
from lakeshore.errors import NotSupported, PlaneUnavailable

db_app = typer.Typer(
    help="The tables of a store: their version, and bringing them up to date.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Store = Annotated[
    str | None,
    typer.Option(
        "--plane",
        "--store",
        metavar="STORE",
        help="A SQLite file, its directory, or postgresql://…; default: LAKESHORE_URL, or in LAKESHORE_HOME.",
    ),
]


@db_app.command()
def status(store: Store = None, store_file: StoreFile = None, json: Json = False) -> None:
    """Tell the version of the tables, the steps they lack, and who works with them; changes nothing."""
    from lakeshore.cli import tables

    engine, at = _found(store, store_file)
    standing = engine.standing(at)
    if json:
        tables.value(_as_json(standing), json=True)
        return
    typer.echo(one_line(standing.store))
    if standing.found == 0:
        typer.echo(f"no tables yet; the first plane makes them, of schema {standing.newest}")
        return
    typer.echo(f"schema {standing.found}; this lakeshore knows {standing.newest}")
    if standing.sessions is not None:
        typer.echo(f"servers and workers that know schema {standing.oldest} or newer may use it")
    for step in standing.pending:
        typer.echo(f"pending  {step.version}: {step.name.replace('_', ' ')}")
    typer.echo("Run: lakeshore db migrate" if standing.pending else "up to date")
    for each in standing.workers:
        at = f"{each['queue']} in {each['ns']}, {each['host']}"
        told = f"{each['worker_id']} on {at}, lakeshore {each['version']}, asked {each['ago']:.0f} s ago"
        typer.echo(one_line(f"worker   {told}"))
    for each in standing.sessions or []:
        told = f"{each['sessions']} of {each['role']} from {each['from']} ({each['application']})"
        typer.echo(one_line(f"sessions {told}"))


@db_app.command()
def sql(
    to: Annotated[
        int | None, typer.Option(metavar="N", help="Stop at this version (default: the newest).")
    ] = None,
    store: Store = None,
    store_file: StoreFile = None,
    json: Json = False,
) -> None:
    """Print the SQL that migrate would run, for who runs it himself; changes nothing."""
    from lakeshore.cli import tables

    engine, at = _found(store, store_file)
    text = engine.sql(at, to=to)
    if json:
        tables.value({"sql": text}, json=True)
    else:
        typer.echo(text, nl=False)


@db_app.command()
def migrate(store: Store = None, store_file: StoreFile = None, json: Json = False) -> None:
    """Bring the tables up to date, a step a transaction, while servers of the version before go on.

    Of a SQLite file a copy is kept beside it. Run again, or by two at once, it does nothing twice.
    """
    from lakeshore.cli import tables
    from lakeshore.planes.migrations import MADE

    def say(line: str) -> None:
        typer.echo(one_line(line), err=True)

    engine, at = _found(store, store_file)
    taken = engine.migrate(at, say=say)
    if json:
        tables.value([{"version": step.version, "name": step.name} for step in taken], json=True)
    elif any(step.name == MADE for step in taken):
        typer.echo(f"up to date; the tables were made, of schema {taken[0].version}")
    else:
        typer.echo(f"up to date; steps taken: {len(taken)}")


def _found(store: str | None, store_file: Path | None) -> tuple[ModuleType, Any]:
    """Return what looks after the store that the options or the environment name, and where that store is."""
    from lakeshore import settings
    from lakeshore.cli import serve, where
    from lakeshore.planes import sqlite_migrate
    from lakeshore.planes.default import is_postgres

    environment = settings.read()
    named = serve.store_of(store, store_file)
    text = named or environment.url
    if text is None:
        if not environment.database.exists():
            raise PlaneUnavailable(
                f"db: there is no file {str(environment.database)!r}. Name a store: --store PATH, or "
                "--store postgresql://…"
            )
        return sqlite_migrate, environment.database
    if is_postgres(text):
        return _postgres(), text
    if named is None or ("://" in text and not text.startswith("sqlite:///")):
        raise NotSupported(
            f"db: {text.partition('://')[0]}://… is no store, but what is before one. Run this where the "
            "store is, and name that: --store PATH, or --store postgresql://…"
        )
    return sqlite_migrate, where.store_file(text, environment)


def _postgres() -> ModuleType:
    try:
        from lakeshore.planes import postgres_migrate  # nobody else loads its driver
    except ModuleNotFoundError as exc:
        raise NotSupported(
            f"postgresql://…: {exc.name} is not installed. Run: pip install 'jupyter-lakeshore[postgres]'"
        ) from None
    return postgres_migrate


def _as_json(standing: Any) -> dict[str, Any]:
    told = {name: getattr(standing, name) for name in ("store", "found", "newest", "oldest")}
    pending = [{"version": step.version, "name": step.name} for step in standing.pending]
    return {**told, "pending": pending, "workers": standing.workers, "sessions": standing.sessions}
