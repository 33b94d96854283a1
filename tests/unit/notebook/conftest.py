"""An IPython shell in this process, with the extension loaded and a plane in memory as the default."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from lakeshore import Dispatch, SyncQueue, run_worker
from lakeshore.notebook import elsewhere
from lakeshore.planes.default import set_default_plane


@dataclass
class Cell:
    """What running a cell gave; `out` holds its displays as text too."""

    value: Any
    error: BaseException | None
    out: str
    err: str


class Notebook:
    """Runs cells; `plane` is where they submit."""

    def __init__(self, shell: InteractiveShell, plane: Dispatch) -> None:
        self.shell, self.plane, self.names = shell, plane, shell.user_ns

    def run(self, text: str) -> Cell:
        """Run a cell; an error is returned, not raised."""
        with capture_output() as captured:
            result = self.shell.run_cell(text, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        shown = "".join(f"{output.data.get('text/plain', '')}\n" for output in captured.outputs)
        return Cell(result.result, error, captured.stdout + shown, captured.stderr)

    def __call__(self, text: str) -> Any:
        """Run a cell that must not fail; returns its value."""
        cell = self.run(text)
        if cell.error is not None:
            raise cell.error
        return cell.value

    def refused(self, text: str) -> str:
        """Run a cell that must be refused with nothing stored; returns what the user reads."""
        before = len(self.plane.invocations())
        cell = self.run(text)
        assert cell.error is not None, f"was taken: {text}"
        assert len(self.plane.invocations()) == before, "a refused cell stored a job"
        return cell.err + cell.out

    def drain(self, queue: str = "gpu") -> int:
        """Run what is queued, here."""
        count = 0
        while n := run_worker(SyncQueue(queue, dispatch=self.plane), once=True, retries=0):
            count += n
        return count

    def result(self, id: str, queue: str = "gpu") -> Any:
        """Run what is queued and return one job's result."""
        self.drain(queue)
        return SyncQueue(queue, dispatch=self.plane).result(id, timeout=0)


@pytest.fixture
def bare_shell() -> Iterator[InteractiveShell]:
    """A shell without the extension."""
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    yield shell
    InteractiveShell.clear_instance()
    # Else each shell is kept to the end, and collects all garbage then: minutes for hundreds of them.
    atexit.unregister(shell.atexit_operations)


@pytest.fixture
def nb(bare_shell: InteractiveShell) -> Iterator[Notebook]:
    """A notebook with the extension loaded."""
    plane = Dispatch(":memory:")
    set_default_plane(plane)
    bare_shell.run_line_magic("load_ext", "lakeshore")
    yield Notebook(bare_shell, plane)
    bare_shell.run_line_magic("unload_ext", "lakeshore")
    elsewhere.forget()
    set_default_plane(None)
    plane.close()
