"""Ctrl-C at any moment of any verb: no lock, no transaction and no bell stays behind, and all goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LONG = os.environ.get("LONG_TESTS") == "1"

INTERRUPTED = """
    import itertools, os, random, signal, sys, threading, time
    from lakeshore import Dispatch
    from lakeshore.errors import ClaimLost, WaitTimeout
    from lakeshore.planes.contract import ClaimSpec

    path, verb, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
    plane = Dispatch(path, durable=False)
    count = itertools.count()
    spec = ClaimSpec("gpu")

    def submit():
        plane.submit("gpu", b"e", id=f"s{next(count)}")

    def claim():
        id = f"c{next(count)}"
        plane.submit("gpu", b"e", id=id)
        job = plane.claim("gpu", "w")
        if job is not None:
            plane.ack(job.id, "w", result=b"r", fence=job.fence, next=spec)

    def refused():
        try:
            plane.ack("nobody", "w")
        except ClaimLost:
            pass

    def wait():
        plane.claim("none", "w", wait=0.002)

    def result():
        try:
            plane.result("first", timeout=0.002)
        except WaitTimeout:
            pass

    def read():
        seq = plane.journal_append("topic", None, b"f")
        try:
            for _ in plane.journal_read("topic", since=seq - 1, timeout=0.002):
                pass
        except WaitTimeout:
            pass

    plane.submit("other", b"e", id="first")
    body = {f.__name__: f for f in (submit, claim, refused, wait, result, read)}[verb]
    main, armed, stop = threading.get_native_id(), threading.Event(), threading.Event()

    def striker():
        while not stop.is_set():
            armed.wait()
            time.sleep(random.random() * 0.0015)
            if armed.is_set():
                armed.clear()
                os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=striker, daemon=True).start()
    struck = 0
    while struck < wanted:
        try:
            armed.set()
            while True:
                body()
        except KeyboardInterrupt:
            struck += 1
            assert not plane._turn.lock.locked(), "the turn is still taken"
            assert not any(c.raw.in_transaction for c in (plane._rows, plane._frames) if c), "a transaction"
            assert all(not reader.lock.locked() for reader in plane._readers), "a reader is still taken"
    stop.set()
    print("struck", struck, flush=True)
    sys.stdin.readline()  # another process looks at the locks now
    plane.submit("gpu", b"e", id="last")
    assert not plane._turn.waiting
    fds = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert fds < 60, f"{fds} descriptors are open"
    bells = os.listdir(path + "-bells")
    assert not bells, bells
    print("well", flush=True)
"""

OTHER = """
    import sys, time
    from lakeshore import Dispatch
    plane = Dispatch(sys.argv[1], durable=False)
    began = time.monotonic()
    for i in range(10):
        plane.submit("other", b"e", id=f"o{i}")
    print(time.monotonic() - began)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("verb", ["submit", "claim", "refused", "wait", "result", "read"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "p.sqlite"
    process = python(INTERRUPTED, path, verb, 5000 if LONG else 250)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("struck"), process.communicate(timeout=10)[1][-3000:]
    out, err = python(OTHER, path).communicate(timeout=60)
    assert float(out) < 0.8, f"another process waited for a lock that was left behind: {out} s {err}"
    out, err = process.communicate("\n", timeout=60)
    assert out == "well\n", err[-3000:]
    assert err == ""
