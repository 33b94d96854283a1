"""`track`: progress over an iterable, in a terminal, in a notebook, and inside a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from lakeshore.context import run

T = TypeVar("T")

_INTERVAL = 0.1


def track(iterable: Iterable[T], total: float | None = None, description: str | None = None) -> Iterator[T]:
    """Iterate over `iterable` and show how far it is.

    In a job the reports go to its progress journal, at most 10 a second and the last one always;
    in a terminal there is a bar, in a notebook one line that renews itself, elsewhere nothing.

    Parameters
    ----------
    iterable : iterable
        What to go through.
    total : float, optional
        Its length; default ``len(iterable)`` where it has one.
    description : str, optional
        A word to show beside the bar.

    Yields
    ------
    object
        The items, unchanged.

    Examples
    --------
    >>> for batch in track(batches, description="epoch 1"):
    ...     step(batch)
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if run.invocation_id is not None:
        return _in_job(iterable, total, description)
    if "ipykernel" in sys.modules:
        return _in_line(iterable, total, description)
    if sys.stderr.isatty():
        return _in_terminal(iterable, total, description)
    return iter(iterable)


def _in_job(iterable: Iterable[T], total: float | None, description: str | None) -> Iterator[T]:
    report, done = run.progress, 0
    report(0, total, description)
    for item in iterable:
        yield item
        done += 1
        report(done, total, description)
    report(done, done if total is None else total, description)


def _in_terminal(iterable: Iterable[T], total: float | None, description: str | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import track as bar

    yield from bar(iterable, total=total, description=description or "", console=Console(stderr=True))


def _in_line(iterable: Iterable[T], total: float | None, description: str | None) -> Iterator[T]:
    started = shown = time.monotonic()
    done, width = 0, 0

    def show() -> None:
        nonlocal width
        share = f"/{total:g} {100 * done / total:3.0f}%" if total else ""
        text = f"{description + ': ' if description else ''}{done}{share} {time.monotonic() - started:.1f} s"
        sys.stdout.write("\r" + text.ljust(width))
        sys.stdout.flush()
        width = len(text)

    show()
    try:
        for item in iterable:
            yield item
            done += 1
            if time.monotonic() - shown >= _INTERVAL:
                shown = time.monotonic()
                show()
    finally:
        show()
        sys.stdout.write("\n")
