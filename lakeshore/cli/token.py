"""``lakeshore token``: makes, lists and revokes the tokens of a control plane, in its store."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from lakeshore.cli.jobs import Json
from lakeshore.cli.serve import StoreFile
from lakeshore.cli.terminal import one_line

token_app = typer.Typer(
    help="Tokens for a control plane; run it where its store is.", no_args_is_help=True, rich_markup_mode=None
)

Store = Annotated[
    str | None, typer.Option(metavar="STORE", help="The store, as for serve; default: in LAKESHORE_HOME.")
]


@token_app.command()
def create(
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NS", help="Where it is good (default: LAKESHORE_NAMESPACE, or default)."),
    ] = None,
    role: Annotated[str, typer.Option(help="producer, worker or admin.")] = "producer",
    expires: Annotated[
        str | None, typer.Option(metavar="S", help="Seconds (or 12h, 30d) until it is refused.")
    ] = None,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the token in this file instead of making one; again does nothing. For deployments.",
        ),
    ] = None,
    store: Store = None,
    store_file: StoreFile = None,
    json: Json = False,
) -> None:
    """Make a token, and print it for the only time; '*' is the namespace of an admin of all."""
    from lakeshore import settings
    from lakeshore.cli import tables
    from lakeshore.cli.serve import open_store, secret, store_of
    from lakeshore.planes.store_tokens import Tokens

    environment = settings.read()
    seconds = None if expires is None else settings.duration(expires)
    if seconds is not None and token_file is not None:
        raise typer.BadParameter(
            "--expires: a token from --token-file has no end of its own. Drop one; revoke it when it is due."
        )
    chosen = None if token_file is None else secret(token_file, "--token-file")
    ns, text = namespace or environment.namespace, None
    with closing(open_store(store_of(store, store_file), environment)) as plane:
        if chosen is not None:
            token = Tokens(plane).declare(chosen, ns=ns, role=role, name=name)
        else:
            text, token = Tokens(plane).create(ns=ns, role=role, expires=seconds, name=name)
    if json:
        told = {"token": text, "id": token.id, "namespace": token.ns, "role": token.role}
        tables.value({**told, "expires_at": token.expires_at}, json=True)
    elif text is None:
        typer.echo(f"{token.role} in {token.ns!r}, id {token.id}: as in {token_file}")
    else:
        typer.echo(text)
        typer.echo(f"{token.role} in {token.ns!r}, id {token.id}; it is not shown again", err=True)


@token_app.command("list")
def list_tokens(store: Store = None, store_file: StoreFile = None, json: Json = False) -> None:
    """List the tokens, newest first; none is shown itself."""
    from lakeshore import settings
    from lakeshore.cli import tables
    from lakeshore.cli.serve import open_store, store_of
    from lakeshore.planes.store_tokens import Tokens

    with closing(open_store(store_of(store, store_file), settings.read())) as plane:
        found = Tokens(plane).list()
    rows: list[dict[str, Any]] = [
        {
            "id": token.id,
            "namespace": token.ns,
            "role": token.role,
            "state": "revoked" if token.revoked else "live" if token.live else "expired",
            "created_at": token.created_at,
            "expires_at": token.expires_at,
            "last_used_at": token.last_used_at,
            "name": token.name,
        }
        for token in found
    ]
    if json:
        tables.value(rows, json=True)
        return
    if not rows:
        typer.echo("no tokens. Make one: lakeshore token create")
    for row in rows:
        used = "never used" if row["last_used_at"] is None else f"used {_day(row['last_used_at'])}"
        until = "" if row["expires_at"] is None else f"  until {_day(row['expires_at'])}"
        head = f"{row['id']}  {row['role']:<8}  {row['state']:<7}  {one_line(str(row['namespace']))}"
        typer.echo(f"{head}  {used}{until}  {one_line(str(row['name']))}".rstrip())


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


@token_app.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning.", show_default=False)],
    store: Store = None,
    store_file: StoreFile = None,
    json: Json = False,
) -> None:
    """Take a token back: it is refused within a second, for good."""
    from lakeshore import settings
    from lakeshore.cli import tables
    from lakeshore.cli.serve import open_store, store_of
    from lakeshore.planes.store_tokens import Tokens

    with closing(open_store(store_of(store, store_file), settings.read())) as plane:
        token = Tokens(plane).revoke(id)
    if json:
        tables.value({"id": token.id, "revoked": True}, json=True)
    else:
        typer.echo(f"{token.id}: revoked")
