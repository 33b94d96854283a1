"""Connections that ask nothing lock nobody out."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_idle_connections_make_room_for_others(serve):
    served = serve(connections=10)
    with contextlib.ExitStack() as lines:
        opened = []
        for _ in range(40):
            line = lines.enter_context(served.line())
            line.sendall(REQUEST)
            assert b" 200 " in line.recv(4096)
            opened.append(line)
        for n in range(3):
            assert served.get("/healthz", x=str(n)).status_code == 200
        assert opened[0].recv(100) == b""


def test_a_connection_at_work_is_kept(serve):
    served = serve(connections=3)
    poll = b"\x83\xa9worker_id\xa1w\xa5queue\xa3gpu\xa9timeout_s\x14"
    with served.line() as waiting, contextlib.ExitStack() as lines:
        waiting.sendall(served.raw("POST", "/v1/daemon/poll", poll))
        end = time.monotonic() + 10
        while not served.app.serving.hearing.waiting and time.monotonic() < end:
            time.sleep(0.01)
        for _ in range(10):
            line = lines.enter_context(served.line())
            line.sendall(REQUEST)
            assert b" 200 " in line.recv(4096)
        served.plane.submit("gpu", b"e", id="a")
        assert b" 200 " in waiting.recv(4096)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from lakeshore.cli import main
sys.argv = ["lakeshore", "serve", "--port", "0", "--no-auth", "--log", "off"]
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_more_connections_than_files_lock_nobody_out(tmp_path):
    env = {**os.environ, "LAKESHORE_HOME": str(tmp_path)}
    said = (tmp_path / "said").open("w+")
    server = subprocess.Popen([sys.executable, "-c", LIMITED], env=env, stdout=subprocess.PIPE, stderr=said)
    with said, server, contextlib.ExitStack() as lines:
        assert server.stdout is not None
        lines.callback(server.terminate)
        url = next(line for line in server.stdout if b"export" in line).split(b"=")[1].decode().strip()
        for _ in range(400):
            line = lines.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            line.sendall(REQUEST)
        with urllib.request.urlopen(f"{url}/healthz", timeout=10) as answer:
            assert answer.status == 200
        said.seek(0)
        assert said.read() == ""
