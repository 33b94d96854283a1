"""Keeps worker daemons alive: restarts a crashed one with backoff, gives up when it keeps crashing.

Signals are handed on, once each; a daemon whose supervisor is gone drains, because its stdin closed.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

CRASHES: Final = 5
WITHIN: Final = 60.0
"""So many crashes of one worker within so many seconds, and the supervisor gives up."""
BACKOFF: Final = 0.5
BACKOFF_CAP: Final = 30.0
_NOT_MENDED: Final = (2, 3)
"""Exit codes of a daemon that a restart does not help: wrong usage, a plane that refuses it."""


class Supervised:
    """One place at which a daemon runs."""

    def __init__(self, command: Sequence[str], label: str) -> None:
        self._command, self._label = command, label
        self._process: subprocess.Popen[bytes] | None = None
        self._dead: int | None = None
        self._reader: threading.Thread | None = None
        self._crashes: collections.deque[float] = collections.deque(maxlen=CRASHES)
        self.said: collections.deque[str] = collections.deque(maxlen=5)
        self.start_at: float | None = time.monotonic()

    @property
    def running(self) -> bool:
        """Whether its process has not been seen to end."""
        return self._process is not None

    def start(self) -> None:
        """Start the daemon; one that crashed before is named to it, so that its jobs run again at once."""
        self.start_at = None
        after = [] if self._dead is None else ["--after", str(self._dead)]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*self._command, *after], stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def send(self, number: int) -> None:
        """Hand a signal on."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def reap(self) -> int | None:
        """Return the exit code once the daemon has ended, or None."""
        if self._process is None or self._process.poll() is None:
            return None
        assert self._reader is not None
        assert self._process.stdin is not None
        self._reader.join(1.0)
        self._process.stdin.close()
        code = self._process.returncode
        self._dead = self._process.pid if code != 0 else None
        self._process = None
        return code

    def crashed(self) -> bool:
        """Note a crash and plan the restart; False when it has crashed too often."""
        now = time.monotonic()
        self._crashes.append(now)
        if len(self._crashes) == CRASHES and now - self._crashes[0] <= WITHIN:
            return False
        recent = sum(1 for at in self._crashes if now - at <= WITHIN)
        self.start_at = now + min(BACKOFF_CAP, BACKOFF * 2 ** (recent - 1))
        return True

    def _read(self, stream: object) -> None:
        for raw in stream:  # type: ignore[attr-defined]
            line = raw.decode("utf-8", "replace")
            if line.strip():
                self.said.append(line.rstrip())
            sys.stderr.write(f"{self._label}{line}")
            sys.stderr.flush()
        stream.close()  # type: ignore[attr-defined]


class Supervisor:
    """Runs `count` daemons until they drain.

    Parameters
    ----------
    arguments : list of str
        The daemon's flags.
    count : int
        Daemons at a time.
    """

    def __init__(self, arguments: Sequence[str], count: int) -> None:
        command = [sys.executable, "-m", "lakeshore.daemon", "--drain-on-eof", *arguments]
        self._places = [Supervised(command, f"[{n}] " if count > 1 else "") for n in range(1, count + 1)]
        self._draining = False
        self._wake, self._woken = socket.socketpair()

    def run(self) -> int:
        """Supervise until all have ended.

        Returns
        -------
        int
            0 after a drain, 1 after giving up, 2 for wrong flags, 3 where the plane refuses the workers.
        """
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        old_fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        old = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, self._hand_on),
                (signal.SIGINT, self._hand_on),
                (signal.SIGCHLD, lambda number, frame: None),
            )
        }
        try:
            return self._supervise()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            self._wake.close()
            self._woken.close()

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._draining = True
        for place in self._places:
            place.send(number)

    def _supervise(self) -> int:
        outcome = 0
        while True:
            now = time.monotonic()
            for place in self._places:
                if place.start_at is not None and now >= place.start_at and not self._draining:
                    place.start()
                    if self._draining:  # the signal came while it started
                        place.send(signal.SIGTERM)
            if not any(
                place.running or (place.start_at is not None and not self._draining) for place in self._places
            ):
                return outcome
            self._wait(now)
            for place in self._places:
                code = place.reap()
                if code is None or code == 0:
                    continue
                if code in _NOT_MENDED:
                    outcome = code
                    self._stop()
                elif not self._draining:
                    outcome = self._restart(place, code) or outcome

    def _restart(self, place: Supervised, code: int) -> int:
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        if place.crashed():
            assert place.start_at is not None
            wait = place.start_at - time.monotonic()
            sys.stderr.write(f"lakeshore: a worker crashed ({how}); it starts again in {wait:.1f} s\n")
            return 0
        last = place.said[-1] if place.said else "it said nothing"
        sys.stderr.write(
            f"lakeshore: a worker crashed {CRASHES} times in a minute ({how}): giving up. It said: {last}\n"
        )
        self._stop()
        return 1

    def _stop(self) -> None:
        self._draining = True
        for place in self._places:
            place.send(signal.SIGTERM)

    def _wait(self, now: float) -> None:
        starts = [place.start_at for place in self._places if place.start_at is not None]
        timeout = max(0.0, min(starts) - now) if starts and not self._draining else 5.0
        readable, _, _ = select.select([self._woken], [], [], min(timeout, 5.0))
        if readable:
            self._woken.recv(4096)


def run_once(arguments: Sequence[str]) -> int:
    """Run one daemon that takes at most one job; returns its exit code."""
    command = [sys.executable, "-m", "lakeshore.daemon", "--once", *arguments]
    process = subprocess.Popen(command, process_group=0)  # noqa: S603 - our own interpreter and module

    def hand_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)

    old = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return process.wait()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
