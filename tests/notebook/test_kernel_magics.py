"""The magics in real kernels, with workers in the kernel, beside it, and in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from lakeshore import Dispatch, SyncQueue


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
        """Run a cell and take what it publishes."""
        reply = Reply("")

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            reply.outputs.append((message["msg_type"], content))
            reply.text += content.get("text") or content.get("data", {}).get("text/plain", "")
            reply.text += "\n".join(content.get("traceback", ()))

        answer = self.client.execute_interactive(code, timeout=timeout, allow_stdin=False, output_hook=take)
        reply.status, reply.ename = answer["content"]["status"], answer["content"].get("ename", "")
        return reply

    def value(self, expression: str) -> Any:
        """Evaluate an expression whose value has a literal repr."""
        import ast

        reply = self.run(f"print(repr({expression}))")
        assert reply.status == "ok", reply.text
        return ast.literal_eval(reply.text)

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


def test_names_both_ways_and_a_daemon_elsewhere(
    kernels: Callable[[], Kernel], home: Path, plane: Dispatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kernel = kernels()
    kernel.run("import math\ndef helper(x):\n    return math.floor(x) + K\nK = 10")
    reply = kernel.run("%%lakeshore submit gpu\ndef crunch():\n    return helper(2.5)")
    assert reply.status == "ok"
    id = kernel.value("_lakeshore")
    assert id in reply.text
    assert kernel.value("crunch()") == 12
    kernel.run("%%lakeshore submit gpu\nK = 1\nclass Local:\n    y = helper(1.5)\n[Local.y, __name__]")
    whole = kernel.value("_lakeshore")
    for _ in range(2):
        daemon_once(home, tmp_path_factory.mktemp("elsewhere"))
    queue = SyncQueue("gpu", dispatch=plane)
    assert queue.result(id, timeout=0) == 12
    assert queue.result(whole, timeout=0) == [2, "__main__"]


def test_every_refusal_is_an_error_of_one_line(kernels: Callable[[], Kernel], plane: Dispatch) -> None:
    kernel = kernels()
    for code, ename, says in [
        ("%%lakeshore submit gpu\n\n# nothing", "UsageError", "empty"),
        ("%%lakeshore submit $nope\n1", "UsageError", "nope"),
        ("%%lakeshore submit gpu\ndef job():\n    !echo hi\n    return 1", "UsageError", "line 3"),
        ("%%lakeshore submit gpu\ndef job():\n    a = 1\n    return a +* 2", "SyntaxError", "a +* 2"),
        ("%lakeshore show 01NOSUCHJOB", "UnknownInvocation", "01NOSUCHJOB"),
        ("%lakeshore submt gpu", "UsageError", "submit"),
        ("f = open('/dev/null')\n", "", ""),
        ("%%lakeshore submit gpu\nx = f.read()\nx", "CaptureError", "'f'"),
    ]:
        reply = kernel.run(code)
        assert (reply.status, reply.ename) == (("error", ename) if ename else ("ok", "")), reply.text
        assert says in reply.text
        if ename not in ("", "SyntaxError"):
            assert len(reply.text.strip().splitlines()) == 1, reply.text
    assert plane.queues() == {}


def test_tab_and_question_mark(kernels: Callable[[], Kernel]) -> None:
    kernel = kernels()
    for text, matches in [
        ("%lakeshore st", ["status", "stream"]),
        ("%%lakeshore submit --dr", ["--dry-run"]),
    ]:
        reply = kernel.client.complete(text, len(text), reply=True, timeout=30)["content"]
        assert reply["matches"] == matches
        assert text[: reply["cursor_start"]] + matches[0] == text[: text.rindex(" ") + 1] + matches[0]
    answer = kernel.client.execute_interactive("%lakeshore?", timeout=30, output_hook=lambda message: None)
    (page,) = answer["content"]["payload"]
    assert all(word in page["data"]["text/plain"] for word in ("submit", "--on-interrupt", "doctor"))


def test_reattach_after_a_kernel_restart(
    kernels: Callable[[], Kernel], home: Path, plane: Dispatch, tmp_path: Path
) -> None:
    first = kernels()
    first.run("%%lakeshore submit gpu -k train\nfor i in range(3):\n    yield {'i': i}\n'done'")
    id = first.value("_lakeshore")
    first.close()
    daemon_once(home, tmp_path)
    second = kernels()
    for ref in (id, id[:20], "train"):
        assert second.value(f"get_ipython().run_line_magic('lakeshore', 'result {ref}')") == "done"
    shown = second.run(f"%lakeshore stream {id}")
    assert shown.status == "ok"
    assert id in shown.text
    assert "succeeded" in shown.text
    reply = second.run("%%lakeshore submit gpu -k train --text\n1")
    assert f"exists: {id} (succeeded" in reply.text


def test_worker_in_the_kernel_prints_into_no_cell(kernels: Callable[[], Kernel]) -> None:
    kernel = kernels()
    kernel.run("%lakeshore worker start gpu")
    reply = kernel.run(
        "%%lakeshore submit gpu -w 30 -q -r value\nimport sys\nprint('from the body')\n"
        "print('and its stderr', file=sys.stderr)\ndisplay('shown')\n6 * 7"
    )
    assert reply.status == "ok", reply.text
    assert "from the body" not in reply.text
    assert kernel.value("value") == 42
    logs = kernel.run("%lakeshore logs _lakeshore").text
    assert all(word in logs for word in ("from the body", "and its stderr", "shown"))
    pid = kernel.pid()
    started = time.monotonic()
    kernel.client.shutdown()
    until(lambda: not _alive(pid))
    assert time.monotonic() - started < 3


def test_interrupt_ends_the_wait_and_not_the_worker(kernels: Callable[[], Kernel], plane: Dispatch) -> None:
    kernel = kernels()
    kernel.run("%lakeshore worker start gpu --process")
    kernel.run("import threading, os, signal, time")
    kernel.run(
        "%%lakeshore submit gpu -q -o slow\nimport time\nfrom lakeshore import run\nrun.progress(1)\n"
        "end = time.monotonic() + 30\nwhile time.monotonic() < end: time.sleep(0.05)"
    )
    slow = kernel.value("slow")
    until(lambda: (plane.get(slow) or {})["state"] == "running")
    message = kernel.client.execute("%lakeshore wait slow")
    until(lambda: _busy(kernel, message))
    started = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.client.get_shell_msg(timeout=10)
    while reply["parent_header"].get("msg_id") != message:
        reply = kernel.client.get_shell_msg(timeout=10)
    assert time.monotonic() - started < 2
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "Detached")
    assert f"%lakeshore cancel {slow}" in reply["content"]["evalue"]
    assert kernel.value("1 + 1") == 2
    assert (plane.get(slow) or {})["state"] == "running"
    (row,) = plane.workers("gpu")
    assert row["running"] == 1
    kernel.run("%lakeshore cancel slow")
    kernel.run("%%lakeshore submit gpu -q -w 30 -r value\n'still works'")
    assert kernel.value("value") == "still works"
    kernel.run("%lakeshore worker stop")
    assert kernel.run("%lakeshore worker status").text.startswith("no worker")


def _busy(kernel: Kernel, message: str) -> bool:
    seen = kernel.client.get_iopub_msg(timeout=10)
    return seen["parent_header"].get("msg_id") == message and seen["msg_type"] == "execute_input"


@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_a_process_ends_with_its_kernel(kernels: Callable[[], Kernel], plane: Dispatch, end: str) -> None:
    kernel = kernels()
    kernel.run("w = %lakeshore worker start gpu --process")
    assert [row["pid"] for row in plane.workers("gpu")] == [kernel.value("w._daemon.pid")]
    pid = int(kernel.value("w._daemon.pid"))
    kernel.run("%%lakeshore submit gpu -q -w 30\n1")
    assert _alive(pid)
    if end == "kill":
        os.kill(kernel.pid(), signal.SIGKILL)
    kernel.close()
    until(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    """Whether a process runs (one that nobody has waited for is dead all the same)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_remote_error_shows_the_users_lines(
    kernels: Callable[[], Kernel], home: Path, plane: Dispatch, tmp_path: Path
) -> None:
    kernel = kernels()
    kernel.run("%%lakeshore submit gpu -q\ndef ratio(d):\n    return 10 / d\ndef job():\n    return ratio(0)")
    daemon_once(home, tmp_path)
    reply = kernel.run("%lakeshore result _lakeshore")
    assert (reply.status, reply.ename) == ("error", "InvocationFailed")
    assert all(text in reply.text for text in ("ZeroDivisionError", "ratio", "return 10 / d", "line 3")), (
        reply.text
    )
    assert "lakeshore/notebook" not in reply.text
