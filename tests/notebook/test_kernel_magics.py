"""The magics in real kernels, with workers in the kernel, beside it, and in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lakeshore import Dispatch, SyncQueue
from tests.notebook.conftest import Kernel, alive, daemon_once, until


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
    until(lambda: not alive(pid))
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
    seconds, reply = kernel.interrupt(kernel.begin("%lakeshore wait slow"), after=lambda: time.sleep(0.3))
    assert seconds < 2
    assert (reply.status, reply.ename) == ("error", "Detached")
    assert f"%lakeshore cancel {slow}" in reply.text
    assert kernel.value("1 + 1") == 2
    assert (plane.get(slow) or {})["state"] == "running"
    (row,) = plane.workers("gpu")
    assert row["running"] == 1
    kernel.run("%lakeshore cancel slow")
    kernel.run("%%lakeshore submit gpu -q -w 30 -r value\n'still works'")
    assert kernel.value("value") == "still works"
    kernel.run("%lakeshore worker stop")
    assert kernel.run("%lakeshore worker status").text.startswith("no worker")


@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_a_process_ends_with_its_kernel(kernels: Callable[[], Kernel], plane: Dispatch, end: str) -> None:
    kernel = kernels()
    kernel.run("w = %lakeshore worker start gpu --process")
    assert [row["pid"] for row in plane.workers("gpu")] == [kernel.value("w._daemon.pid")]
    pid = int(kernel.value("w._daemon.pid"))
    kernel.run("%%lakeshore submit gpu -q -w 30\n1")
    assert alive(pid)
    if end == "kill":
        os.kill(kernel.pid(), signal.SIGKILL)
    kernel.close()
    until(lambda: not alive(pid))


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
