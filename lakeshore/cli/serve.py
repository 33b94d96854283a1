"""``lakeshore serve``: a control plane in one process, over the local file or any other store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshore.errors import NotSupported, PlaneUnavailable

if TYPE_CHECKING:
    from lakeshore.planes.store import Store
    from lakeshore.settings import Settings

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SECRET_BYTES = 4096

StoreFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file that holds STORE, for an address with a password in it."),
]


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="A SQLite file (PATH or sqlite:///PATH) or postgresql://…; default: in LAKESHORE_HOME.",
        ),
    ] = None,
    store_file: StoreFile = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no tokens; on loopback only.")] = False,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the admin's token: none is made, printed or left in LAKESHORE_HOME.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain http off loopback (behind a TLS proxy, say).")
    ] = False,
    ssl_certfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate (chain, PEM).")
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name in the Host header to answer to, beside this machine's."),
    ] = None,
    field_lease: Annotated[
        str, typer.Option(metavar="S", help="Lease of workers that cannot renew one.")
    ] = "6h",
    max_body: Annotated[str, typer.Option(metavar="BYTES", help="The most one request may carry.")] = "64M",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where files and code are kept: a folder, s3://… or alike; default: in LAKESHORE_HOME.",
        ),
    ] = None,
    max_streams: Annotated[int, typer.Option(min=1, help="Open streams a token.")] = 1000,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections; one more closes the one idle longest.")
    ] = 10_000,
    log: Annotated[
        str, typer.Option(metavar="FORM", help="Access log on stderr: text, json or off.")
    ] = "text",
) -> None:
    """Serve the store to other machines: submit, work and look over HTTP.

    Several servers may serve one store, also one SQLite file on one machine. Ctrl-C or SIGTERM answers who
    waits and ends with 0; 2 is an option that cannot be, 3 a port or a store that cannot be used.
    """
    from lakeshore import settings
    from lakeshore.planes.http_address import is_loopback
    from lakeshore.planes.store_tokens import EVERYWHERE, Tokens

    environment = settings.read()
    local = is_loopback(host)
    secure = ssl_certfile is not None
    if no_auth and not local:
        raise typer.BadParameter(
            f"--no-auth: whoever reaches {host} could run code here. It works on loopback only; drop it."
        )
    if not (local or secure or insecure):
        raise typer.BadParameter(
            f"--host {host}: plain http would show tokens and jobs to the network. Give --ssl-certfile and "
            "--ssl-keyfile, or --insecure where a proxy speaks TLS or the network is trusted."
        )
    if ssl_keyfile is not None and not secure:
        raise typer.BadParameter("--ssl-keyfile: goes with --ssl-certfile.")
    for option, file in (("--ssl-certfile", ssl_certfile), ("--ssl-keyfile", ssl_keyfile)):
        if file is not None and not file.is_file():
            raise typer.BadParameter(f"{option} {str(file)!r}: there is no such file.")
    if no_auth and admin_token_file is not None:
        raise typer.BadParameter(
            "--admin-token-file: goes with tokens, and --no-auth asks for none. Drop one."
        )
    if log not in ("text", "json", "off"):
        raise typer.BadParameter(f"--log {log!r}: wants text, json or off.")
    try:
        from lakeshore.server import Options, create_app, run
        from lakeshore.server import log as logs
        from lakeshore.server.first_token import first_token
    except ModuleNotFoundError as exc:
        raise NotSupported(
            f"serve: {exc.name} is not installed. Run: pip install 'jupyter-lakeshore[server]'"
        ) from None
    options = Options(
        auth=not no_auth,
        body_limit=size(max_body, "--max-body"),
        field_lease=settings.duration(field_lease),
        streams=max_streams,
        connections=max_connections,
        hosts=(host, *(allow_host or ())),
        storage=storage,
    )
    admin = None if admin_token_file is None else secret(admin_token_file, "--admin-token-file")
    sock = run.listen(host, port)
    try:
        plane = open_store(store_of(store, store_file), environment)
    except BaseException:
        sock.close()
        raise
    try:
        url = run.url_of(sock, "127.0.0.1" if host in ("0.0.0.0", "::") else host, secure=secure)  # noqa: S104 - compared
        said = None
        if admin is not None:
            Tokens(plane).declare(admin, ns=EVERYWHERE, role="admin", name="--admin-token-file")
        elif options.auth:
            said = first_token(plane, environment.home, url)

        def ready() -> None:
            typer.echo(f"lakeshore serves {plane!r} at {url}")
            if said is not None and said.text is not None:
                typer.echo(f"admin token (shown this once): {said.text}")
            if said is not None and local:
                typer.echo(f"this user's programs on this machine find one in {said.file}")
            if options.auth and not local:
                typer.echo("elsewhere: LAKESHORE_CLIENT_TOKEN=TOKEN; make one: lakeshore token create")
            typer.echo(f"use it: export LAKESHORE_URL={url}")
            typer.echo("ready; Ctrl-C stops", color=False)

        logs.set_up(log)  # type: ignore[arg-type]
        server = run.server_of(
            create_app(plane, options),
            certfile=str(ssl_certfile) if ssl_certfile else None,
            keyfile=str(ssl_keyfile) if ssl_keyfile else None,
            ready=ready,
        )
        server.run(sockets=[sock])
    finally:
        sock.close()
        plane.close()


def store_of(store: str | None, file: Path | None) -> str | None:
    """Return what names the store: an option's value, or the content of a file."""
    if file is None:
        return store
    if store is not None:
        raise typer.BadParameter("--store and --store-file: give one.")
    return secret(file, "--store-file")


def secret(file: Path, option: str) -> str:
    """Return the one line that a file holds; no message repeats it."""
    try:
        with file.expanduser().open("rb") as opened:
            text = opened.read(_SECRET_BYTES + 1).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or "it is no UTF-8"
        raise typer.BadParameter(f"{option} {str(file)!r}: cannot be read ({why}).") from None
    if not text or len(text) > _SECRET_BYTES or len(text.splitlines()) > 1:
        raise typer.BadParameter(f"{option} {str(file)!r}: wants one line, and nothing beside it.")
    return text


def open_store(text: str | None, environment: Settings) -> Store:
    """Open the store that `text` names, made when missing; None for the file in LAKESHORE_HOME.

    Raises
    ------
    PlaneUnavailable
        When it cannot be used.
    """
    from lakeshore.planes.default import is_postgres, open_postgres
    from lakeshore.planes.sqlite import Dispatch
    from lakeshore.planes.sqlite_files import make_home

    ns = environment.namespace
    if text is None:
        make_home(environment.home)
        return Dispatch(environment.database, ns=ns)
    if is_postgres(text):
        return open_postgres(text, ns)
    if "://" in text and not text.startswith("sqlite:///"):
        raise PlaneUnavailable(
            f"--store {text.partition('://')[0]}://…: wants a SQLite file (PATH or sqlite:///PATH) or postgresql://…"
        )
    from lakeshore.cli.where import path_of

    return Dispatch(path_of(text, environment), ns=ns)


def size(text: str, option: str) -> int:
    """Read a number of bytes such as ``"64M"``."""
    match = re.fullmatch(r"\s*(\d{1,12})\s*([kmg]?)(?:i?b)?\s*", text.lower())
    if match is None or not int(match[1]):
        raise typer.BadParameter(f"{option} {text!r}: wants bytes, or a number with K, M or G ('64M').")
    return int(match[1]) * _UNITS[match[2]]
