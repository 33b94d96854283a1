"""Connections that ask nothing lock nobody out."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request

import httpx
import pytest

REFUSED = b"POST /v1/daemon/poll HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def answer(line: socket.socket) -> bytes:
    """Return one answer, whole."""
    told = b""
    while b"\r\n\r\n" not in told and (part := line.recv(4096)):
        told += part
    length = int(told.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(told.partition(b"\r\n\r\n")[2]) < length and (part := line.recv(4096)):
        told += part
    return told


def test_idle_connections_make_room_for_others(serve):
    served = serve(connections=10)
    with contextlib.ExitStack() as lines:
        opened = []
        for _ in range(40):
            line = lines.enter_context(served.line())
            line.sendall(REQUEST)
            assert b" 200 " in answer(line)
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
            assert b" 200 " in answer(line)
        served.plane.submit("gpu", b"e", id="a")
        assert b" 200 " in answer(waiting)


def test_who_was_refused_before_the_body_makes_room(serve):
    served = serve(auth=True, connections=10)
    with contextlib.ExitStack() as lines:
        opened = []
        for _ in range(20):
            line = lines.enter_context(served.line())
            line.sendall(REFUSED)
            assert b" 401 " in answer(line)
            opened.append(line)
        for n in range(3):
            assert served.get("/healthz", x=str(n)).status_code == 200
        assert opened[0].recv(100) == b""


def test_who_takes_no_answer_makes_room(serve):
    served = serve(auth=True, connections=10)
    ends = time.monotonic() + 20
    with contextlib.ExitStack() as lines:
        for _ in range(10):
            line = lines.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(10)
            line.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
            line.sendall(b"GET /page/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        for n in range(3):
            answer = None
            while answer is None and time.monotonic() < ends:  # until all of them are stuck
                with contextlib.suppress(httpx.TransportError):
                    answer = httpx.get(f"{served.url}/healthz", headers={"x": str(n)}, trust_env=False)
            assert answer is not None and answer.status_code == 200
        assert served.get("/healthz").status_code == 200


def test_the_rest_of_a_refused_body_is_awaited_for_a_while_only(serve, monkeypatch):
    monkeypatch.setattr("lakeshore.server.run._REST_SECONDS", 0.2)
    served = serve(auth=True)
    with served.line() as silent, served.line() as late:
        for line in (silent, late):
            line.sendall(REFUSED)
            assert b" 401 " in answer(line)
        late.sendall(b"x" * 10)
        assert silent.recv(100) == b""
        late.sendall(REQUEST)
        assert b" 200 " in answer(late)


@pytest.mark.parametrize("trailer", [b"a:\r\n", b"a: " + b"y" * 65536], ids=["many", "long"])
def test_trailers_without_end_are_cut_off(serve, trailer):
    served = serve(auth=True)
    with served.line() as line:
        head = b"POST /v1/daemon/poll HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        line.sendall(head)
        assert b" 401 " in answer(line)
        sent = 0
        with pytest.raises(OSError, match=r"reset|pipe"):
            while sent < 50_000_000:
                line.sendall(trailer * (65536 // len(trailer)) if len(trailer) < 100 else trailer)
                sent += 65536
    assert served.get("/healthz").status_code == 200


def test_trailers_are_no_headers(served):
    body = b"5\r\n\x81\xa1a\xa1b\r\n0\r\nX-Trailing: 1\r\n\r\n"
    head = b"POST /v1/namespaces/default/producer/await HTTP/1.1\r\nHost: localhost\r\n"
    with served.line() as line:
        for _ in range(2):
            line.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + body)
            assert b" 400 " in answer(line)  # no invocation_id: it was read
        line.sendall(REQUEST)
        assert b" 200 " in answer(line)


def test_headers_that_come_at_once_are_counted_too(serve):
    served = serve(header_bytes=4096)
    with served.line() as line:
        line.sendall(REQUEST[:-2] + b"a:\r\n" * 1000 + b"\r\n")
        assert b"headers over the limit of 4096 bytes" in answer(line)
    with served.line() as line:  # chunks of a byte are a body
        line.sendall(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            line.sendall(b"1\r\nx\r\n" * 1000)
        line.sendall(b"0\r\n\r\n" + REQUEST)
        assert b" 405 " in answer(line)


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
