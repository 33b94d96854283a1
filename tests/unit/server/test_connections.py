"""Connections that ask nothing lock nobody out."""

from __future__ import annotations

import contextlib
import time

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
