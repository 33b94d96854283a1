"""``lakeshore conformance``: run the dispatch contract's rules against a plane, and say which hold."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshore.cli import BROKEN_RULES
from lakeshore.cli.jobs import Json
from lakeshore.cli.where import Where, at_where
from lakeshore.planes.contract import Plane

if TYPE_CHECKING:
    from lakeshore.conformance import Outcome


@at_where
def conformance(
    where: Where,
    only: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only this rule (repeatable).")
    ] = None,
    json: Json = False,
) -> None:
    """Hold a plane to the contract, a rule at a time; without --plane or --url, a new file of its own.

    The rules keep to queues and ids of their own. In a --plane FILE they run in a namespace of their own,
    which is emptied afterwards; on a control plane their jobs stay in queues named q-….
    """
    from lakeshore.cli import tables
    from lakeshore.cli.progress import bar
    from lakeshore.conformance import check, rules

    every = rules()
    names = list(every) if only is None else only
    check(_none, only=[name for name in names if name not in every])  # an unknown name is refused first
    outcomes: list[Outcome] = []
    with _maker(where) as make, bar("checking", quiet=json) as shown:
        for name in names:
            shown(len(outcomes), len(names), name)
            outcomes += check(make, only=[name])
    says = {name: (every[name].__doc__ or "").strip() for name in names}
    tables.outcomes(outcomes, says, json=json)
    if not all(outcome.ok for outcome in outcomes):
        raise typer.Exit(BROKEN_RULES)


def _none() -> Plane:
    raise AssertionError("no rule, no plane")


@contextmanager
def _maker(where: Where) -> Iterator[Callable[[], Plane]]:
    """Give what makes the plane under test, and leave nothing behind where that can be done."""
    from lakeshore.planes.default import open_plane
    from lakeshore.planes.sqlite import Dispatch

    environment = where.environment()
    if where.url:
        with closing(open_plane(environment)) as plane:
            plane.count("conformance")  # unreachable is told at once, not by every rule
        yield lambda: open_plane(environment)
        return
    if where.store is None:
        with tempfile.TemporaryDirectory(prefix="lakeshore-") as folder:
            yield lambda: Dispatch(Path(folder) / "dispatch.sqlite")
        return
    own = replace(where, namespace=where.namespace or f"conformance-{secrets.token_hex(4)}")
    own.open().close()  # what cannot be opened is told at once, not by every rule
    try:
        yield own.open
    finally:
        if not where.namespace:
            _empty(own.open())


def _empty(plane: Plane) -> None:
    """Delete all jobs and topics of a plane's namespace, and close it."""
    while rows := [row for state in ("queued", "running") for row in plane.invocations(state=state)]:
        for row in rows:
            plane.cancel(row["id"])
    plane.prune(older_than=0)
    plane.close()
