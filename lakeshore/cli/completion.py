"""What the shell offers for an argument: ids, queues, states. Only a local plane that is there is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import typer

from lakeshore.errors import LakeshoreError

if TYPE_CHECKING:
    from lakeshore.planes.contract import Plane

_OFFERED = 50


def refs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer the newest jobs whose id begins so, with queue and state."""
    with _plane(ctx) as plane:
        rows = [] if plane is None else plane.invocations(limit=1000)
    found = [
        (row["id"], f"{row['queue']} {row['state']}") for row in rows if row["id"].startswith(incomplete)
    ]
    return found[:_OFFERED]


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the queues whose name begins so."""
    with _plane(ctx) as plane:
        return [] if plane is None else [name for name in plane.queues() if name.startswith(incomplete)]


def states(incomplete: str) -> list[str]:
    """Offer the states whose name begins so."""
    from lakeshore.states import State

    return [state for state in State if state.startswith(incomplete)]


@contextmanager
def _plane(ctx: typer.Context) -> Iterator[Plane | None]:
    """Open the plane that the words so far name; None where that would make a file or ask the network."""
    from lakeshore import settings
    from lakeshore.cli.where import named, place, store_file
    from lakeshore.planes.sqlite import Dispatch

    try:
        environment = settings.read()
        url, store = place(
            named(ctx.params.get("plane"), ctx.params.get("store_file")), ctx.params.get("url")
        )
        path = environment.database if store is None else store_file(store, environment)
        away = url or (environment.url and store is None)
        ns = ctx.params.get("namespace") or environment.namespace
        plane = None if away or not path.exists() else Dispatch(path, ns=ns)
    except (LakeshoreError, ValueError, typer.BadParameter):  # said by the command itself, not by a TAB
        plane = None
    if plane is None:
        yield None
        return
    with closing(plane):
        yield plane
