"""The parent's end of a child process: spawn it, hand it a job, take what it reports, bury it.

The parent keeps claim, lease, frames and ending, so whatever happens to the child costs one attempt
and never the worker.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakeshore import wire
from lakeshore.errors import ClaimLost
from lakeshore.planes.contract import Claimed
from lakeshore.worker import pipe
from lakeshore.worker.endings import Options
from lakeshore.worker.guard import Reason
from lakeshore.worker.journals import Journals
from lakeshore.worker.keeper import Running
from lakeshore.worker.outcomes import PACKAGE, Done, Failed, Outcome, Stopped
from lakeshore.worker.slot import Slot, Unusable
from lakeshore.worker.spawn import Spawned

if TYPE_CHECKING:
    from lakeshore.wire import Envelope
    from lakeshore.worker.loop import Worker

KILL_AFTER: Final = 5.0
"""Seconds between SIGTERM and SIGKILL for a body that is to stop."""
START_WAIT: Final = 60.0
CLOSE_WAIT: Final = 2.0
_DYING: Final = 1.0
_TAIL: Final = 2000
_READ: Final = 65536
_INT: Final = struct.Struct("i")


class Child:
    """One child process and the line to it."""

    def __init__(self, spawned: Spawned, *setup: Any) -> None:
        self._process, self._socket = spawned.process, spawned.line
        self._line = self._socket.fileno()
        self._inbox = pipe.Inbox(self._socket)
        self._outputs: dict[int, str] = {}
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("backslashreplace") for name in ("stdout", "stderr")
        }
        self._poll = select.poll()
        self._poll.register(self._line, select.POLLIN)
        for name in ("stdout", "stderr"):
            descriptor = getattr(self._process, name).fileno()
            os.set_blocking(descriptor, False)
            self._outputs[descriptor] = name
            self._poll.register(descriptor, select.POLLIN)
        self._setup: tuple[Any, ...] | None = setup

    def send(self, *message: Any) -> None:
        """Send one message; a child that is gone is seen at the next `listen`."""
        with contextlib.suppress(OSError):
            pipe.send(self._socket, list(message))

    @property
    def ready(self) -> bool:
        """Whether the child has said that it is up."""
        return self._setup is None

    def wait_ready(self) -> None:
        """Wait until the child is up and has taken its rules; nothing to wait for the second time.

        Raises
        ------
        Unusable
            When it ended instead, with the last that it said.
        """
        if self._setup is None:
            return
        said: list[str] = []
        self.send("rules", *self._setup)
        self._setup = None
        until = time.monotonic() + START_WAIT
        messages: list[list[Any]] | None = []
        while not messages:
            messages = self.listen(lambda name, text: said.append(text))
            if messages is None or time.monotonic() > until:
                self.kill()
                code = self.close()
                lines = "".join(said).strip().splitlines()[-5:]
                raise Unusable(
                    f"the child process for bodies does not start (it {_how(code)}): " + " | ".join(lines)
                )

    def listen(self, printed: Callable[[str, str], None]) -> list[list[Any]] | None:
        """Wait at most a second for what the child says; None once it is gone and all is said."""
        reading = False
        for descriptor, _ in self._poll.poll(1000):
            if descriptor == self._line:
                reading = True
            else:
                self._read(descriptor, printed, _READ)
        if reading:
            open_line = self._inbox.receive()
        else:  # what it started may print on, or hold the line open, when it is dead
            open_line = self.alive()
            if not open_line:
                self._inbox.rest()
        messages = self._inbox.take()
        if messages or open_line:
            return messages
        self.drain(printed)
        return None

    def _read(self, descriptor: int, printed: Callable[[str, str], None], limit: int) -> int:
        name = self._outputs[descriptor]
        try:
            data = os.read(descriptor, limit)
        except BlockingIOError:
            return 0
        if not data:
            self._poll.unregister(descriptor)
            del self._outputs[descriptor]
            return 0
        text = self._decoders[name].decode(data)
        if text:
            printed(name, text)
        return len(data)

    def drain(self, printed: Callable[[str, str], None]) -> None:
        """Hand over what is printed by now, and no more: what a body left running may print without end."""
        for descriptor in tuple(self._outputs):
            (waiting,) = _INT.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_INT.size)))
            while waiting > 0 and (read := self._read(descriptor, printed, min(waiting, _READ))):
                waiting -= read

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def lives_on(self) -> bool:
        """Whether the process runs although its line is closed; one that dies closes it a moment before."""
        try:
            self._process.wait(_DYING)
        except subprocess.TimeoutExpired:
            return True
        return False

    def terminate(self) -> None:
        """Ask the body to stop; the byte tells the child that the signal is ours."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), b"!")
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child and what it started."""
        if self.alive():
            self._process.kill()  # a body may have left the group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self, wait: float = CLOSE_WAIT) -> int:
        """End the child, by force after `wait` seconds; returns its exit code (negative: the signal)."""
        self._socket.close()
        try:
            code = self._process.wait(wait)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        return code


class ChildDoor:
    """Stops the body in a child: SIGTERM, then SIGKILL.

    Parameters
    ----------
    hurry : callable
        Whether the worker was told to hand back at once.
    """

    in_thread = False

    def __init__(self, child: Child, hurry: Callable[[], bool]) -> None:
        self._child, self._hurry = child, hurry
        self._asked_at = 0.0
        self._lock = threading.Lock()
        self._open = True
        self.reason: Reason | None = None

    def stop(self, reason: Reason) -> None:
        """Ask the body to stop; from the second time on, by force. Nothing once the door is shut."""
        now = time.monotonic()
        with self._lock:
            if not self._open:
                return
            if self.reason is None:
                self.reason, self._asked_at = reason, now
                self._child.terminate()
            if self._hurry() or now >= self._asked_at + KILL_AFTER:
                self._child.kill()

    def close(self) -> None:
        """Shut the door: the body has ended, and no signal meant for it may reach the next."""
        with self._lock:
            self._open = False


class _NoBody:
    """The door of a claim whose child is still starting: there is nothing to stop yet."""

    in_thread = False
    reason: Reason | None = None

    def stop(self, reason: Reason) -> None:
        """Do nothing; the body's own door is told soon."""


