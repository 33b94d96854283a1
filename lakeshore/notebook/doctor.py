"""Checks of this set-up, each with how to mend what it finds."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

from lakeshore import settings
from lakeshore.errors import LakeshoreError
from lakeshore.notebook.tables import Table, ago, plain
from lakeshore.planes.contract import Plane
from lakeshore.version import __version__

PRESENT_SECONDS = 30.0
"""A worker that asked for jobs within this time is there."""
_CLOCK_SECONDS = 300.0

Row = dict[str, str]


def examine(open_plane: Callable[[], Plane]) -> Table:
    """Run every check; returns rows of ``check``, ``state`` (ok, note or fault), ``found`` and ``fix``.

    Parameters
    ----------
    open_plane : callable
        Returns the plane in use.
    """
    rows = [*_versions()]
    try:
        plane = open_plane()
        rows += [*_plane(plane)]
    except LakeshoreError as error:
        rows.append(_row("plane", "fault", str(error), "see the message; %lakeshore plane PATH uses another"))
    return Table(rows, dict.fromkeys(("check", "state", "found", "fix"), plain))


def _row(check: str, state: str, found: str, fix: str = "") -> Row:
    return {"check": check, "state": state, "found": found, "fix": fix}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> Iterator[Row]:
    yield _row("lakeshore", "ok", f"{__version__}, Python {platform.python_version()}")
    kernel = _version("ipykernel")
    if kernel is None:
        yield _row(
            "ipykernel", "note", "missing", "no notebook can be served from here: pip install ipykernel"
        )
    elif kernel.startswith("7.0."):
        yield _row("ipykernel", "fault", f"{kernel} loses what threads print", "pip install -U ipykernel")
    elif kernel.startswith("7.4."):
        yield _row(
            "ipykernel",
            "note",
            f"{kernel} delivers button clicks only after the running cell",
            "while a cell runs, interrupt it (detaches) or use another notebook to cancel",
        )
    else:
        yield _row("ipykernel", "ok", kernel)
    widgets = _version("ipywidgets")
    if widgets is None:
        yield _row(
            "ipywidgets", "note", "missing: panels are plain HTML, once a second", "pip install ipywidgets"
        )
    else:
        yield _row("ipywidgets", "ok", widgets)


def _plane(plane: Plane) -> Iterator[Row]:
    queues = plane.queues()
    yield _row("plane", "ok", f"{plane!r}, {len(queues)} queue{'' if len(queues) == 1 else 's'}")
    if settings.read().allow_network_fs:
        yield _row(
            "file system",
            "note",
            "LAKESHORE_ALLOW_NETWORK_FS=1: planes on network file systems are not refused",
            "their locks may not hold; use a local directory",
        )
    if not plane.trusted:
        yield _row(
            "trust",
            "note",
            "others may write to this plane, so workers refuse by-value functions",
            "chmod go-w the file and its directory, or start workers with allow_pickled=True",
        )
    now = time.time()
    for queue, counts in sorted(queues.items()):
        workers = plane.workers(queue)
        seen = max((w["seen_at"] for w in workers), default=None)
        waiting = counts.get("queued", 0)
        if waiting and (seen is None or now - seen > PRESENT_SECONDS):
            last = "never" if seen is None else ago(seen)
            yield _row(
                f"queue {queue}",
                "fault",
                f"{waiting} queued, a worker asked {last}",
                f"%lakeshore worker start {queue}",
            )
        else:
            yield _row(f"queue {queue}", "ok", f"{waiting} queued, {len(workers)} worker(s) known")
    newest: list[dict[str, Any]] = plane.invocations(limit=1)
    ahead = newest[0]["submitted_at"] - now if newest else 0.0
    if ahead > _CLOCK_SECONDS:
        yield _row(
            "clock", "fault", f"the newest job was submitted {ahead:.0f} s in the future", "set the clock"
        )
