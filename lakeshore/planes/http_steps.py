"""What the waiting verbs do besides thinking: ask, open, read, rest; carried out blocking, or awaited.

A verb that waits is a generator of these steps. `HttpDispatch` carries them out one after another;
`http_async.py` awaits them, so that a wait of an event loop holds no thread.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lakeshore.planes.protocol import Route

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask once; comes back as a `Reply` or a `Setback`."""

    verb: str
    route: Route
    body: Mapping[str, Any]
    hold: float
    miss: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """Open a stream; comes back as a body or as `Broken`."""

    path: str
    accept: str
    read_timeout: float


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next part of a body."""

    body: Any


@dataclass(frozen=True, slots=True)
class Close:
    """Close a body."""

    body: Any


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a stream, for the reader."""

    seq: int
    frame: bytes


Step = Ask | Open | Read | Close | Rest | Row
Steps = Generator[Step, Any, T]


def rest(step: Rest) -> None:
    """Carry out a `Rest`, blocking."""
    time.sleep(max(0.0, step.seconds))
