"""Panels where updates from a thread are not shown, as in Colab: the cell that waits draws them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lakeshore.notebook.stream import Panel
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_overview import GroupFeed
from lakeshore.notebook.stream_ui import PrintedSurface
from lakeshore.planes.contract import Plane


def needed() -> bool:
    """Whether this front end shows only what a running cell sends."""
    return "google.colab" in sys.modules


def show(plane: Plane, ids: Sequence[str], *, name: str | None = None, since: int = -1) -> Panel:
    """Show a job, or a fan-out, as it stands; `Panel.wait` then draws how it goes on, from the cell's thread.

    Parameters
    ----------
    plane : Plane
        Where the jobs live.
    ids : sequence of str
        One job, or those of a fan-out.
    name : str, optional
        What people call it.
    since : int
        Of one job: show only values after this cursor.

    Raises
    ------
    UnknownInvocation
        When there is no such job.
    """
    sys.stdout.write(
        "lakeshore: Colab shows no updates from the background; this cell draws the panel while it waits\n"
    )
    if len(ids) == 1:
        return Panel(JobFeed(plane, ids[0], name=name, since=since), PrintedSurface()).show()
    return Panel(GroupFeed(plane, ids, name=name), PrintedSurface()).show()


def hint(id: str) -> str:
    """Return what to know of a panel that nobody waits for here."""
    return f"Colab may show no updates while no cell runs; %lakeshore stream {id} --wait follows it"
