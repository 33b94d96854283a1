"""Which plane a command works on: options that every command has, over what the environment says."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from lakeshore.cli.serve import StoreFile, secret
from lakeshore.errors import PlaneUnavailable
from lakeshore.planes.contract import Plane

if TYPE_CHECKING:
    from lakeshore.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")

Url = Annotated[str | None, typer.Option(metavar="URL", help="A control plane (default: LAKESHORE_URL).")]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with its token (default: LAKESHORE_CLIENT_TOKEN).")
]
Namespace = Annotated[
    str | None, typer.Option(metavar="NS", help="The namespace (default: LAKESHORE_NAMESPACE, or default).")
]
PlaneAt = Annotated[
    str | None,
    typer.Option(
        "--plane",
        "--store",
        metavar="PATH|URL",
        help="A SQLite plane's file or its directory (default: in LAKESHORE_HOME), postgresql://…, or a URL.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow plain http to another machine.")]

_KEYWORDS = re.compile(r"(?:^|\s)(?:host|hostaddr|dbname|user|password|service)\s*=")
_HOST_AND_PORT = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d{1,5}")

FIRST_CONTACT = 3.0
"""Seconds that a control plane has to answer a command's first question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The options as they were given; each that was not leaves it to the environment."""

    url: str | None = None
    token_file: Path | None = None
    namespace: str | None = None
    store: str | None = None
    insecure: bool = False

    @contextlib.contextmanager
    def plane(self) -> Iterator[Plane]:
        """Open the plane, and close it after the block.

        Raises
        ------
        PlaneUnavailable
            When it cannot be used.
        ValueError
            When an option has a value that it cannot have.
        """
        plane = self.open()
        try:
            yield plane
        finally:
            if self != Where():  # the process default stays open for the rest of the process
                plane.close()

    def open(self) -> Plane:
        """Open the plane as `plane` does, to be closed by the caller (the default one: by nobody)."""
        from lakeshore.planes.default import default_plane, is_postgres, open_plane, open_postgres

        environment = self.environment()
        if (path := self.not_yet()) is not None:
            raise PlaneUnavailable(
                f"there are no jobs yet: no file {str(path)!r}. Submit one or start a worker first, or check "
                "LAKESHORE_HOME."
            )
        if environment.url is not None and not is_postgres(environment.url):
            _first_contact(environment, environment.url)
        if self == Where():
            return default_plane()
        if self.store is None:
            return open_plane(environment)
        from lakeshore.planes.sqlite import Dispatch

        if is_postgres(self.store):
            return open_postgres(self.store, environment.namespace)
        return Dispatch(store_file(self.store, environment), ns=environment.namespace)

    def not_yet(self) -> Path | None:
        """Return the file of this machine's own plane where that is meant, and nobody has made it yet."""
        environment = self.environment()
        is_own = self.store is None and environment.url is None
        return environment.database if is_own and not environment.database.exists() else None

    def environment(self) -> Settings:
        """Return the environment with these options over it."""
        from lakeshore import settings

        environment = settings.read()
        if self.store is not None and (self.url or self.token_file):
            raise typer.BadParameter("--plane FILE and --url: give one, a file or a control plane.")
        if self.token_file is not None and not (self.url or environment.url):
            raise typer.BadParameter("--token-file: belongs to a control plane; give --url too.")
        token = environment.token
        if self.token_file is not None:
            try:
                token = self.token_file.expanduser().read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as exc:
                raise typer.BadParameter(
                    f"--token-file {str(self.token_file)!r} cannot be read: {exc}"
                ) from None
        return replace(
            environment,
            url=None if self.store is not None else self.url or environment.url,
            token=token,
            namespace=self.namespace or environment.namespace,
            insecure=self.insecure or environment.insecure,
        )


