"""lakeshore: durable jobs for notebooks. Submit a cell, stream what it yields, fetch the result by id.

Names load on first use, so that ``import lakeshore`` costs nothing, touches no file and no network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakeshore import ports
from lakeshore.version import __version__

if TYPE_CHECKING:
    from lakeshore import errors, wire
    from lakeshore.context import RunContext, run, scope
    from lakeshore.errors import (
        CaptureError,
        ClaimLost,
        CodecError,
        Detached,
        DispatchError,
        InputRefused,
        InvocationCancelled,
        InvocationFailed,
        JobCancelled,
        KeyContractError,
        LakeshoreError,
        NotImportable,
        NotSupported,
        PackError,
        PickleRefused,
        PlaneUnavailable,
        RuntimeMismatch,
        StaleSource,
        TransportError,
        UnknownInvocation,
        UnpackError,
        WaitTimeout,
        WireError,
    )
    from lakeshore.functions.thunk import Thunk, thunk
    from lakeshore.functions.track import track
    from lakeshore.functions.udf import UDF, udf
    from lakeshore.planes.contract import Claimed, Plane, Submission
    from lakeshore.planes.http import HttpDispatch
    from lakeshore.planes.sqlite import Dispatch
    from lakeshore.queues.aio import Queue
    from lakeshore.queues.job import Job
    from lakeshore.queues.stream import Stream
    from lakeshore.queues.sync import SyncQueue
    from lakeshore.queues.topic import Topic
    from lakeshore.states import State
    from lakeshore.worker.background import WorkerThread
    from lakeshore.worker.loop import run_worker

_HOMES = {
    "context": ("RunContext", "run", "scope"),
    "errors": (
        "CaptureError",
        "ClaimLost",
        "CodecError",
        "Detached",
        "DispatchError",
        "InputRefused",
        "InvocationCancelled",
        "InvocationFailed",
        "JobCancelled",
        "KeyContractError",
        "LakeshoreError",
        "NotImportable",
        "NotSupported",
        "PackError",
        "PickleRefused",
        "PlaneUnavailable",
        "RuntimeMismatch",
        "StaleSource",
        "TransportError",
        "UnknownInvocation",
        "UnpackError",
        "WaitTimeout",
        "WireError",
    ),
    "functions.thunk": ("Thunk", "thunk"),
    "functions.track": ("track",),
    "functions.udf": ("UDF", "udf"),
    "planes.contract": ("Claimed", "Plane", "Submission"),
    "planes.http": ("HttpDispatch",),
    "planes.sqlite": ("Dispatch",),
    "queues.aio": ("Queue",),
    "queues.job": ("Job",),
    "queues.stream": ("Stream",),
    "queues.sync": ("SyncQueue",),
    "queues.topic": ("Topic",),
    "states": ("State",),
    "worker.background": ("WorkerThread",),
    "worker.loop": ("run_worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("errors", "wire")

__all__ = [
    "UDF",
    "CaptureError",
    "ClaimLost",
    "Claimed",
    "CodecError",
    "Detached",
    "Dispatch",
    "DispatchError",
    "HttpDispatch",
    "InputRefused",
    "InvocationCancelled",
    "InvocationFailed",
    "Job",
    "JobCancelled",
    "KeyContractError",
    "LakeshoreError",
    "NotImportable",
    "NotSupported",
    "PackError",
    "PickleRefused",
    "Plane",
    "PlaneUnavailable",
    "Queue",
    "RunContext",
    "RuntimeMismatch",
    "StaleSource",
    "State",
    "Stream",
    "Submission",
    "SyncQueue",
    "Thunk",
    "Topic",
    "TransportError",
    "UnknownInvocation",
    "UnpackError",
    "WaitTimeout",
    "WireError",
    "WorkerThread",
    "__version__",
    "errors",
    "run",
    "run_worker",
    "scope",
    "thunk",
    "track",
    "udf",
    "wire",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"lakeshore.{name}")
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'lakeshore' has no attribute {name!r}") from None
    value = getattr(import_module(f"lakeshore.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _later(module: str, name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"lakeshore.{module}"), name)(*args, **kwargs)

    return call


ports.plug("start_worker", _later("worker.background", "start_worker"))
ports.plug("show_stream", _later("notebook.stream", "show_stream"))
ports.plug("show_queue", _later("notebook.stream", "show_queue"))
ports.plug("show_worker", _later("notebook.worker_panel", "show_worker"))
ports.plug("fetch_key", _later("planes.default", "fetch_key"))


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%%lakeshore`` and ``%lakeshore``; what ``%load_ext lakeshore`` calls."""
    import_module("lakeshore.notebook.magics").load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Stop worker threads and panels and remove the magics."""
    import_module("lakeshore.notebook.magics").unload(ipython)
