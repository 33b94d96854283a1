"""The child in which bodies run under ``isolation="process"``: warm, reused, gone with its parent.

It holds no plane and no claim: it runs one body at a time and reports over a socket. Run by
`lakeshore.worker.process`, never by hand.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

from lakeshore import wire
from lakeshore.errors import ClaimLost, JobCancelled
from lakeshore.functions import transport
from lakeshore.planes.contract import Claimed
from lakeshore.worker import display, forks, output, pipe
from lakeshore.worker.execute import perform
from lakeshore.worker.guard import Guard
from lakeshore.worker.options import Rules
from lakeshore.worker.outcomes import Done, Failed
from lakeshore.worker.process_state import ProcessState

_PR_SET_PDEATHSIG: Final = 1
_PRINT_WAIT: Final = 1.0
_SEND_BYTES: Final = 64 * 1024
"""What may wait on the line to the parent: a body that yields faster than frames are committed is held back
by it, so that its readers see what is new; with three times as much they are nearly twice as late."""


class SignalGuard(Guard):
    """Stops the body in the main thread, from a signal handler that runs there too: flags, no lock."""

    __slots__ = ()

    def stop(self, reason: Any) -> None:
        """Raise `JobCancelled` here and now, or at the end of the shield."""
        if not self._open:
            return
        self.reason = self.reason or reason
        if not self._shielded:
            raise JobCancelled

    def close(self) -> None:
        """Shut the door."""
        self._open = False

    def __enter__(self) -> None:
        self._shielded = True
        if self.reason is not None:
            self._shielded = False
            raise JobCancelled

    def __exit__(self, *exc_info: object) -> None:
        self._shielded = False
        if self.reason is not None and self._open:
            raise JobCancelled


class Line:
    """The line to the parent: whole messages, and none from a process that this one forked."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._home = sock, forks.here()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=sock.close)

    def send(self, *message: Any) -> None:
        """Send one message whole.

        Raises
        ------
        ClaimLost
            When the parent is gone, or this is not the process that it started.
        """
        if forks.here() != self._home:
            raise ClaimLost("this process was forked from the one that has the job; it reports nothing")
        with self._lock:
            try:
                pipe.send(self._socket, list(message))
            except OSError as exc:
                raise ClaimLost("the worker is gone; its child drops the result") from exc


class Reports:
    """Sends what one body gives to the parent, under the job's name, until the body has ended.

    What the body leaves behind (a thread, a callback) keeps this object and no other, so nothing of it
    can reach a later job.

    Attributes
    ----------
    closed : bool
        The body has ended; what is reported from now on is dropped.
    printing : RLock
        Held while the body, or a thread of it, prints.
    """

    def __init__(self, line: Line, claimed: Claimed, guard: Guard) -> None:
        self._line, self._guard = line, guard
        self._name = (claimed.id, claimed.fence)
        self.printing = threading.RLock()  # a signal handler may print too
        self.closed = False

    def send(self, kind: str, *fields: Any) -> None:
        """Send one message; a signal does not cut it."""
        if self.closed:
            return
        if threading.current_thread() is not threading.main_thread():
            self._line.send(kind, *self._name, *fields)
        else:
            with self._guard:
                self._line.send(kind, *self._name, *fields)

    def end(self, kind: str, *fields: Any) -> None:
        """Send the outcome, and nothing more."""
        # A thread may be in mid-print: that is this job's yet. Where it cannot go on (the body led its
        # stdout to where nobody reads) it is not waited for.
        held = self.printing.acquire(timeout=_PRINT_WAIT)
        self.closed = True
        if held:
            self.printing.release()
        self._line.send(kind, *self._name, *fields)

    def values(self, frames: list[bytes]) -> None:
        """Send the frames of one yielded value."""
        self.send("values", frames)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Send the newest progress."""
        self.send("progress", done, total, None if note is None else str(note)[:1000])

    def show(self, obj: object) -> None:
        """Send an object's display."""
        self.display(display.bundle(obj))

    def display(self, bundle: dict[str, Any]) -> None:
        """Send a display that is formatted already."""
        self.send("display", wire.pack(bundle))

    def write(self, stream: str, text: str) -> None:
        """Print; the parent reads this process's own stdout and stderr."""
        getattr(sys, stream).write(text)


class _Printed(io.TextIOWrapper):
    """A stream of this process, without what the threads of an ended body print."""

    def write(self, text: str, /) -> int:
        body = output.sink()
        if not isinstance(body, Reports):
            return super().write(text)
        with body.printing:
            return len(text) if body.closed else super().write(text)


