"""The process-default plane: from the environment, resolved once."""

from __future__ import annotations

import threading

from lakeshore import settings
from lakeshore.errors import NotSupported
from lakeshore.planes.contract import Plane
from lakeshore.planes.sqlite import Dispatch
from lakeshore.planes.sqlite_files import make_home

_lock = threading.Lock()
_default: Plane | None = None


def default_plane() -> Plane:
    """Return the process-default plane: the local file at ``$LAKESHORE_HOME/dispatch.sqlite``.

    Raises
    ------
    PlaneUnavailable
        When the file cannot be opened.
    NotSupported
        When LAKESHORE_URL names a control plane: this version has no client for one.
    """
    global _default
    with _lock:
        if _default is None:
            _default = open_plane(settings.read())
        return _default


def open_plane(environment: settings.Settings) -> Plane:
    """Open a new plane for these settings."""
    if environment.url:
        raise NotSupported(
            f"LAKESHORE_URL={environment.url!r}: this version has no client for a control plane yet. "
            "Unset it to use the local file."
        )
    make_home(environment.home)
    return Dispatch(str(environment.database), ns=environment.namespace)


def set_default_plane(plane: Plane | None) -> None:
    """Make `plane` the process default; None resolves the environment again at the next use."""
    global _default
    with _lock:
        _default = plane
