"""A crowd at the door: hundreds of open streams and clients slower than any, and the server serves on."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from pathlib import Path

import msgpack
from integration.served import Process

from lakeshore import HttpDispatch
from lakeshore.planes.protocol import ROWS

STREAMS, SLOW, CYCLES = 500, 30, 40
PATH = "/v1/namespaces/default/producer/invocations/{}/result/stream?since=-1"


def test_it_serves_on_with_500_streams_and_clients_that_drip(tmp_path: Path) -> None:
    with (
        Process(tmp_path, "--no-auth", "--log", "off") as server,
        contextlib.ExitStack() as opened,
        contextlib.closing(HttpDispatch(server.url)) as plane,
    ):
        port = int(server.url.rpartition(":")[2])

        def line(data: bytes) -> socket.socket:
            made = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            made.settimeout(30)
            made.sendall(data)
            return made

        def get(journal: str) -> bytes:
            return (
                f"GET {PATH.format(journal)} HTTP/1.1\r\nHost: localhost\r\nAccept: {ROWS}\r\n\r\n".encode()
            )

        for _ in range(12):
            plane.journal_append("large", None, b"x" * 2_000_000)
        streams = [line(get(f"t{n % 25}")) for n in range(STREAMS)]
        for each in streams:
            assert each.recv(12) == b"HTTP/1.1 200"
        post = b"POST /v1/daemon/poll HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
        slow = [line(b"GET /hea") for _ in range(SLOW)] + [line(post) for _ in range(SLOW)]
        for _ in range(SLOW):
            line(get("large"))  # and takes nothing of it
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.1):
                for each in slow:
                    with contextlib.suppress(OSError):  # given up by the server, as it should
                        each.send(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        took = []
        for n in range(CYCLES):
            began = time.monotonic()
            plane.submit("gpu", b"%d" % n, id=f"j{n}")
            claimed = plane.claim("gpu", "w", wait=5)
            assert claimed is not None
            plane.ack(claimed.id, "w", result=claimed.envelope, fence=claimed.fence)
            assert plane.result(claimed.id, timeout=5) == b"%d" % n
            took.append(time.monotonic() - began)
        assert statistics.median(took) < 0.5
        assert max(took) < 5
        for k in range(25):
            for n in range(3):
                plane.journal_append(f"t{k}", n, b"%d" % n, final=n == 2)
        want = b"".join(msgpack.packb([n, b"%d" % n]) for n in range(3))
        for each in streams:
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                part = each.recv(65536)
                assert part
                data += part
            assert _unchunked(data.partition(b"\r\n\r\n")[2]).replace(b"\xc0", b"") == want
        stop.set()
        dripping.join()
        assert plane.queues() == {"gpu": {"succeeded": CYCLES}}


def _unchunked(data: bytes) -> bytes:
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        whole += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return whole