class ChildRunner:
    """Runs the bodies of one slot in a child that is kept warm."""

    def __init__(self, worker: Worker, spawned: Spawned | None = None) -> None:
        self._worker = worker
        self._child: Child | None = None
        self._code: str | None = None
        self._registry = _described(worker.rules.registry)
        if spawned is not None or not worker.chosen.once:
            self._child = self._spawn(spawned)

    def warm_up(self) -> None:
        """Wait until the child is up, while there is nothing else to do."""
        if self._child is not None:
            self._child.wait_ready()

    def run(self, slot: Slot, claimed: Claimed, envelope: Envelope, options: Options) -> Outcome:
        """Run one body in the child to its outcome."""
        worker = self._worker
        code = "" if worker.rules.remote is None else worker.rules.remote.code_of(envelope.cfg)
        if self._code not in (None, code):
            self._discard()  # what a module of other code did to the process stays done
        child = self._warm(slot, claimed)
        self._code = code
        door = ChildDoor(child, lambda: worker.at_once)
        job = Running(claimed, slot.worker_id, door, worker.chosen.lease, options.timeout)
        journals = Journals(
            worker.plane,
            job,
            worker.flusher,
            log=worker.chosen.log and options.log,
            tee=worker.tee,
        )
        conversation = _Conversation(child, door, journals, claimed)
        slot.watch(job)
        keep = False
        try:
            child.send("job", claimed.id, claimed.envelope, claimed.attempt, claimed.queue, claimed.fence)
            outcome = conversation.follow()
            door.close()
            keep = door.reason is None and child.alive()
            journals.close()
            return outcome
        finally:
            worker.keeper.forget(job)
            if not keep:
                self._discard()
                if not worker.chosen.once:
                    with contextlib.suppress(OSError):  # told at the next job, should it last
                        self._child = self._spawn()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _warm(self, slot: Slot, claimed: Claimed) -> Child:
        child = self._child
        if child is None or not child.alive():
            self._discard()
            try:
                child = self._child = self._spawn()
            except OSError as exc:
                raise Unusable(f"no child process for bodies can be started: {exc}") from exc
        if not child.ready:
            job = Running(claimed, slot.worker_id, _NoBody(), self._worker.chosen.lease, None)
            self._worker.keeper.watch(job)
            try:
                child.wait_ready()
            finally:
                self._worker.keeper.forget(job)
        child.drain(lambda name, text: None)  # what a thread of an earlier body said since
        return child

    def _discard(self) -> None:
        child, self._child = self._child, None
        self._code = None
        if child is not None:
            child.kill()
            child.close()

    def _spawn(self, spawned: Spawned | None = None) -> Child:
        rules = self._worker.rules
        gates = {
            "allow_pickled": rules.allow_pickled,
            "runtime_policy": rules.runtime_policy,
            "trusted": rules.trusted,
            "allow_modules": list(rules.allow_modules),
            "max_payload": rules.max_payload,
            "remote": None if rules.remote is None else rules.remote.told(),
        }
        return Child(spawned or Spawned(), str(rules.root), gates, self._registry)


