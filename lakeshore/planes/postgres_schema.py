"""Whether a database holds a plane, of which version, and how one is made or brought up to date.

All is in the schema ``lakeshore``; nothing else in the database is looked at. Several processes may open it
first at once: an advisory lock orders them, and each change is one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakeshore.errors import PlaneUnavailable
from lakeshore.planes import migrations, postgres_statements, statements
from lakeshore.planes.migrations import Migration
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
    pending : tuple of Migration
        The steps between.
    """

    found: int
    newest: int
    pending: tuple[Migration, ...]


def version_of(tx: Connection, address: Address) -> Version:
    """Return where the database stands.

    Raises
    ------
    PlaneUnavailable
        When it cannot hold a plane, or holds one of a newer lakeshore.
    """
    there, encoding, standby = tx.rows("has_home", {})[0]
    if encoding != "UTF8":
        raise PlaneUnavailable(
            f"open: {address} is encoded in {encoding}, which cannot hold every name. Make one with "
            "createdb --encoding UTF8 --template template0."
        )
    if standby:
        raise PlaneUnavailable(f"open: {address} is a standby, which takes no writes. Name the primary.")
    found = int(tx.rows("version", {})[0][0] or 0) if there else 0
    newest = migrations.newest(_ENGINE)
    if found > newest:
        raise PlaneUnavailable(
            f"open: {address} was made by a newer lakeshore (schema {found}, this one knows {newest}). "
            "Upgrade: pip install -U jupyter-lakeshore."
        )
    return Version(found, newest, migrations.pending(_ENGINE, found) if found else ())


def make(tx: Connection, address: Address) -> None:
    """Make a plane, or bring an older one up to date; within a transaction of the caller's."""
    tx.rows("setting_up", {})
    version = version_of(tx, address)
    if version.found == 0:
        tx.rows("make_home", {})
        _run(tx, statements.load("postgres_schema.sql")["schema"])
        tx.rows("set_version", {"n": version.newest})
    for step in version.pending:
        _run(tx, step.sql)
        tx.rows("set_version", {"n": step.version})


def _run(tx: Connection, text: str) -> None:
    tx.raw.execute(postgres_statements.converted_schema(text))
