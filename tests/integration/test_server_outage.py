"""A server that is away for minutes while jobs run: all that the workers did is there once it is back.

The long form (``LONG_TESTS=1``) is an outage of 2 minutes under the daemon's own 30 s of patience.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.served import Process

from lakeshore import HttpDispatch, SyncQueue, run, thunk

LONG = os.environ.get("LONG_TESTS") == "1"
AWAY_SECONDS = 120.0 if LONG else 1.5
LEASE = 5.0 if LONG else 0.5
IMPATIENT = """
import sys
from lakeshore import HttpDispatch, SyncQueue, run_worker
url, root, isolation, lease = sys.argv[1:]
q = SyncQueue("gpu", dispatch=HttpDispatch(url, timeout=0.3))
run_worker(q, root=root, allow_pickled=True, isolation=isolation, lease=float(lease), concurrency=4)
"""
"""A worker whose client gives up long before the outage is over."""


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def by_value(fn, *args):
    return thunk(fn, *args).with_options(transport="pickle")


CASES = [("daemon", "process"), ("impatient", "process"), ("impatient", "inline")]
if LONG:
    CASES.append(("daemon", "inline"))


@pytest.mark.parametrize(("kind", "isolation"), CASES)
def test_nothing_a_worker_did_is_lost_with_the_server(tmp_path: Path, isolation: str, kind: str) -> None:
    away, back = tmp_path / "away", tmp_path / "back"

    def waits_for(path):
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.02)

    def yields(until):
        import time
        from pathlib import Path

        n = 0
        while True:
            last = Path(until).exists()
            yield n
            n += 1
            if last:
                return n
            time.sleep(0.05)

    def ends(at, value):
        waits_for(at)
        print("printed", value)
        return value

    def writes(at):
        waits_for(at)
        run.write("made.txt").write_text("made in the outage")
        return "made.txt"

    home, root = tmp_path / "home", tmp_path / "root"
    home.mkdir()
    root.mkdir()
    with Process(home, "--no-auth", "--log", "off") as server, contextlib.ExitStack() as opened:
        plane = opened.enter_context(contextlib.closing(HttpDispatch(server.url, timeout=60)))
        q = SyncQueue("gpu", dispatch=plane)
        stream = q.submit(by_value(yields, str(back)))
        inside = q.submit(by_value(ends, str(away), "inside"))
        file = q.submit(by_value(writes, str(away)))
        after = q.submit(by_value(ends, str(back), "after"))
        ids = [stream, inside, file, after]
        if kind == "daemon":
            command = [sys.executable, "-m", "lakeshore.daemon", "--queue", "gpu", "--allow-pickled"]
            command += ["--root", str(root), "--isolation", isolation, "--lease", str(LEASE)]
            command += ["--concurrency", "4"]
        else:
            command = [sys.executable, "-c", IMPATIENT, server.url, str(root), isolation, str(LEASE)]
        log = opened.enter_context((tmp_path / "log").open("w"))
        env = {**os.environ, "LAKESHORE_URL": server.url, "LAKESHORE_HOME": str(tmp_path)}
        worker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        opened.callback(worker.wait)
        opened.callback(worker.kill)
        wait_until(lambda: plane.count("gpu", "running") == 4)
        frames = plane.journal_read(stream, timeout=30)
        assert [seq for seq, _ in (next(frames) for _ in range(3))] == [0, 1, 2]
        frames.close()
        server.stop(signal.SIGKILL)
        away.touch()  # two bodies end now, while nobody can be told
        time.sleep(AWAY_SECONDS)
        server.start()
        back.touch()
        assert q.result(inside, timeout=60) == "inside", (tmp_path / "log").read_text()
        assert q.result(after, timeout=60) == "after"
        count = q.result(stream, timeout=60)
        assert list(q.stream(stream, timeout=60)) == list(range(count))
        assert count > 3
        key = q.result(file, timeout=60)
        assert q.fetch(file, key, tmp_path / "got").read_text() == "made in the outage"
        for id in ids:
            row = plane.get(id)
            assert row is not None
            assert (row["state"], row["attempt"], row["losses"]) == ("succeeded", 1, 0), row
        worker.send_signal(signal.SIGINT)
        worker.wait(30)
    assert "is dropped" not in (tmp_path / "log").read_text()
