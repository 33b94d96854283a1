"""The workers of this kernel: a thread per queue, or a process beside the kernel that ends with it.

One per plane and queue: starting it again gives the one that is there.
"""

from __future__ import annotations

import contextlib
import html
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lakeshore import settings
from lakeshore.errors import DispatchError
from lakeshore.notebook.tables import Table, plain
from lakeshore.planes.contract import Plane
from lakeshore.planes.default import default_plane
from lakeshore.queues.sync import SyncQueue
from lakeshore.worker.background import WorkerThread

DRAIN_SECONDS = 37.0
"""How long `stop` waits for a process: its grace and what stopping a body takes."""
UNLOAD_SECONDS = 2.0
_TAIL_LINES = 200
# The daemon, told to drain when its stdin ends: the kernel holds the other end, which closes however it goes.
_LAUNCH = """\
import os, runpy, signal, sys, threading
line = os.dup(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
def watch():
    while os.read(line, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=watch, daemon=True).start()
sys.argv[0] = "lakeshore.daemon"
runpy.run_module("lakeshore.daemon", run_name="__main__", alter_sys=True)
"""


class KernelWorker:
    """A queue's worker in this kernel, or in a process that this kernel launched.

    Attributes
    ----------
    queue : str
        The queue it works.
    kind : str
        ``"thread"``, ``"N threads"`` or ``"process"``.
    """

    def __init__(self, plane: Plane, queue: str, *, threads: int, process: bool, root: str | None) -> None:
        self.plane, self.queue = plane, queue
        self.kind = "process" if process else "thread" if threads == 1 else f"{threads} threads"
        self._thread: WorkerThread | None = None
        self._process: _Daemon | None = None
        q = SyncQueue(queue, dispatch=plane)
        if process:
            self._process = _Daemon(plane, queue, root)
        else:
            self._thread = WorkerThread(q, root=root, concurrency=threads).start()

    @property
    def running(self) -> bool:
        """Whether it still takes jobs."""
        return self._thread.running if self._thread is not None else self._daemon.running

    @property
    def executed(self) -> int | None:
        """Jobs taken on so far; None for a process, which keeps its own count."""
        return None if self._thread is None else self._thread.executed

    @property
    def current(self) -> str | None:
        """The id of the job that runs now, where known."""
        if self._thread is not None:
            return self._thread.current
        rows = self.plane.invocations(self.queue, state="running", limit=20)
        return next((row["id"] for row in rows if f"-{self._daemon.pid}-" in (row["worker_id"] or "")), None)

    @property
    def error(self) -> str | None:
        """Why it ended by itself, or None."""
        if self._thread is not None:
            fault = self._thread.error
            return None if fault is None else f"{type(fault).__name__}: {fault}"
        return self._daemon.error

    @property
    def _daemon(self) -> _Daemon:
        assert self._process is not None
        return self._process

    def tell_to_stop(self, *, drain: bool = True) -> None:
        """Take no new job; returns at once."""
        if self._thread is not None:
            self._thread.stop(drain, timeout=0)
        else:
            self._daemon.hang_up()

    def stop(self, timeout: float | None = None, *, drain: bool = True) -> bool:
        """Take no new job, wait for the running one; returns whether it has ended.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; default its grace and what stopping a body takes.
        drain : bool
            Give a running body its grace; False hands a thread's job back at once.
        """
        if self._thread is not None:
            return self._thread.stop(drain, timeout=timeout)
        return self._daemon.stop(DRAIN_SECONDS if timeout is None else timeout)

    def __repr__(self) -> str:
        if self.error and not self.running:
            return f"worker for {self.queue!r} ({self.kind}): ended: {self.error}"
        state = "running" if self.running else "stopped"
        done = "" if self.executed is None else f", {self.executed} executed"
        now = f", now {self.current}" if self.running and self.current else ""
        return f"worker for {self.queue!r} ({self.kind}): {state}{done}{now}"

    def _repr_html_(self) -> str:
        mark = "●" if self.running else "○"
        return f'<div class="lakeshore-worker">{mark} {html.escape(repr(self))}</div>'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


