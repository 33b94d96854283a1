"""Planes that a `--plane` named: opened once, searched for the jobs on them, and named in hints.

The default plane is none of them. What was named stays until the kernel ends.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from lakeshore.planes.contract import Plane

_planes: dict[str, tuple[str, Plane]] = {}


def opened(where: str, open_at: Callable[[str], Plane], default: Plane) -> Plane:
    """Return the plane that `where` names, opened the first time."""
    place = where if ":" in where else str(Path(where).expanduser().absolute())
    if place not in _planes:
        plane = open_at(where)
        if plane is default:
            return plane
        _planes[place] = where, plane
    return _planes[place][1]


def planes() -> list[Plane]:
    """Return all that were named, the first first."""
    return [plane for _, plane in _planes.values()]


def flag(plane: Plane) -> str:
    """Return `` --plane WHERE`` for a plane that was named so, or an empty text."""
    return next((f" --plane {shlex.quote(where)}" for where, each in _planes.values() if each is plane), "")


def forget() -> None:
    """Close them all."""
    while _planes:
        _planes.popitem()[1][1].close()
