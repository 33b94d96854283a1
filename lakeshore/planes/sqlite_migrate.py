"""What `lakeshore db` does with a SQLite file: tells where it stands, and brings it up to date.

Opening the file does the same, without the copy that is kept here: the steps are one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import migrations, sqlite_schema, statements
from lakeshore.planes.migrations import Migration, Say, Standing
from lakeshore.planes.sqlite import Dispatch
from lakeshore.planes.sqlite_connection import unavailable
from lakeshore.planes.sqlite_files import make_private

_WORKING = 300.0


def standing(path: Path) -> Standing:
    """Return where a file stands, without changing it.

    Raises
    ------
    PlaneUnavailable
        When it cannot be read, is no plane, or is of a newer version.
    """
    version = sqlite_schema.version_of(path)
    now = time.time()
    who = statements.load("sqlite_care.sql")["who_works"]
    names = ("ns", "worker_id", "queue", "host", "version", "seen_at", "ago")
    with _reading(path) as raw:
        found = raw.execute(who, {"now": now, "cut": now - _WORKING}).fetchall()
    return Standing(
        store=str(path),
        found=version.found,
        newest=version.newest,
        oldest=version.found,
        pending=version.pending,
        workers=[dict(zip(names, each, strict=True)) for each in found],
        sessions=None,
    )


def sql(path: Path, *, to: int | None = None) -> str:
    """Return as text what `migrate` would run.

    Raises
    ------
    PlaneUnavailable
        As `standing`.
    ValueError
        When there is no version `to`.
    """
    version = sqlite_schema.version_of(path)
    return sqlite_schema.sql_of(migrations.up_to(version.pending, to, version.newest))


def migrate(path: Path, *, say: Say) -> list[Migration]:
    """Take the steps that a file lacks, after a backup beside it; returns the steps.

    Raises
    ------
    PlaneUnavailable
        As `standing`, and when a step fails or there is no room for the backup; the file is as it was.
    """
    steps = sqlite_schema.version_of(path).pending
    if steps:
        copy = path.with_name(f"{path.name}-before-{steps[-1].version}-{time.strftime('%Y%m%dT%H%M%S')}")
        _copy(path, copy)
        say(f"copied it to {str(copy)!r} first")
        for step in steps:
            say(f"{step.version}: {step.name.replace('_', ' ')}")
    Dispatch(path).close()
    return list(steps)


def _copy(path: Path, target: Path) -> None:
    """Copy the file as of one moment, while others may go on with it."""
    make_private(target)
    try:
        with _reading(path) as raw:
            raw.execute("VACUUM INTO ?", (str(target),))
    except PlaneUnavailable:
        target.unlink(missing_ok=True)
        raise


@contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection]:
    try:
        raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            yield raw
        finally:
            raw.close()
    except apsw.Error as error:
        raise unavailable(path, error) from error
