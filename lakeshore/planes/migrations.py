"""The versions of a store's schema, and the steps from each to the next, as SQL text for any engine.

A step is a named statement ``to_2_what_it_does`` in ``sql/{engine}_migrations.sql``; version 1 is that of the
first release, and has none. The engine's own ``schema`` always makes the newest, so a step must end with the
same tables as it does. Steps are never changed once released: stores of users have run them.

``to_5_since_3_what_it_does`` says that a lakeshore which knows no step after 3 works on with what this one
leaves: it adds, and takes away nothing that version 3 asks for. So servers may be upgraded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from lakeshore.planes import statements

Say = Callable[[str], object]
"""Told in a line what goes on, while it goes on."""

MADE = "make_the_tables"
"""The name of the one step that an empty database takes, to the newest version."""
_NAME = re.compile(r"to_(\d+)_(?:since_(\d+)_)?([a-z]\w*)")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step.

    Attributes
    ----------
    version : int
        The version it makes, from the one before.
    name : str
        What it does, in words joined by ``_``.
    sql : str
        Its statements; they run in one transaction with the note of the new version.
    since : int or None
        The oldest version whose lakeshore works on with what it leaves; None (default): its own.
    """

    version: int
    name: str
    sql: str
    since: int | None = None

    @property
    def oldest(self) -> int:
        """The oldest version whose lakeshore works on with what this step leaves."""
        return self.version if self.since is None else self.since


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a store stands, for those who look after it.

    Attributes
    ----------
    store : str
        Which one, without its password.
    found, newest : int
        The version of its tables, 0 for none, and the one that this lakeshore makes.
    oldest : int
        The oldest version whose lakeshore may use it.
    pending : tuple of Migration
        The steps between.
    workers : list of dict
        Who asked for jobs within the last minutes, with the version of its lakeshore.
    sessions : list of dict or None
        Who is connected; None where the engine cannot tell.
    """

    store: str
    found: int
    newest: int
    oldest: int
    pending: tuple[Migration, ...]
    workers: list[dict[str, Any]]
    sessions: list[dict[str, Any]] | None


@cache
def known(engine: str) -> tuple[Migration, ...]:
    """Return all steps of ``"sqlite"`` (or another engine) in order.

    Raises
    ------
    RuntimeError
        When the file of steps skips or repeats a version.
    """
    steps = []
    for name, sql in statements.load(f"{engine}_migrations.sql").items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise RuntimeError(f"migrations: {name!r} in {engine}_migrations.sql is not named to_N_what")
        steps.append(Migration(int(match[1]), match[3], sql, int(match[2]) if match[2] else None))
    if [step.version for step in steps] != list(range(2, 2 + len(steps))):
        raise RuntimeError(f"migrations: {engine}_migrations.sql must go from 2 upwards, one by one")
    return tuple(steps)


def newest(engine: str) -> int:
    """Return the version that a fresh store has."""
    return 1 + len(known(engine))


def oldest(engine: str) -> int:
    """Return the oldest version whose lakeshore may use a fresh store."""
    return max((step.oldest for step in known(engine)), default=1)


def pending(engine: str, version: int) -> tuple[Migration, ...]:
    """Return the steps that a store of `version` lacks, in order."""
    return tuple(step for step in known(engine) if step.version > version)


def up_to(steps: tuple[Migration, ...], target: int | None, newest: int) -> tuple[Migration, ...]:
    """Return those of `steps` that lead to version `target`; all when it is None.

    Raises
    ------
    ValueError
        When there is no such version.
    """
    if target is not None and not 1 <= target <= newest:
        raise ValueError(f"--to {target}: wants a version from 1 to {newest}, the newest that is known")
    return tuple(step for step in steps if target is None or step.version <= target)
