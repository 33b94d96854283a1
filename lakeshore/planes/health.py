"""Checks of this set-up, each with how to mend what it finds; `doctor` of terminal and notebook shows them.

A check only looks: it repairs nothing and writes nothing.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from lakeshore.errors import LakeshoreError, NotSupported
from lakeshore.planes.contract import Plane, check_name
from lakeshore.planes.measures import as_postgres, as_sqlite
from lakeshore.states import State
from lakeshore.version import __version__

PRESENT_SECONDS: Final = 30.0
"""A worker that asked for jobs within this time is there."""
CLOCK_SECONDS: Final = 60.0

Verdict = Literal["ok", "note", "fault"]


class Finding(NamedTuple):
    """What one check found.

    Attributes
    ----------
    check : str
        What was looked at.
    state : {"ok", "note", "fault"}
        A note may be as you want it; a fault is to be mended.
    found : str
        What is so.
    fix : str
        How to mend it; empty where all is well.
    """

    check: str
    state: Verdict
    found: str
    fix: str = ""


def examine(
    open_plane: Callable[[], Plane],
    *,
    start_worker: Callable[[str], str],
    another_plane: str,
) -> Iterator[Finding]:
    """Run every check, one after another.

    Parameters
    ----------
    open_plane : callable
        Returns the plane in use.
    start_worker : callable
        From a queue's name to the line that starts a worker for it.
    another_plane : str
        How to name another plane, for one that cannot be opened.
    """
    yield from versions()
    try:
        plane = open_plane()
        queues = plane.queues()
    except NotSupported as error:
        yield Finding("plane", "note", str(error), "upgrade the control plane to see its queues")
        return
    except (LakeshoreError, ValueError) as error:
        yield Finding("plane", "fault", str(error), _mend(error) or another_plane)
        return
    yield Finding("plane", "ok", f"{plane!r}, {len(queues)} queue{'' if len(queues) == 1 else 's'}")
    file, database = as_sqlite(plane), as_postgres(plane)
    if file is not None and file.path is not None:
        from lakeshore.planes.sqlite_health import file_checks, row_checks

        yield from file_checks(file.path)
        if file.path.exists():
            yield from row_checks(file)
    elif database is not None:
        from lakeshore.planes.postgres_findings import database_checks

        yield from database_checks(database)
    if not plane.trusted:
        yield _trust(None if file is None else file.path, on_database=database is not None)
    yield from queue_checks(plane, queues, start_worker)
    yield from clock(plane)


def _trust(path: Path | None, *, on_database: bool) -> Finding:
    """Tell who else can have workers run code, and what keeps or lets them."""
    fix = "where all who may are trusted to run code on the workers: --allow-pickled"
    if path is not None:
        found = "others may write to this plane, so workers refuse by-value functions"
        shut = f"chmod go-w {shlex.quote(str(path))} {shlex.quote(str(path.parent))}"
        fix = f"where it should be yours alone: {shut}; else: --allow-pickled"
    elif on_database:
        found = "others may write to this plane, so workers refuse by-value functions"
    else:
        found = (
            "whoever has a token may submit here, so workers refuse by-value functions unless told otherwise"
        )
    return Finding("trust", "note", found, fix)


def _mend(error: Exception) -> str | None:
    """Return how to mend what kept a database from being opened, where more can be said than its message."""
    if "lakeshore.planes.postgres" not in sys.modules:
        return None
    from lakeshore.planes.postgres_findings import fix_for

    return fix_for(error.__cause__)


def versions() -> Iterator[Finding]:
    """Check what is installed for versions with known faults."""
    yield Finding("lakeshore", "ok", f"{__version__}, Python {platform.python_version()}")
    from lakeshore.planes.sqlite_health import sqlite_version

    yield sqlite_version()
    kernel = _version("ipykernel")
    if kernel is None:
        yield Finding(
            "ipykernel", "note", "missing: no notebook can be served from here", "pip install ipykernel"
        )
    elif kernel.startswith("7.0."):
        yield Finding("ipykernel", "fault", f"{kernel} loses what threads print", "pip install -U ipykernel")
    elif kernel.startswith("7.4."):
        yield Finding(
            "ipykernel",
            "note",
            f"{kernel} delivers button clicks only after the running cell",
            "while a cell runs, interrupt it (detaches) or use another notebook to cancel",
        )
    else:
        yield Finding("ipykernel", "ok", kernel)
    widgets = _version("ipywidgets")
    if widgets is None:
        yield Finding(
            "ipywidgets", "note", "missing: panels are plain HTML, once a second", "pip install ipywidgets"
        )
    else:
        yield Finding("ipywidgets", "ok", widgets)


def queue_checks(
    plane: Plane, queues: dict[str, dict[str, int]], start_worker: Callable[[str], str]
) -> Iterator[Finding]:
    """Check that each queue with waiting jobs has a worker."""
    now = time.time()
    for queue, counts in sorted(queues.items()):
        try:
            check_name(queue, "queue")
        except ValueError as error:
            yield Finding("queue", "fault", str(error), "another program wrote it: delete its rows by hand")
            continue
        workers = plane.workers(queue)
        present = sum(now - worker["seen_at"] <= PRESENT_SECONDS for worker in workers)
        waiting = counts.get("queued", 0)
        if waiting and not present and not _is_busy(plane, queue):
            seen = max((worker["seen_at"] for worker in workers), default=None)
            last = "never" if seen is None else f"{now - seen:.0f} s ago"
            found = f"{waiting} queued; a worker last asked: {last}"
            yield Finding(f"queue {queue}", "fault", found, start_worker(queue))
        else:
            known = f"{len(workers)} worker{'' if len(workers) == 1 else 's'} known"
            yield Finding(f"queue {queue}", "ok", f"{waiting} queued, {known}")


def _is_busy(plane: Plane, queue: str) -> bool:
    """Whether a worker is within a job, and so has not asked for another for long."""
    running = plane.invocations(queue, state=State.RUNNING)
    return any(row["lease_expires_at"] > time.time() for row in running)


def clock(plane: Plane) -> Iterator[Finding]:
    """Check this machine's clock against the times that the plane noted."""
    newest: list[dict[str, Any]] = plane.invocations(limit=1)
    noted = [row["submitted_at"] for row in newest] + [worker["seen_at"] for worker in plane.workers()]
    ahead = max(noted, default=0.0) - time.time()
    if ahead > CLOCK_SECONDS:
        yield Finding(
            "clock",
            "fault",
            f"the plane holds times that are {ahead:.0f} s in the future",
            "set the clock of this machine, or of the one that writes (timedatectl set-ntp true)",
        )
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
