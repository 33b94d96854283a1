"""Forks, signals and imports: what the client does to a process, and a process to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from unit.planes_http.ours import Ours

from lakeshore import HttpDispatch

Connect = Callable[..., HttpDispatch]


def child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child and return its exit code; a child that hangs is killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    plane.submit("gpu", b"e", id="before")
    stop = threading.Event()

    def busy() -> None:
        n = 0
        while not stop.is_set():
            plane.submit("gpu", b"e", id=f"busy-{n}")
            n += 1

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for n in range(10):
            assert child(lambda n=n: plane.submit("gpu", b"e", id=f"child-{n}")) == 0  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
    plane.submit("gpu", b"e", id="after")
    ids = {row["id"] for row in ours.plane.invocations(limit=10_000)}
    assert {"before", "after", *(f"child-{n}" for n in range(10))} <= ids


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_closed_client_stays_closed_in_a_child(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    plane.close()
    assert child(lambda: plane.count("gpu")) == 1


WAIT = """
import sys, time
from lakeshore import HttpDispatch
plane = HttpDispatch(sys.argv[1], timeout=30)
print("waiting", flush=True)
began = time.monotonic()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(plane.submit("gpu", b"e", id="again"), flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "plane.result('a', timeout=None)",
        "list(plane.journal_read('a', timeout=None))",
        "plane.claim('empty', 'w', wait=30)",
    ],
)
def test_ctrl_c_acts_at_once(ours: Ours, call: str) -> None:
    ours.plane.submit("gpu", b"e", id="a")
    before = len(ours.seen)
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT.format(call=call), ours.url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    while len(ours.seen) == before:
        time.sleep(0.01)
    time.sleep(0.1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - began < 1
    assert process.communicate(timeout=20)[0] == "again\n"


def test_ctrl_c_in_a_pause_between_tries() -> None:
    code = WAIT.format(call="plane.submit('gpu', b'e', id='a')").rsplit("\n", 2)[0]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "http://127.0.0.1:9"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "interrupted\n"
    assert time.monotonic() - began < 2


def test_httpx_is_loaded_by_the_first_client_alone() -> None:
    code = (
        "import sys, lakeshore; lakeshore.HttpDispatch; import lakeshore.planes.default;"
        "print('httpx' in sys.modules); lakeshore.HttpDispatch('https://x.example').close();"
        "print('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
