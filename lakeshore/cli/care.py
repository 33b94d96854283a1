"""The commands that look after a plane: copy it, and check the set-up."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lakeshore.cli import FOUND_FAULTS
from lakeshore.cli.jobs import Json
from lakeshore.cli.where import Where, at_where
from lakeshore.errors import NotSupported
from lakeshore.planes.contract import Plane


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
            f"backup: {url} is no file here. Run it where the control plane keeps its store, "
            "or name a file: --plane PATH."
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
    from lakeshore.planes.health import examine

    opened: list[Plane] = []

    def open_plane() -> Plane:
        opened.append(where.open())
        return opened[-1]

    try:
        findings = list(
            examine(
                open_plane,
                start_worker=lambda queue: f"lakeshore worker start --queue {shlex.quote(queue)}",
                another_plane="see the message; --plane, LAKESHORE_HOME or LAKESHORE_URL name another",
            )
        )
    finally:
        if where != Where():
            for plane in opened:
                plane.close()
    tables.findings(findings, json=json)
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(FOUND_FAULTS)