class _Stream:
    """stdout or stderr of this process, put right after a body that closed or replaced it."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._kept = os.dup(descriptor)
        self._mine: TextIO | None = None

    def renew(self) -> None:
        os.dup2(self._kept, self._descriptor)
        if self._mine is None or self._mine.closed or getattr(sys, self._name) is not self._mine:
            self._mine = _Printed(
                open(self._descriptor, "wb", buffering=0, closefd=False),  # noqa: SIM115 - it stays open
                encoding="utf-8",
                errors="backslashreplace",
                write_through=True,
            )
            setattr(sys, self._name, self._mine)
            setattr(sys, f"__{self._name}__", self._mine)


class Child:
    """The child's one loop."""

    def __init__(self, sock: socket.socket, life: int) -> None:
        self._inbox = pipe.Inbox(sock)
        self._line, self._here = Line(sock), forks.here()
        self._life = life
        self._home, self._state = Path.cwd(), ProcessState(environ=True)
        self._guard: SignalGuard | None = None
        self._rules = Rules(root=self._home)
        self._streams = (_Stream(1, "stdout"), _Stream(2, "stderr"))

    def serve(self) -> None:
        """Run what comes until the parent closes the line."""
        while self._inbox.receive():
            for kind, *fields in self._inbox.take():
                if kind == "rules":
                    self._take_rules(*fields)
                else:
                    self._job(*fields)

    def _take_rules(self, root: str, gates: dict[str, Any], registry: dict[str, Any]) -> None:
        gates["allow_modules"] = tuple(gates["allow_modules"])
        if gates["remote"] is not None:
            from lakeshore.worker.remote import Remote  # a worker on a file has none

            gates["remote"] = Remote.told_by(gates["remote"])
        functions = {
            name: transport.resolve(
                fn, registry=None, allow_pickled=True, runtime_policy="off", trusted=True
            )[0]
            for name, fn in registry.items()
        }
        self._rules = Rules(root=Path(root), registry=functions, **gates)
        self._state = ProcessState(environ=True)  # what the functions' modules set stays
        forks.stay(self._here)  # a module may fork while it is imported
        self._line.send("ready", "", 0)

    def _job(self, id: str, envelope: bytes, attempt: int, queue: str, fence: int) -> None:
        signal.signal(signal.SIGTERM, self._on_term)  # a body may have taken it
        for stream in self._streams:
            stream.renew()
        claimed = Claimed(id, envelope, attempt, queue, fence)
        guard = self._guard = SignalGuard()
        reports = Reports(self._line, claimed, guard)
        try:
            outcome = perform(
                wire.Envelope.from_bytes(envelope),
                claimed,
                self._rules,
                reports,
                guard,
                around=lambda body: output.captured(reports, body),
            )
        finally:
            guard.close()
            self._guard = None
        self._flush()
        with contextlib.suppress(OSError):  # a body may have removed it
            os.chdir(self._home)
        if isinstance(outcome, Done):
            reports.end("done", outcome.result, outcome.frames)
        elif isinstance(outcome, Failed):
            reports.end(
                "failed", outcome.type, outcome.message, outcome.traceback, outcome.refused, outcome.frames
            )
        else:
            reports.end("stopped", outcome.traceback, outcome.frames)
        self._state.put_back()

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        try:
            asked = os.read(self._life, 1)
        except BlockingIOError:
            asked = b""
        guard = self._guard
        # A SIGTERM that the parent did not announce went to the whole group of a service that is to stop:
        # the parent drains, and the body has its grace.
        if asked and guard is not None:
            guard.stop("lost")

    @staticmethod
    def _flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (
                OSError,
                ValueError,
                AttributeError,
            ):  # the body closed or replaced it: nothing is left to say
                continue


def _die_with_parent(parent: int) -> int:
    """Have the system kill this process when the parent dies (Linux), and watch the pipe from it.

    Returns
    -------
    int
        The pipe's descriptor: it hangs up with the parent, and holds a byte when the parent asks to stop.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    life = os.dup(0)
    os.set_blocking(life, False)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    hang_up = select.poll()
    hang_up.register(life, 0)  # no event but the end: a byte is left to the signal handler

    def watch() -> None:
        hang_up.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="lakeshore-life", daemon=True).start()
    return life


def main(descriptor: int, parent: int) -> None:
    """Serve over the socket `descriptor` until the parent closes it."""
    os.set_inheritable(descriptor, False)
    life = _die_with_parent(parent)
    forks.end_by_default()
    faulthandler.enable(all_threads=False)
    display.install(output.sink)
    sock = socket.socket(fileno=descriptor)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    Child(sock, life).serve()
