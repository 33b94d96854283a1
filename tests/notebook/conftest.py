"""Real kernels that a test drives cell by cell, with a plane of the test's own as their default."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from lakeshore import Dispatch


@dataclass
class Reply:
    """What a cell gave: its status, and everything it published."""

    status: str
    ename: str = ""
    text: str = ""
    outputs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class Kernel:
    """A kernel of its own; `cwd` and `home` are the test's."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.home = home
        self.manager = KernelManager(kernel_name="python3")
        env = {**os.environ, "LAKESHORE_HOME": str(home)}
        self.manager.start_kernel(cwd=str(cwd), env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 60) -> Reply:
        """Run a cell, again where the kernel drops it as it does after an error; take what it publishes."""
        while (reply := self._run(code, timeout)).status == "aborted":
            pass
        return reply

    def _run(self, code: str, timeout: float) -> Reply:
        reply = Reply("")

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            reply.outputs.append((message["msg_type"], content))
            if message["msg_type"] == "update_display_data":  # of a panel somewhere else
                return
            reply.text += content.get("text") or content.get("data", {}).get("text/plain", "")
            reply.text += "\n".join(content.get("traceback", ()))

        answer = self.client.execute_interactive(code, timeout=timeout, allow_stdin=False, output_hook=take)
        reply.status, reply.ename = answer["content"]["status"], answer["content"].get("ename", "")
        return reply

    def value(self, expression: str) -> Any:
        """Evaluate an expression whose value has a literal repr."""
        reply = self.run(f"print(repr({expression}))")
        assert reply.status == "ok", reply.text
        return ast.literal_eval(reply.text)

    def begin(self, code: str) -> str:
        """Start a cell; back once it runs, with the id of its request."""
        message = str(self.client.execute(code, allow_stdin=False))
        while True:
            seen = self.client.get_iopub_msg(timeout=20)
            if seen["parent_header"].get("msg_id") == message and seen["msg_type"] == "execute_input":
                return message

    def interrupt(self, message: str, after: Callable[[], object] = bool) -> tuple[float, Reply]:
        """Interrupt the cell that `begin` started; return the seconds until it ended, and what it gave.

        `after` is called first, to wait until the cell has got somewhere.
        """
        after()
        began = time.monotonic()
        self.manager.interrupt_kernel()
        while (answer := self.client.get_shell_msg(timeout=20))["parent_header"].get("msg_id") != message:
            pass
        seconds, content = time.monotonic() - began, answer["content"]
        text = f"{content.get('evalue', '')}\n" + "\n".join(content.get("traceback", ()))
        return seconds, Reply(content["status"], content.get("ename", ""), text)

    def pid(self) -> int:
        return int(self.value("__import__('os').getpid()"))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.client.stop_channels()
        with contextlib.suppress(Exception):
            self.manager.shutdown_kernel(now=True)


@pytest.fixture
def plane(home: Path) -> Iterator[Dispatch]:
    """The default plane of this test's kernels and daemons."""
    opened = Dispatch(home / "dispatch.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def kernels(home: Path, tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
    """Start kernels with the extension loaded."""
    started: list[Kernel] = []

    def start() -> Kernel:
        kernel = Kernel(home, tmp_path)
        started.append(kernel)
        assert kernel.run("%load_ext lakeshore").status == "ok"
        return kernel

    yield start
    for kernel in started:
        kernel.close()


def daemon_once(home: Path, cwd: Path, queue: str = "gpu") -> None:
    """Run one job in a process of its own, in another directory."""
    env = {**os.environ, "LAKESHORE_HOME": str(home)}
    command = [sys.executable, "-m", "lakeshore.daemon", "--queue", queue, "--once", "--retries", "0"]
    subprocess.run(command, env=env, cwd=cwd, check=True, capture_output=True, timeout=60)


def until(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Look until there is something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (one that nobody has waited for is dead all the same)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
