"""The bodies that every system runs, importable by each one's workers."""

from __future__ import annotations

import linecache
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

CELL = "<cell 1>"
SOURCE = "def from_a_cell(x=1):\n    scale = 2.5\n    return [scale * k for k in range(x)]\n"


def nothing() -> None:
    """Return at once: the smallest job."""


def now() -> float:
    """Return the time at which it runs, Unix seconds."""
    return time.time()


def echo(value: Any) -> Any:
    """Return what was given."""
    return value


def ticks(n: int, pause: float = 0.0) -> Iterator[dict[str, float]]:
    """Yield `n` times, at once or `pause` seconds apart, each with its time on the machine's clock."""
    for step in range(n):
        if pause:
            time.sleep(pause)
        yield {"step": step, "at": time.monotonic()}


def from_a_cell() -> Callable[..., Any]:
    """Define a function as a notebook's cell does, in ``__main__`` and with its source; return it."""
    main = sys.modules["__main__"].__dict__
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    exec(compile(SOURCE, CELL, "exec"), main)
    function: Callable[..., Any] = main["from_a_cell"]
    return function
