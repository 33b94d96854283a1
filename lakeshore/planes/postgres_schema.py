"""Whether a database holds a plane, of which version, and how one is made or brought up to date.

All is in the schema ``lakeshore``; nothing else in the database is looked at. A plane makes the tables of an
empty database, and never alters those of another version: that is `lakeshore db migrate`'s, by whoever may.
Several processes may do either at once: an advisory lock orders them, and each change is one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import migrations, postgres_statements, statements
from lakeshore.planes.migrations import Migration
from lakeshore.planes.moving_side import CLOSED, without_note
from lakeshore.planes.postgres_address import Address
from lakeshore.planes.postgres_connection import Connection

_ENGINE = "postgres"


@dataclass(frozen=True, slots=True)
class Version:
    """Where a database stands.

    Attributes
    ----------
    found, newest : int
        The version of its tables, 0 for none, and the one that this lakeshore makes.
    oldest : int
        The oldest version whose lakeshore may use it.
    pending : tuple of Migration
        The steps between.
    """

    found: int
    newest: int
    oldest: int
    pending: tuple[Migration, ...]


def version_of(tx: Connection, address: Address) -> Version:
    """Return where the database stands.

    Raises
    ------
    PlaneUnavailable
        When it cannot hold a plane, or holds one that only a newer lakeshore may use.
    """
    there, noted, encoding, standby = tx.rows("has_home", {})[0]
    if encoding != "UTF8":
        raise PlaneUnavailable(
            f"open: {address} is encoded in {encoding}, which cannot hold every name. Make one with "
            "createdb --encoding UTF8 --template template0."
        )
    if standby:
        raise PlaneUnavailable(f"open: {address} is a standby, which takes no writes. Name the primary.")
    newest = migrations.newest(_ENGINE)
    if not there:
        return Version(0, newest, migrations.oldest(_ENGINE), migrations.known(_ENGINE))
    oldest = int(tx.rows("version", {})[0][0] or 1)
    found = max(oldest, int((tx.rows("newest_step", {})[0][0] if noted else None) or 1))
    if oldest == CLOSED:
        sql = statements.load("moving_postgres.sql")
        said = tx.raw.execute(sql["said"]).fetchone() if tx.raw.execute(sql["has_gate"]).fetchone() else None
        if said is None:
            raise without_note(str(address))
        raise PlaneUnavailable(f"open: {address}: {said[0]}")
    if oldest > newest:
        raise PlaneUnavailable(
            f"open: {address} was made by a newer lakeshore (schema {found}, for those that know schema "
            f"{oldest}; this one knows {newest}). Upgrade: pip install -U jupyter-lakeshore."
        )
    return Version(found, newest, oldest, migrations.pending(_ENGINE, found))


def make(tx: Connection, address: Address) -> bool:
    """Make a plane in an empty database; within a transaction of the caller's. False: there is one.

    Raises
    ------
    PlaneUnavailable
        When there is one of an older version, which is left as it is.
    """
    tx.rows("setting_up", {})
    version = version_of(tx, address)
    if version.found and version.pending:
        raise PlaneUnavailable(
            f"open: {address} has the tables of schema {version.found}, this lakeshore needs "
            f"{version.newest}. Run: lakeshore db migrate --plane {address.shown}. Servers of the version "
            "before go on meanwhile."
        )
    if version.found:
        return False
    tx.rows("make_home", {})
    _run(tx, statements.load("postgres_schema.sql")["schema"])
    tx.rows("set_version", {"n": version.oldest})
    for step in version.pending:
        _run(tx, step.sql)
        tx.rows("note_step", {"n": step.version, "name": step.name})
    return True


def take(tx: Connection, address: Address, step: Migration) -> bool:
    """Take one step, as the tables' owner; within a transaction of the caller's. False: another took it.

    Raises
    ------
    psycopg.errors.LockNotAvailable
        When a table is in use for longer than a step may hold others up; nothing was changed.
    """
    tx.rows("be_quick", {})
    tx.rows("setting_up", {})
    version = version_of(tx, address)
    if step not in version.pending:
        return False
    tx.rows("be_owner", {})
    _run(tx, step.sql)
    tx.rows("note_step", {"n": step.version, "name": step.name})
    if step.oldest > version.oldest:
        tx.rows("set_version", {"n": step.oldest})
    return True


def sql_for(version: Version, steps: tuple[Migration, ...]) -> str:
    """Return as text what makes the tables of an empty database, or takes `steps` from an older version.

    Each step is a transaction, to be run by the owner of the tables.
    """
    lines, oldest = [], version.oldest
    if version.found == 0:
        made = [_said("make_home"), _said("schema"), _said("set_version").replace(":n", str(oldest))]
        lines += ["-- 1: the tables", "BEGIN;", *made, "COMMIT;\n"]
    for step in steps:
        oldest = max(oldest, step.oldest)
        lines += [
            f"-- {step.version}: {step.name.replace('_', ' ')}",
            "BEGIN;",
            _said("be_quick"),
            _said("setting_up"),
            postgres_statements.converted_schema(step.sql).decode().strip(),
            _noted(oldest, step.version, step.name),
            "COMMIT;\n",
        ]
    return "\n".join(lines)


def _noted(oldest: int, version: int, name: str) -> str:
    return _said("note_by_hand").format(oldest=oldest, version=version, name=name)


def _said(name: str) -> str:
    text = statements.load("postgres_schema.sql")[name]
    return postgres_statements.converted_schema(text).decode().strip()


def _run(tx: Connection, text: str) -> None:
    tx.raw.execute(postgres_statements.converted_schema(text))
