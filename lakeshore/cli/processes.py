"""Processes that `lakeshore worker start` started: known by what they run, signalled only when surely ours.

A plane notes a worker's pid, and a pid is used again once its process is gone. So a process is held (by a
pidfd where there are such), looked at, and only then signalled.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SILENT_SECONDS: Final = 600.0
"""A worker that runs nothing and has asked for nothing for so long is gone."""
_MARK: Final = ("-m", "lakeshore.daemon", "--drain-on-eof")
_CLOCK_SLACK: Final = 5.0
_LOOK_SECONDS: Final = 0.05


class Process:
    """A running process by its pid.

    Raises
    ------
    ProcessLookupError
        When there is none.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        if hasattr(os, "pidfd_open"):
            try:
                self._fd = os.pidfd_open(pid)
            except ProcessLookupError:
                raise
            except OSError:  # an old kernel or a sandbox has none
                pass
        if self._fd < 0 and not _exists(pid):
            raise ProcessLookupError(pid)

    def close(self) -> None:
        """Let go of it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def why_not(self, seen_at: float) -> str | None:
        """Say why it is not the worker that the plane saw at `seen_at`; None when it is."""
        try:
            uid, began, command = _look(self.pid)
        except (OSError, ValueError):
            return "cannot be looked at"
        if uid != os.geteuid():
            return "belongs to another user"
        if not any(command[i : i + 3] == list(_MARK) for i in range(len(command))):
            return "was not started by `lakeshore worker start`"
        if began > seen_at + _CLOCK_SLACK:
            return "is another process: the worker is gone"
        return None

    def send(self, number: int) -> None:
        """Send a signal; nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            else:
                os.kill(self.pid, number)

    def ended_within(self, timeout: float) -> bool:
        """Wait for its end, at most `timeout` seconds."""
        if self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            return bool(poll.poll(max(0, int(timeout * 1000))))
        end = time.monotonic() + timeout
        while _exists(self.pid):
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def is_gone(worker: Mapping[str, Any]) -> bool:
    """Whether a noted worker is there no more: for sure on this machine, elsewhere by its silence."""
    if worker["host"] == socket.gethostname():
        if not _exists(worker["pid"]):
            return True
        with contextlib.suppress(OSError, ValueError):
            if _look(worker["pid"])[1] > worker["seen_at"] + _CLOCK_SLACK:
                return True  # its pid is another process's by now
    return not worker["running"] and time.time() - worker["seen_at"] > SILENT_SECONDS


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _look(pid: int) -> tuple[int, float, list[str]]:
    """Return a process's user, its start in Unix seconds, and its command line."""
    folder = Path(f"/proc/{pid}")
    if folder.exists():
        command = folder.joinpath("cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        # What follows the name, which may hold anything; the start, in ticks since the boot, is the 22nd.
        fields = folder.joinpath("stat").read_text("utf-8", "surrogateescape").rpartition(")")[2].split()
        ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        began = time.time() - time.clock_gettime(_boot_clock()) + ticks
        return folder.stat().st_uid, began, command
    said = subprocess.run(  # noqa: S603 - a fixed command and a number
        ["/bin/ps", "-ww", "-o", "uid=,lstart=,command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C"},
    ).stdout.split()
    if len(said) < 7:
        raise ProcessLookupError(pid)
    began = time.mktime(time.strptime(" ".join(said[1:6]), "%a %b %d %H:%M:%S %Y"))
    return int(said[0]), began, said[6:]


def _boot_clock() -> int:
    return getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