class _Daemon:
    """``python -m lakeshore.daemon`` with a line to this process."""

    def __init__(self, plane: Plane, queue: str, root: str | None) -> None:
        argv = [sys.executable, "-c", _LAUNCH, "--queue", queue]
        if root is not None:
            argv += ["--root", str(Path(root).expanduser().absolute())]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(plane),
            text=True,
            errors="replace",
            # Ctrl-C goes to the kernel's process group; it must stop the cell, not the worker.
            start_new_session=True,
        )
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        threading.Thread(target=self._read, name=f"lakeshore-process-{queue}", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            self._tail.extend(line.rstrip() for line in out)
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def error(self) -> str | None:
        code = self._process.poll()
        if not code:
            return None
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return f"{how}: {self._tail[-1] if self._tail else 'no output'}"

    def hang_up(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has gone already
                self._process.stdin.close()

    def stop(self, timeout: float) -> bool:
        self.hang_up()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def _environment(plane: Plane) -> dict[str, str]:
    """The environment in which the daemon opens this very plane."""
    path, environment = getattr(plane, "path", None), settings.read()
    if plane is default_plane() and (environment.url or path == environment.database.absolute()):
        return dict(os.environ)
    if path is None or path.name != environment.database.name:
        raise DispatchError(
            f"worker start --process: another process cannot open {plane!r}. Leave out --process, "
            f"or use a plane in a file named {environment.database.name}"
        )
    return {**os.environ, "LAKESHORE_HOME": str(path.parent)}


_workers: dict[tuple[int, str], KernelWorker] = {}
_lock = threading.Lock()


def start(
    plane: Plane, queue: str, *, threads: int = 1, process: bool = False, root: str | None = None
) -> KernelWorker:
    """Start this kernel's worker for a queue, or return the one that runs.

    Parameters
    ----------
    threads : int
        Jobs at a time, each in a thread of the kernel.
    process : bool
        Work in a process beside the kernel instead.
    root : str, optional
        Root of `run.write` and `run.read`; default the working directory.

    Raises
    ------
    ValueError
        When the queue's name or the root cannot be used.
    DispatchError
        When a process cannot open this plane.
    """
    with _lock:
        known = _workers.get((id(plane), queue))
        if known is not None and known.running:
            return known
        made = _workers[id(plane), queue] = KernelWorker(
            plane, queue, threads=threads, process=process, root=root
        )
        return made


def stop(queue: str | None = None, *, drain: bool = True) -> list[KernelWorker]:
    """Stop the workers of a queue, or all, and return them.

    Parameters
    ----------
    drain : bool
        Wait for what runs. False hands a thread's job back at once, and leaves a process to drain by itself.
    """
    with _lock:
        chosen = [w for w in _workers.values() if queue in (None, w.queue)]
    for worker in chosen:
        worker.tell_to_stop(drain=drain)
    for worker in chosen:
        worker.stop(None if drain else UNLOAD_SECONDS, drain=drain)
    with _lock:
        for place, worker in list(_workers.items()):
            if worker in chosen and (not worker.running or not drain):
                del _workers[place]
    return chosen


def status(queue: str | None = None) -> Table:
    """Return the workers of this kernel, or of one of its queues, as a table."""
    with _lock:
        return table([w for w in _workers.values() if queue in (None, w.queue)])


def table(workers: Iterable[KernelWorker]) -> Table:
    """Return workers as a table."""
    rows = [
        {
            "queue": w.queue,
            "kind": w.kind,
            "state": "running" if w.running else "ended" if w.error else "stopped",
            "executed": w.executed,
            "current": w.current,
            "error": w.error,
        }
        for w in workers
    ]
    columns = dict.fromkeys(("queue", "kind", "state", "executed", "current", "error"), plain)
    return Table(rows, columns, empty="no worker in this kernel; %lakeshore worker start QUEUE")
