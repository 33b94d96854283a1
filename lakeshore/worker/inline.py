"""Bodies in the worker's own thread: the default of `run_worker` and of a kernel's worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lakeshore.functions.threads import carrying
from lakeshore.planes.contract import Claimed
from lakeshore.worker import display, output
from lakeshore.worker.endings import Options
from lakeshore.worker.execute import perform
from lakeshore.worker.guard import Guard
from lakeshore.worker.journals import Journals
from lakeshore.worker.keeper import Running
from lakeshore.worker.outcomes import Outcome
from lakeshore.worker.process_state import ProcessState
from lakeshore.worker.tee import owns_the_process

if TYPE_CHECKING:
    from lakeshore.wire import Envelope
    from lakeshore.worker.loop import Worker
    from lakeshore.worker.slot import Slot


class InlineRunner:
    """Runs bodies in the slot's own thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # after each body a process of our own goes back to where it was; a kernel's directory is the user's
        self._home = str(Path.cwd()) if owns_the_process() else None
        self._state = ProcessState(environ=False)
        self._capture = output.Capture()
        self._capture.__enter__()
        self._carrying: carrying | None = None

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
        if self._carrying is None:  # kept until there is no next job: a body within it need not set it up
            self._carrying = carrying()
            self._carrying.__enter__()
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
                self._state.put_back()

    def warm_up(self) -> None:
        """Nothing is to be waited for; threads start as they did before."""
        self._put_back()

    def close(self) -> None:
        """Give stdout and stderr back."""
        self._put_back()
        self._capture.__exit__()

    def _put_back(self) -> None:
        kept, self._carrying = self._carrying, None
        if kept is not None:
            kept.__exit__(None, None, None)


class _Sinks(Journals):
    """The journals of a body in this process: it shows objects, not bundles."""

    def show(self, obj: object) -> None:
        """Format `obj` and put it in the log."""
        self.display(display.bundle(obj))
