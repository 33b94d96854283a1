"""The examples of deploy/, read as their tools read them, and their commands as processes of this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"


def documents(path: Path) -> list[Any]:
    """Return what a YAML file holds."""
    yaml = pytest.importorskip("yaml", reason="no YAML reader: the extra dev brings one")
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def compose() -> dict[str, Any]:
    """Return compose.yaml with its variables at their defaults."""
    yaml = pytest.importorskip("yaml", reason="no YAML reader: the extra dev brings one")
    return yaml.safe_load(with_defaults((DEPLOY / "compose" / "compose.yaml").read_text("utf-8")))


def with_defaults(text: str) -> str:
    """Return what a compose file says where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def kubernetes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(file, object)`` for each object of the manifests."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in documents(path):
            yield path.name, document


def unit(name: str) -> list[tuple[str, str]]:
    """Return a systemd unit's settings in order, without its sections."""
    lines = (DEPLOY / "systemd" / name).read_text("utf-8").splitlines()
    return [
        (key, value)
        for line in lines
        if "=" in line and line[0] not in "#["
        for key, _, value in [line.partition("=")]
    ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until(seen: Callable[[], Any], seconds: float = 30.0, told: Callable[[], str] = str) -> Any:
    """Wait until `seen` returns something, and return that."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, told()
        time.sleep(0.03)
    return found


def answers(url: str, token: str | None = None) -> tuple[int, bytes]:
    """Ask as a probe does; (0, b"") where nobody answers."""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, b""
    except OSError:
        return 0, b""


class Machine:
    """Where commands of an example run: names of theirs are places, ports and hosts of a test's own.

    Parameters
    ----------
    folder : Path
        For state and logs.
    places : dict
        What stands for what, the longest first.
    """

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self.folder, self._places = folder, dict(sorted(places.items(), key=lambda pair: -len(pair[0])))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("LAKESHORE_", "PG"))
        } | {"PATH": PATH, "PYTHONUNBUFFERED": "1", "HOME": str(folder)}

    def here(self, word: str) -> str:
        """Return a word of a command with this machine's names in it."""
        pattern = "|".join(re.escape(name) for name in self._places)
        return re.sub(pattern, lambda found: self._places[found[0]], word) if pattern else word

    def run(self, words: Sequence[str], **env: str) -> str:
        """Run a command to its end, which must be a good one; returns what it printed."""
        done = subprocess.run(
            [self.here(word) for word in words],
            env=self.env | {name: self.here(value) for name, value in env.items()},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def start(self, name: str, words: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a command; what it prints is kept for `said`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [self.here(word) for word in words],
                env=self.env | {key: self.here(value) for key, value in env.items()},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def said(self, name: str) -> str:
        """Return what a started command has printed."""
        return (self.folder / f"{name}.log").read_text("utf-8", errors="replace")

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
