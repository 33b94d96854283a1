"""Bodies in the worker's own thread: the default of `run_worker` and of a kernel's worker."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakeshore.planes.contract import Claimed
from lakeshore.worker import display, output
from lakeshore.worker.execute import Options, perform
from lakeshore.worker.guard import Guard
from lakeshore.worker.journals import Journals
from lakeshore.worker.keeper import Running
from lakeshore.worker.outcomes import Outcome

if TYPE_CHECKING:
    from lakeshore.wire import Envelope
    from lakeshore.worker.loop import Worker
    from lakeshore.worker.slot import Slot

_log = logging.getLogger("lakeshore.worker")


class InlineRunner:
    """Runs bodies in the slot's own thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # after each body a process of our own goes back to where it was; a kernel's directory is the user's
        self._home = str(Path.cwd()) if owns_the_process() else None

    def run(self, slot: Slot, claimed: Claimed, envelope: Envelope, options: Options) -> Outcome:
        """Run one body to its outcome."""
        worker = self._worker
        guard = Guard()
        job = Running(claimed, slot.worker_id, guard, worker.chosen.lease, options.timeout)
        sinks = _Sinks(
            worker.plane,
            job,
            worker.flusher,
            log=worker.chosen.log and options.log,
            guard=guard,
            tee=worker.tee,
        )
        slot.watch(job)
        try:
            outcome = perform(
                envelope,
                claimed,
                worker.rules,
                sinks,
                guard,
                around=lambda body: output.captured(sinks, body),
            )
            sinks.close()
            return outcome
        finally:
            worker.keeper.forget(job)
            if self._home is not None:
                try:  # noqa: SIM105 - at each job, and suppress costs more than the call
                    os.chdir(self._home)
                except OSError:
                    pass  # a body removed it

    def close(self) -> None:
        """Nothing is kept."""


class _Sinks(Journals):
    """The journals of a body in this process: it shows objects, not bundles."""

    def show(self, obj: object) -> None:
        """Format `obj` and put it in the log."""
        self.display(display.bundle(obj))


def owns_the_process() -> bool:
    """Tell whether the calling thread is the main one of a process that is no kernel."""
    if threading.current_thread() is not threading.main_thread():
        return False
    shells = sys.modules.get("IPython.core.interactiveshell")
    return shells is None or not shells.InteractiveShell.initialized()


def tee_to(stream: Any) -> Callable[[str], object]:
    """Return what writes a body's output to `stream` as well, for a worker that owns its process."""
    if isinstance(stream, output.StandIn):
        stream = stream.original

    def tee(text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError) as exc:
            _log.debug("stderr is gone: %s", exc)

    return tee
