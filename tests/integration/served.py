"""`lakeshore serve` as a process of its own, started again on the same port after it was killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


class Process:
    """A server process over a file in `folder`, which is its LAKESHORE_HOME; `code` runs in the CLI's place.

    Attributes
    ----------
    url : str
        Where it is reached, the same after every start.
    said : str
        All that it printed so far, both streams.
    """

    def __init__(self, folder: Path, *flags: str, code: str | None = None, **env: str) -> None:
        self.folder, self._flags = folder, flags
        self._program = ("-m", "lakeshore.cli") if code is None else ("-c", code)
        self._env = {**os.environ, "LAKESHORE_HOME": str(folder), "PYTHONUNBUFFERED": "1", **env}
        self.url, self.said = "", ""
        self._place, self._port = _kept_port()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def start(self) -> Process:
        command = [sys.executable, *self._program, "serve", "--port", self._port, *self._flags]
        process = subprocess.Popen(
            command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._process = process
        ready = threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, ready))
            for stream in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        assert ready.wait(60) and process.poll() is None, self.said
        found = re.search(r"export LAKESHORE_URL=(\S+)", self.said)
        assert found is not None, self.said
        self.url = found[1]
        self._port = self.url.rpartition(":")[2]
        return self

    def _read(self, stream: Any, ready: threading.Event) -> None:
        for line in stream:
            self.said += line
            if line.startswith("ready"):
                ready.set()
        ready.set()

    @property
    def token(self) -> str:
        """The admin token that the first start printed."""
        found = re.search(r"lsk_\S+", self.said)
        assert found is not None, self.said
        return found[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it and return the exit code."""
        process = self._process
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(40)
        for reader in self._readers:
            reader.join()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        self._process = None
        return code

    def __enter__(self) -> Process:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._place is not None:
            self._place.close()


def _kept_port() -> tuple[socket.socket | None, str]:
    """Return a port that stays the server's while it is down.

    Ports that are given out are also those that any connection of this machine may leave from: without a
    socket that has it, one may have it when the server starts again.
    """
    if sys.platform != "linux":  # others let no second socket have it
        return None, "0"
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place, str(place.getsockname()[1])
