"""The versions of a store's schema, and the steps from each to the next, as SQL text for any engine.

A step is a named statement ``to_2_what_it_does`` in ``sql/{engine}_migrations.sql``; version 1 is that of the
first release, and has none. The engine's own ``schema`` always makes the newest, so a step must end with the
same tables as it does. Steps are never changed once released: files of users have run them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from lakeshore.planes import statements

_NAME = re.compile(r"to_(\d+)_(\w+)")


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
    """

    version: int
    name: str
    sql: str


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
        steps.append(Migration(int(match[1]), match[2], sql))
    if [step.version for step in steps] != list(range(2, 2 + len(steps))):
        raise RuntimeError(f"migrations: {engine}_migrations.sql must go from 2 upwards, one by one")
    return tuple(steps)


def newest(engine: str) -> int:
    """Return the version that a fresh store has."""
    return 1 + len(known(engine))


def pending(engine: str, version: int) -> tuple[Migration, ...]:
    """Return the steps that a store of `version` lacks, in order."""
    return tuple(step for step in known(engine) if step.version > version)
