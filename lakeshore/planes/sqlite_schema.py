"""Whose a SQLite file is, which version its tables have, and how it is made or brought up to date.

Nothing is written to a file that is not a plane's. A file of an older version is migrated when it is opened,
in one transaction: it is the new version whole, or the old one untouched.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import migrations, statements
from lakeshore.planes.migrations import Migration
from lakeshore.planes.moving_side import CLOSED, without_note
from lakeshore.planes.sqlite_connection import unavailable

APPLICATION_ID = 0x6C6B7368
"""``"lksh"``, in the file's header: this file is a plane of ours."""
_ENGINE = "sqlite"


@dataclass(frozen=True, slots=True)
class Version:
    """Where a file stands.

    Attributes
    ----------
    found, newest : int
        The version of its tables, and the one that this lakeshore makes.
    pending : tuple of Migration
        The steps between; opening the file takes them.
    """

    found: int
    newest: int
    pending: tuple[Migration, ...]


@functools.cache
def tables_of_schema() -> frozenset[tuple[Any, ...]]:
    """Return the schema as a fresh file holds it: type, name and text of each part."""
    raw = apsw.Connection(":memory:")
    try:
        raw.execute(statements.load("sqlite.sql")["schema"])
        return _tables(raw)
    finally:
        raw.close()


def _tables(raw: apsw.Connection) -> frozenset[tuple[Any, ...]]:
    """Return what a file holds; a renamed table is quoted by SQLite, and is the same."""
    rows = raw.execute(statements.load("sqlite.sql")["tables"])
    return frozenset(
        (kind, name, text and " ".join(text.replace('"', "").split())) for kind, name, text in rows
    )


def is_plane(raw: apsw.Connection, path: Path | None) -> bool:
    """Whether the file is a plane: False for an empty one.

    Raises
    ------
    PlaneUnavailable
        When it is another program's, of a newer version, altered, or was moved to another store.
    """
    if raw.pragma("application_id") == APPLICATION_ID:
        version, newest = raw.pragma("user_version"), migrations.newest(_ENGINE)
        if version == CLOSED:
            sql = statements.load("moving_sqlite.sql")
            said = raw.execute(sql["said"]).fetchone() if raw.execute(sql["has_gate"]).fetchone() else None
            if said is None:
                raise without_note(repr(str(path)))
            raise PlaneUnavailable(f"open: {str(path)!r}: {said[0]}")
        if version > newest:
            raise PlaneUnavailable(
                f"open: {str(path)!r} was made by a newer lakeshore (schema {version}, this one "
                f"knows {newest}). Upgrade: pip install -U jupyter-lakeshore."
            )
        if version == newest and _tables(raw) != tables_of_schema():
            raise PlaneUnavailable(
                f"open: {str(path)!r} has other tables, columns or triggers than a plane of schema "
                f"{version}: it was altered, or made before the first release. Move it away (a "
                "new one is made), or restore a backup."
            )
        return True
    if raw.pragma("application_id") != 0 or raw.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
        raise PlaneUnavailable(
            f"open: {str(path)!r} is another program's database. Name another file; nothing was "
            "written to this one."
        )
    return False


def make(raw: apsw.Connection, path: Path | None) -> None:
    """Make an empty file a plane, or bring an older one up to date; within a transaction of the caller's.

    Raises
    ------
    PlaneUnavailable
        When it is no plane (see `is_plane`), or its tables are not those that its version had.
    """
    if not is_plane(raw, path):
        raw.execute(statements.load("sqlite.sql")["schema"])
        raw.pragma("application_id", APPLICATION_ID)
        raw.pragma("user_version", migrations.newest(_ENGINE))
        return
    version = raw.pragma("user_version")
    steps = migrations.pending(_ENGINE, version)
    if not steps:
        return
    try:
        for step in steps:
            raw.execute(step.sql)
            raw.pragma("user_version", step.version)
    except (apsw.SQLError, apsw.ConstraintError) as error:
        raise _cannot(path, version, str(error)) from error
    if _tables(raw) != tables_of_schema():
        raise _cannot(path, version, "its tables come out different")


def _cannot(path: Path | None, version: int, why: str) -> PlaneUnavailable:
    return PlaneUnavailable(
        f"open: {str(path)!r} of schema {version} cannot be brought up to date ({why}): it was altered. "
        "Nothing was changed. Restore a backup, or move it away (a new one is made)."
    )


def version_of(path: Path) -> Version:
    """Return where a plane's file stands, without changing it.

    Raises
    ------
    PlaneUnavailable
        When it is not there, cannot be read, or is no plane.
    """
    if path.exists() and not path.is_file():
        raise PlaneUnavailable(f"open: {str(path)!r} is no file. Name a SQLite file.")
    try:
        raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            if not is_plane(raw, path):
                raise PlaneUnavailable(
                    f"version: {str(path)!r} is empty. The first plane that opens it makes it."
                )
            found = raw.pragma("user_version")
        finally:
            raw.close()
    except apsw.Error as error:
        raise unavailable(path, error) from error
    return Version(found, migrations.newest(_ENGINE), migrations.pending(_ENGINE, found))


def sql_from(version: int) -> str:
    """Return as text what a file of `version` lacks; 0: all that an empty file needs."""
    if version == 0:
        newest = migrations.newest(_ENGINE)
        tail = f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {newest};\n"
        return f"{statements.load('sqlite.sql')['schema']}\n{tail}"
    return sql_of(migrations.pending(_ENGINE, version))


def sql_of(steps: tuple[Migration, ...]) -> str:
    """Return as text what takes these steps, in one transaction; empty for none."""
    if not steps:
        return ""
    taken = "".join(f"-- {s.version}: {s.name}\n{s.sql}\nPRAGMA user_version = {s.version};\n" for s in steps)
    return f"BEGIN IMMEDIATE;\n{taken}COMMIT;\n"
