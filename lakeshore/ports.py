"""What a lower floor may ask of a higher one; `lakeshore/__init__` plugs the other end in.

A queue offers `.worker()`, a stream shows itself in a notebook: both live above. Neither may
import upwards, so each asks here, by name, and the import happens at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PORTS: dict[str, Callable[..., Any]] = {}


def plug(name: str, target: Callable[..., Any]) -> None:
    """Connect a port.

    Parameters
    ----------
    name : str
        ``"start_worker"`` (queue -> running `WorkerThread`), ``"show_stream"``, ``"show_queue"`` or
        ``"show_worker"`` (stream, queue or worker -> notebook panel), ``"fetch_key"`` (`run.read` -> the
        control plane's files).
    target : callable
        What answers; called with the asker and its arguments.
    """
    _PORTS[name] = target


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Ask the floor above through port `name` and return its answer."""
    return _PORTS[name](*args, **kwargs)
