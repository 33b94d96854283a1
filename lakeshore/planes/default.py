"""The process-default plane: from the environment, resolved once."""

from __future__ import annotations

import threading
from pathlib import Path

from lakeshore import settings
from lakeshore.errors import NotSupported
from lakeshore.planes.contract import Plane
from lakeshore.planes.sqlite import Dispatch
from lakeshore.planes.sqlite_files import make_home
from lakeshore.planes.store import Store

_lock = threading.Lock()
_default: Plane | None = None


def default_plane() -> Plane:
    """Return the process-default plane: the control plane at LAKESHORE_URL, else the local file.

    The token is LAKESHORE_CLIENT_TOKEN, else the one that a control plane on this machine left in
    LAKESHORE_HOME for its own user. The file is ``$LAKESHORE_HOME/dispatch.sqlite``.

    Raises
    ------
    PlaneUnavailable
        When the file cannot be opened.
    DispatchError
        When LAKESHORE_URL or the token may not be used.
    """
    global _default
    with _lock:
        if _default is None:
            _default = open_plane(settings.read())
        return _default


def open_plane(environment: settings.Settings) -> Plane:
    """Open a new plane for these settings."""
    if environment.url and is_postgres(environment.url):
        return open_postgres(environment.url, environment.namespace)
    if environment.url:
        # a worker on a file need not load the client of a control plane
        from lakeshore.planes.http import HttpDispatch
        from lakeshore.planes.http_address import stored_token

        token = environment.token or stored_token(environment.home, environment.url)
        return HttpDispatch(
            environment.url,
            token=token,
            namespace=environment.namespace,
            insecure=environment.insecure,
        )
    make_home(environment.home)
    return Dispatch(str(environment.database), ns=environment.namespace)


def open_postgres(dsn: str, ns: str) -> Store:
    """Open a new plane on a PostgreSQL database.

    Raises
    ------
    NotSupported
        When the extra is not installed.
    """
    try:
        from lakeshore.planes.postgres import PostgresDispatch  # nobody else loads its driver
    except ModuleNotFoundError as exc:
        raise NotSupported(
            f"postgresql://…: {exc.name} is not installed. Run: pip install 'jupyter-lakeshore[postgres]'"
        ) from None
    return PostgresDispatch(dsn, ns=ns)


def is_postgres(text: str) -> bool:
    """Whether what names a plane is the address of a PostgreSQL database."""
    return text.startswith(("postgresql://", "postgres://"))


def fetch_key(full: str, path: Path) -> bool:
    """Bring a key that a job elsewhere wrote from the default control plane to `path`; False for none.

    Parameters
    ----------
    full : str
        The key's path from its root.
    """
    from lakeshore.planes import files  # only who reads such a key needs it

    channel = files.channel_of(default_plane())
    return channel is not None and channel.keeps_files and files.fetch(channel, files.FILES, full, path)


def set_default_plane(plane: Plane | None) -> None:
    """Make `plane` the process default; None resolves the environment again at the next use."""
    global _default
    with _lock:
        _default = plane
