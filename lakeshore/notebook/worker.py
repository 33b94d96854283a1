"""The workers of this kernel: a thread per queue, or a process beside the kernel that ends with it.

One per plane and queue: starting it again gives the one that is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from lakeshore import settings
from lakeshore.errors import DispatchError
from lakeshore.notebook.elsewhere import flag
from lakeshore.notebook.tables import Table, plain
from lakeshore.planes.contract import Plane
from lakeshore.planes.default import default_plane
from lakeshore.queues.sync import SyncQueue
from lakeshore.worker.background import WorkerThread

STOP_SECONDS = 2.0
"""How long `stop` holds the cell for a body that does not end."""
IDLE_SECONDS = 10.0
"""How long it does for a worker without a job, which only has to leave."""
UNLOAD_SECONDS = 2.0
START_SECONDS = 5.0
"""How long `start` waits for a process to ask for its first job."""
_LOOK = 0.05
_TAIL_LINES = 200
_SAYS = re.compile(r"[\d:]+ (\w+) (\w+)")
"""The daemon's line on a job: the time, `start` or how it ended, the id."""
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
        self.root = root
        self._told_to_stop = False
        self._seen = not process
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
    def stopping(self) -> bool:
        """Whether it was told to stop and has not ended."""
        if self._thread is not None:
            return self._thread.stopping
        return self._told_to_stop and self.running

    @property
    def starting(self) -> bool:
        """Whether it has not asked for a job yet."""
        if not self._seen:
            self._seen = any(row["pid"] == self._daemon.pid for row in self.plane.workers(self.queue))
        return not self._seen and self.running

    @property
    def state(self) -> str:
        """``"starting"``, ``"running"``, ``"stopping"``, ``"stopped"``, or ``"ended"`` by itself."""
        if self.running:
            return "stopping" if self.stopping else "starting" if self.starting else "running"
        return "ended" if self.error else "stopped"

    @property
    def executed(self) -> int:
        """Jobs taken on so far."""
        return self._daemon.executed if self._thread is None else self._thread.executed

    @property
    def current(self) -> str | None:
        """The id of the job that runs now, where known."""
        return self._daemon.current if self._thread is None else self._thread.current

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
        """Take no new job; returns at once.

        Parameters
        ----------
        drain : bool
            Give a running body its grace; False hands a thread's job back at once.
        """
        self._told_to_stop = True
        if self._thread is not None:
            self._thread.stop(drain, timeout=0)
        else:
            self._daemon.hang_up()

    def note(self) -> str | None:
        """What is to be known of a worker that has been told to stop and has not."""
        id = self.current if self.stopping else None
        if id is None:
            return "stopping" if self.stopping else None
        row = self.plane.get(id)
        if row is not None and row["state"] == "running":
            return f"stopping: {id} still runs; after its grace it goes back to the queue"
        return f"stopping: {id} does not end; it is let go"

    def __repr__(self) -> str:
        if self.error and not self.running:
            return f"worker for {self.queue!r} ({self.kind}): ended: {self.error}"
        state = self.note() or self.state
        now = f", now {self.current}" if state == "running" and self.current else ""
        return f"worker for {self.queue!r} ({self.kind}): {state}, {self.executed} executed{now}"

    def _ipython_display_(self) -> None:
        from lakeshore.notebook.worker_panel import show_worker

        show_worker(self, plane=self.plane, kind=self.kind)


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
        self.executed = 0
        self.current: str | None = None
        threading.Thread(target=self._read, name=f"lakeshore-process-{queue}", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            for line in out:
                self._take(line.rstrip())
        self._process.wait()

    def _take(self, line: str) -> None:
        self._tail.append(line)
        if (said := _SAYS.match(line)) is None:
            return
        if said[1] == "start":
            self.executed, self.current = self.executed + 1, said[2]
        elif said[2] == self.current:
            self.current = None

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
_leaving: list[KernelWorker] = []
"""Those that were told to stop and had not ended by then."""
_lock = threading.Lock()


def start(
    plane: Plane, queue: str, *, threads: int = 1, process: bool = False, root: str | None = None
) -> KernelWorker:
    """Start this kernel's worker for a queue, or return the one that runs; one that is stopping is let go.

    A process is waited for until it asks for its first job, at most `START_SECONDS`.

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
        if known is not None and known.running and not known.stopping:
            return known
        made = KernelWorker(plane, queue, threads=threads, process=process, root=root)
        if known is not None:
            _leaving.append(known)
        _workers[id(plane), queue] = made
    deadline = time.monotonic() + START_SECONDS
    while made.starting and time.monotonic() < deadline:
        time.sleep(_LOOK)
    return made


def stop(queue: str | None = None, *, drain: bool = True) -> list[KernelWorker]:
    """Stop the workers of a queue, or all, and return them.

    A body that does not end holds this for `STOP_SECONDS`; then its worker is left to end by itself.

    Parameters
    ----------
    drain : bool
        Give what runs its grace. False hands a thread's job back at once, and leaves a process to drain by
        itself.
    """
    chosen = _living(queue)
    for worker in chosen:
        worker.tell_to_stop(drain=drain)
    started = time.monotonic()
    while open_ := [w for w in chosen if w.running]:
        waited = time.monotonic() - started
        if waited > (IDLE_SECONDS if drain else UNLOAD_SECONDS):
            break
        if waited > STOP_SECONDS and all(w.current for w in open_):
            break
        time.sleep(_LOOK)
    with _lock:
        for place, worker in list(_workers.items()):
            if worker in chosen:
                del _workers[place]
                _leaving.append(worker)
        _leaving[:] = [w for w in _leaving if w.running]
    return chosen


def stop_all() -> list[str]:
    """Stop all workers at once, as the extension goes; return what is to be said of each."""
    said = []
    for worker in _living(None):
        if not worker.running:
            continue
        what = f"the worker for {worker.queue!r} ({worker.kind}) was stopped with the extension"
        process = worker.kind == "process"
        if (id := worker.current) is not None:
            what += f"; {id} {'has its grace to end' if process else 'goes back to the queue'}"
        again = f"{shlex.quote(worker.queue)}{flag(worker.plane)}{' --process' if process else ''}"
        said.append(f"{what}. %lakeshore worker start {again} starts one again")
    stop(drain=False)
    return said


def status(queue: str | None = None) -> Table:
    """Return the workers of this kernel, or of one of its queues, as a table."""
    return table(_living(queue))


def _living(queue: str | None) -> list[KernelWorker]:
    """The kernel's workers, with those that ended by themselves and those that are stopping still."""
    with _lock:
        leaving = [w for w in _leaving if w.running]
        return [w for w in (*_workers.values(), *leaving) if queue in (None, w.queue)]


def differs(worker: KernelWorker, *, threads: int, process: bool, root: str | None) -> str | None:
    """Say how a worker that is there differs from the one that was asked for; None when it does not."""
    asked = "process" if process else f"{threads} threads" if threads > 1 else worker.kind
    if asked == worker.kind and root in (None, worker.root):
        return None
    flag = "--process" if process else f"--threads {threads}" if threads > 1 else ""
    if root is not None:
        flag = f"{flag} --root {shlex.quote(root)}".strip()
    where = f" in {worker.root}" if worker.root is not None else ""
    place = shlex.quote(worker.queue)
    kind = f"a {worker.kind}" if worker.kind in ("thread", "process") else worker.kind
    return (
        f"the worker of {worker.queue!r} runs already, as {kind}{where}, and stays so. "
        f"%lakeshore worker stop {place}, then worker start {place} {flag}"
    )


def table(workers: Iterable[KernelWorker]) -> Table:
    """Return workers as a table."""
    rows = [
        {
            "queue": w.queue,
            "kind": w.kind,
            "state": w.state,
            "executed": w.executed,
            "current": w.current,
            "error": w.error,
            "note": w.note(),
        }
        for w in workers
    ]
    shown = ["queue", "kind", "state", "executed", "current", "error"]
    if any(row["note"] for row in rows):
        shown.append("note")
    columns = dict.fromkeys(shown, plain)
    return Table(rows, columns, empty="no worker in this kernel; %lakeshore worker start QUEUE")