def _described(registry: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    if not registry:
        return {}
    from lakeshore.functions import transport  # 40 ms, which a worker without a registry need not spend

    return {name: transport.describe(fn) for name, fn in registry.items()}


class _Conversation:
    """One job in a child, from its start to the outcome that the child, or its death, tells."""

    def __init__(self, child: Child, door: ChildDoor, journals: Journals, claimed: Claimed) -> None:
        self._child, self._door, self._journals = child, door, journals
        self._name = [claimed.id, claimed.fence]
        self._tail = ""
        self._frames = 0

    def follow(self) -> Outcome:
        """Take what comes until the job has ended.

        Raises
        ------
        ClaimLost
            When a frame was refused; the body has been stopped by then.
        """
        child = self._child
        lost: ClaimLost | None = None
        outcome: Outcome | None = None
        while outcome is None:
            messages = child.listen(self._print)
            if messages is None:
                outcome = self._died()
                break
            for kind, id, fence, *fields in messages:
                if [id, fence] != self._name:  # of an earlier job's thread
                    continue
                try:
                    outcome = self._message(kind, *fields)
                except ClaimLost as exc:
                    lost = exc
                if outcome is not None:  # the last word on this job
                    break
            try:
                if outcome is not None:
                    child.drain(self._print)
                if lost is None:
                    self._journals.flush_values()
            except ClaimLost as exc:
                lost = exc
            if lost is not None:
                self._door.stop("lost")
        if lost is not None:
            raise lost
        return outcome

    def _message(self, kind: str, *fields: Any) -> Outcome | None:
        journals = self._journals
        if kind == "values":
            self._frames += len(fields[0])
            journals.hold(fields[0])
        elif kind == "progress":
            journals.progress(*fields)
        elif kind == "display":
            journals.display(wire.unpack(fields[0]))
        elif kind == "done":
            return self._unless_stopped(Done(*fields))
        elif kind == "failed":
            return self._unless_stopped(Failed(*fields))
        elif kind == "stopped":
            return Stopped(self._door.reason or "lost", *fields)
        return None

    def _unless_stopped(self, outcome: Done | Failed) -> Outcome:
        # as inline: a body that was to stop has no result, whatever it made of that
        reason = self._door.reason
        if reason is None or (isinstance(outcome, Failed) and outcome.refused):
            return outcome
        return Stopped(reason, outcome.traceback if isinstance(outcome, Failed) else None, outcome.frames)

    def _print(self, name: str, text: str) -> None:
        self._tail = (self._tail + text)[-_TAIL:]
        self._journals.write(name, text)

    def _died(self) -> Outcome:
        child = self._child
        lived = self._door.reason is None and child.lives_on()
        child.kill()
        code = child.close()
        if self._door.reason is not None:
            return Stopped(self._door.reason, None, self._frames)
        lines = "\n".join(line for line in self._tail.splitlines() if not _is_ours(line))
        said = f". The last it printed:\n{lines}" if lines.strip() else ""
        how = "closed the worker's line to it (all its descriptors?), and was ended" if lived else _how(code)
        return Failed("ProcessDied", f"the body's process {how}{said}", frames=self._frames)


def _is_ours(line: str) -> bool:
    """Whether a line of a crash report is a frame of the worker's own."""
    return f'File "{PACKAGE}' in line or 'File "<string>"' in line or line.startswith("Extension modules:")


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code} before the body had ended"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    hint = "; the system does this when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {name} (signal {-code}{hint})"