def _first_contact(environment: Settings, url: str) -> None:
    """Ask a control plane anything, for a short while: who waits at a prompt learns soon that it is away.

    A command that it has answered rides out what comes later with the patience of any client.
    """
    from lakeshore.planes.http import HttpDispatch
    from lakeshore.planes.http_address import stored_token

    token = environment.token or stored_token(environment.home, url)
    ns, insecure = environment.namespace, environment.insecure
    with contextlib.closing(
        HttpDispatch(url, token=token, namespace=ns, timeout=FIRST_CONTACT, insecure=insecure)
    ) as plane:
        plane.get("0")


def store_file(text: str, environment: Settings) -> Path:
    """Return the file that `--plane` names; it must exist, so that a slip makes no empty one."""
    path = path_of(text, environment)
    if not path.exists():
        host = _HOST_AND_PORT.fullmatch(text)
        hint = "" if host is None else f" A control plane there is: --url http://{text}"
        raise typer.BadParameter(f"--plane {text!r}: there is no file {str(path)!r}.{hint}")
    return path


def path_of(text: str, environment: Settings) -> Path:
    """Return the file that a path, a directory or ``sqlite:///PATH`` means, there or not."""
    path = Path(text.removeprefix("sqlite:///")).expanduser().absolute()
    if _KEYWORDS.search(text) and not path.exists():  # libpq's other form: it may hold a password
        raise typer.BadParameter(
            "a PostgreSQL store is named postgresql://user@host:5432/database, not key=value."
        )
    return path / environment.database.name if path.is_dir() else path


def named(plane: str | None, file: Path | None) -> str | None:
    """Return what names the plane: the value of `--plane`, or what the file of `--store-file` holds."""
    if file is None:
        return plane
    if plane is not None:
        raise typer.BadParameter("--plane and --store-file: give one.")
    return secret(file, "--store-file")


def place(plane: str | None, url: str | None) -> tuple[str | None, str | None]:
    """Tell what `--plane` and `--url` name together: ``(url, file)``, one of them None.

    Raises
    ------
    typer.BadParameter
        When they name two planes, or `plane` is neither a path nor a URL of ours.
    """
    from lakeshore.planes.default import is_postgres

    if plane is None or "://" not in plane or plane.startswith("sqlite:///") or is_postgres(plane):
        return url, plane
    if not plane.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"--plane {plane.partition('://')[0]}://…: wants a file, a directory, postgresql://…, or an "
            "http(s) address."
        )
    if url is not None and url != plane:
        raise typer.BadParameter(f"--plane {plane!r} and --url {url!r}: give one.")
    return plane, None


def at_where(command: Callable[Concatenate[Where, P], R]) -> Callable[P, R]:
    """Give `command`, whose first parameter is a `Where`, the options that make one."""

    def call(where: Where, *args: P.args, **kwargs: P.kwargs) -> R:
        return command(where, *args, **kwargs)

    return _with_options(command, call)


def on_plane(command: Callable[Concatenate[Plane, P], R]) -> Callable[P, R]:
    """Give `command` the options that say which plane, and that plane, open, as its first argument."""

    def call(where: Where, *args: P.args, **kwargs: P.kwargs) -> R:
        with where.plane() as plane:
            return command(plane, *args, **kwargs)

    return _with_options(command, call)


def _with_options(command: Callable[..., R], call: Callable[..., R]) -> Callable[..., R]:
    """Return `call` under the name of `command`, with its parameters but the first, and the options."""

    def with_options(**kwargs: Any) -> R:
        given = {name: kwargs.pop(name) for name in _OPTIONS}
        url, store = place(named(given.pop("plane"), given.pop("store_file")), given.pop("url"))
        where = Where(url=url, store=store, **given)
        return call(where, **kwargs)

    _first, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    ]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__module__ = command.__module__
    with_options.__annotations__ = {each.name: each.annotation for each in [*own, *shared]}
    with_options.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return with_options


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "plane": (PlaneAt, None),
    "store_file": (StoreFile, None),
    "url": (Url, None),
    "token_file": (TokenFile, None),
    "namespace": (Namespace, None),
    "insecure": (Insecure, False),
}
