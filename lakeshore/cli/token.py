"""``lakeshore token``: makes, lists and revokes the tokens of a control plane, in its store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshore.cli.jobs import Json, with_unit
from lakeshore.cli.serve import StoreFile
from lakeshore.errors import NotSupported, PlaneUnavailable

if TYPE_CHECKING:
    from lakeshore.planes.store import Store

token_app = typer.Typer(
    help="Tokens for a control plane; run it where its store is.", no_args_is_help=True, rich_markup_mode=None
)

StoreAt = Annotated[
    str | None,
    typer.Option(
        metavar="STORE", help="The store, as for serve; default: LAKESHORE_URL, or in LAKESHORE_HOME."
    ),
]


@token_app.command()
def create(
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NS", help="Where it is good (default: LAKESHORE_NAMESPACE, or default)."),
    ] = None,
    role: Annotated[str, typer.Option(help="producer, worker or admin.")] = "producer",
    expires: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="How long it is good: 30d, 12h, 90m (default: for ever)."),
    ] = None,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the token in this file instead of making one; again does nothing. For deployments.",
        ),
    ] = None,
    store: StoreAt = None,
    store_file: StoreFile = None,
    json: Json = False,
) -> None:
    """Make a token, and print it for the only time; '*' is the namespace of an admin of all."""
    from lakeshore import settings
    from lakeshore.cli import tables
    from lakeshore.cli.serve import secret
    from lakeshore.planes.store_tokens import Tokens

    environment = settings.read()
    seconds = None if expires is None else with_unit(expires, "--expires")
    if seconds == 0:
        raise typer.BadParameter(
            f"--expires {expires!r}: it would be refused at once. Give an age such as 30d."
        )
    if seconds is not None and token_file is not None:
        raise typer.BadParameter(
            "--expires: a token from --token-file has no end of its own. Drop one; revoke it when it is due."
        )
    chosen = None if token_file is None else secret(token_file, "--token-file")
    ns, text = namespace or environment.namespace, None
    with closing(_store(store, store_file, make=True)) as plane:
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
        until = "" if token.expires_at is None else f", good until {tables.minute(token.expires_at)}"
        typer.echo(f"{token.role} in {token.ns!r}, id {token.id}{until}; it is not shown again", err=True)


@token_app.command("list")
def list_tokens(store: StoreAt = None, store_file: StoreFile = None, json: Json = False) -> None:
    """List the tokens, newest first; none is shown itself."""
    from lakeshore.cli import tables
    from lakeshore.planes.store_tokens import Tokens

    with closing(_store(store, store_file)) as plane:
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
    tables.tokens(rows, json=json)


@token_app.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning.", show_default=False)],
    store: StoreAt = None,
    store_file: StoreFile = None,
    json: Json = False,
) -> None:
    """Take a token back: it is refused within a second, for good."""
    from lakeshore.cli import tables
    from lakeshore.planes.store_tokens import Tokens

    with closing(_store(store, store_file)) as plane:
        token = Tokens(plane).revoke(id)
    if json:
        tables.value({"id": token.id, "revoked": True}, json=True)
    else:
        typer.echo(f"{token.id}: revoked")


def _store(store: str | None, file: Path | None, *, make: bool = False) -> Store:
    """Open the store that the options or the environment name; `make` a file that is not there, and say so.

    Raises
    ------
    NotSupported
        When it is a control plane, whose store is elsewhere.
    PlaneUnavailable
        When it cannot be used, or is a file that is not there.
    """
    from lakeshore import settings
    from lakeshore.cli.serve import open_store, store_of
    from lakeshore.cli.where import path_of

    environment = settings.read()
    text = store_of(store, file) or environment.url
    if text is not None and text.startswith(("http://", "https://")):
        raise NotSupported(
            f"token: {text.partition('://')[0]}://… is a control plane, whose tokens are in its store. Run "
            "this where the store is, and name that: --store PATH, or --store postgresql://…"
        )
    path = None
    if text is None or "://" not in text or text.startswith("sqlite:///"):
        path = environment.database if text is None else path_of(text, environment)
    if path is not None and not path.exists():
        if not make:
            raise PlaneUnavailable(
                f"token: there is no file {str(path)!r}, and so no tokens. Name the store that the control "
                "plane serves: --store PATH, or --store postgresql://…"
            )
        typer.echo(f"a new store: {path}", err=True)
    return open_store(text, environment)
