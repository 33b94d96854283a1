"""One whole run with every logger at its loudest, and crashes in all its parts: the token is told nowhere.

The long form (``LONG_TESTS=1``) asks more commands, and runs bodies in the worker as well.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from integration.served import Process

LONG = os.environ.get("LONG_TESTS") == "1"
COMMANDS = [["doctor"]]
ISOLATIONS = ["process"]
if LONG:
    COMMANDS += [["queues"], ["ls"], ["workers"], ["show", "no-such"], ["cancel", "no-such"]]
    ISOLATIONS += ["inline"]
SERVER = """
import logging, sys
logging.basicConfig(level=1)
from lakeshore.server import producing
async def fails(self, call):
    raise RuntimeError("the server's own fault")
producing.Producing.workers = fails
from lakeshore.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
"""The server with all loggers on, and a route that fails in it."""
LOUD = """
import logging, sys, traceback
logging.basicConfig(level=1)
def crash(kind, exc, tb):
    for line in traceback.TracebackException(kind, exc, tb, capture_locals=True).format():
        print(line, file=sys.stderr)
sys.excepthook = crash
"""
"""Every logger on, and a crash that shows the variables of each frame of ours."""
CLIENT = (
    LOUD
    + """
import contextlib
from lakeshore import DispatchError, SyncQueue, TransportError, thunk
from lakeshore.planes.default import default_plane
plane = default_plane()
q = SyncQueue("gpu")
print(plane, q, vars(plane))
def squares(n):
    for k in range(n):
        yield k * k
ids = [q.submit(thunk(squares, 3)), q.submit(thunk(squares, "x"))]
print(ids[0])
for call in (lambda: plane.submit("gpu", b"other", id=ids[0]), lambda: plane.ack(ids[0], "w"),
             lambda: plane.result("no-such"), lambda: plane.workers(),
             lambda: plane.submit("gpu", b"x" * 2_000_000, id="large")):
    try:
        call()
    except (DispatchError, TransportError) as exc:
        traceback.print_exc()
        print(repr(exc), exc.args, exc.__dict__, exc.__cause__, exc.__context__)
if sys.argv[1] == "follow":
    print(list(q.stream(ids[0], timeout=60)))
    print(q.result(ids[1], timeout=60))  # it failed there: a crash here
"""
)
WORKER = (
    LOUD
    + """
from lakeshore import daemon
sys.exit(daemon.main(sys.argv[1:]))
"""
)
CELLS = (
    "%load_ext lakeshore",
    "%xmode Verbose",
    "import logging; logging.basicConfig(level=1)",
    "%lakeshore plane",
    "%lakeshore ls",
    "%%lakeshore submit gpu\ndef here():\n    return 1 / 0\nhere()",
    "from lakeshore import SyncQueue\nq = SyncQueue('gpu')\nq",
    "q.plane.workers()",
    "q.plane.result('no-such')",
    "%lakeshore show no-such",
    "%lakeshore workers",
    "%tb",
)


def test_a_whole_run_tells_the_token_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    home.mkdir()
    root.mkdir()
    told: list[str] = []
    with Process(home, "--log", "json", "--max-body", "1M", code=SERVER) as server:
        token = server.token
        printed = server.said
        env = {**os.environ, "LAKESHORE_URL": server.url, "LAKESHORE_HOME": str(tmp_path)}
        env["LAKESHORE_CLIENT_TOKEN"] = token

        def told_by(*command: str, **more: str) -> str:
            done = subprocess.run(
                [sys.executable, *command], env={**env, **more}, capture_output=True, text=True, timeout=120
            )
            told.append(done.stdout + done.stderr)
            return told[-1]

        worker = ("-c", WORKER, "--queue", "gpu", "--allow-pickled", "--retries", "0", "--once")
        said = told_by("-c", CLIENT, "submit")
        assert "connect_tcp.started" in said, "no logger of the line is on"
        assert "the control plane failed at this" in said
        for isolation in ISOLATIONS:
            assert "connect_tcp" in told_by(*worker, "--root", str(root), "--isolation", isolation)
        with subprocess.Popen(
            [sys.executable, *worker[:-1], "--root", str(root)], env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        ) as daemon:  # fmt: skip
            assert "InvocationFailed" in told_by("-c", CLIENT, "follow")
            daemon.terminate()
            assert daemon.stdout is not None
            told.append(daemon.stdout.read())
        for command in COMMANDS:
            told_by("-m", "lakeshore.cli", *command)
        told_by("-m", "lakeshore.cli", "queues", LAKESHORE_CLIENT_TOKEN=token[:-1])
        told += notebook(monkeypatch, env, tmp_path)
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}) as http:
            for path in ("/metrics", "/", "/openapi.json", f"/{token}", f"/v1/namespaces/{token}/queues"):
                told.append(http.get(path).text)
            told.append(http.get(f"/healthz?token={token}", headers={"X-Token": token, "Origin": token}).text)
            told.append(http.post("/v1/daemon/poll", content=token.encode()).text)
    assert "the server's own fault" in server.said
    assert "Traceback" in server.said
    told.append(server.said.replace(printed, "", 1))
    for text in told:
        at = text.find(token[4:-1])
        assert at < 0, text[max(0, at - 300) : at] + "<TOKEN>"


def notebook(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], folder: Path) -> list[str]:
    """Run the cells in a kernel; returns all that it published."""
    pytest.importorskip("jupyter_client")
    from tests.notebook.conftest import Kernel

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    kernel = Kernel(folder, folder)
    with contextlib.closing(kernel):
        replies = [kernel.run(cell) for cell in CELLS]
    assert "the control plane failed at this" in replies[7].text
    return [f"{reply.text}{reply.outputs}" for reply in replies]
