"""Progress of long work: a line on a terminal's stderr, nothing where stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Show = Callable[[float, float | None, str | None], object]
"""Called with what is done, of how much (None: not known), and a note."""


@contextlib.contextmanager
def bar(label: str, *, quiet: bool = False) -> Iterator[Show]:
    """Show a bar within the block, moved by the callable that it gives; it is gone after the block.

    Parameters
    ----------
    label : str
        What is being done.
    quiet : bool
        Show nothing in any case.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from lakeshore.cli.terminal import one_line

    console = Console(stderr=True, highlight=False, markup=False)
    note_column = TextColumn("{task.description}", markup=False)
    with Progress(
        note_column, BarColumn(bar_width=30), TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task(label, total=None)

        def show(done: float, total: float | None, note: str | None) -> None:
            said = one_line(f"{label} {note}" if note else label)
            progress.update(task, completed=done, total=total, description=said)

        yield show
