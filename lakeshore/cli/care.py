"""The commands that look after a plane: copy it, and check the set-up."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshore.cli import FOUND_FAULTS
from lakeshore.cli.jobs import Json
from lakeshore.cli.where import Where, at_where
from lakeshore.cli.words import for_terminal
from lakeshore.errors import NotSupported
from lakeshore.planes.contract import Plane

if TYPE_CHECKING:
    from lakeshore.planes.health import Finding


@at_where
def backup(
    where: Where,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make.", show_default=False)],
    json: Json = False,
) -> None:
    """Copy the local plane to a file, whole and verified, while others go on writing."""
    from lakeshore.cli import tables
    from lakeshore.cli.progress import bar
    from lakeshore.planes.default import is_postgres
    from lakeshore.planes.sqlite import Dispatch
    from lakeshore.planes.sqlite_backup import back_up, refuse_target

    refuse_target(target.expanduser().absolute())
    url = where.environment().url
    if is_postgres(url or where.store or ""):
        raise NotSupported(
            "backup: a PostgreSQL database is backed up by its own tools: pg_dump --format=custom "
            "--schema=lakeshore --file=FILE, or whatever your operators keep the whole cluster by."
        )
    if url is not None:
        raise NotSupported(
            f"backup: {url} is no file here. Run it where the control plane keeps its store, and name that: "
            "--plane PATH; a PostgreSQL store has pg_dump --schema=lakeshore."
        )
    with where.plane() as plane:
        assert isinstance(plane, Dispatch)
        with bar("copying", quiet=json) as shown:
            size = back_up(
                plane, target, progress=lambda done, total: shown(done, total, _verifying(done, total))
            )
    if json:
        tables.value(
            {"file": str(target.expanduser().absolute()), "bytes": size, "verified": True}, json=True
        )
    else:
        typer.echo(f"{target}: {size:,} bytes, verified")


def _verifying(done: int, total: int) -> str | None:
    return "and verifying" if done == total else None


@at_where
def doctor(
    where: Where,
    json: Json = False,
) -> None:
    """Check this set-up, and say how to mend what is wrong."""
    from lakeshore.cli import tables
    from lakeshore.planes import health

    try:
        path = where.not_yet()
    except ValueError:  # of the environment, and the checks tell it
        path = None
    if path is not None:
        found = f"there are no jobs yet: no file {str(path)!r}"
        fix = "nothing to do: the first submit or worker makes it; LAKESHORE_HOME names another place"
        findings = [*health.versions(), health.Finding("plane", "note", found, fix)]
    else:
        findings = _examined(where)
    tables.findings(findings, json=json)
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(FOUND_FAULTS)


def _examined(where: Where) -> list[Finding]:
    from lakeshore.planes.health import examine

    opened: list[Plane] = []

    def open_plane() -> Plane:
        opened.append(where.open())
        return opened[-1]

    try:
        findings = examine(
            open_plane,
            start_worker=lambda queue: f"lakeshore worker start --queue {shlex.quote(queue)}",
            another_plane="see the message; --plane, LAKESHORE_HOME or LAKESHORE_URL name another",
        )
        return [finding._replace(found=for_terminal(finding.found)) for finding in findings]
    finally:
        if where != Where():
            for plane in opened:
                plane.close()
