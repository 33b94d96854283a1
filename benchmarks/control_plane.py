"""The control plane's figures: submit rate, round trip, first frame, and what idle waits cost.

Starts `lakeshore serve` as a process of its own over a new SQLite file, and asks it over loopback. The
submitters are raw connections that send and read as fast as the server lets them, since a client in Python
costs more than the server; `--clients httpdispatch` takes real ones.

    python benchmarks/control_plane.py [submit] [roundtrip] [frames] [idle]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import lakeshore
from lakeshore.planes import protocol
from lakeshore.planes.contract import Submission

CLIENTS = 8
SERVE = [sys.executable, "-m", "lakeshore.cli", "serve"]


class Served:
    """A server process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.address = ("127.0.0.1", int(url.rpartition(":")[2]))

    def seconds(self) -> float:
        """Return the CPU seconds it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Return its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


@contextmanager
def served(*flags: str) -> Iterator[Served]:
    """Start a server over a new file."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*SERVE, "--port", "0", "--no-auth", "--log", "off", *flags],
            env={**os.environ, "LAKESHORE_HOME": folder},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            url = ""
            for line in process.stdout:  # type: ignore[union-attr]
                url = url or (re.findall(r"http://\S+", line) or [""])[0]
                if line.startswith("ready"):
                    break
            yield Served(process, url)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def request(method: str, path: str, body: bytes = b"", accept: str = protocol.MSGPACK) -> bytes:
    """Return a request as it goes out."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\n"
        f"Content-Type: {protocol.MSGPACK}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def answer(line: socket.socket) -> bytes:
    """Read one answer with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += line.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
    while len(body) < size:
        body += line.recv(65536)
    assert head.startswith(b"HTTP/1.1 200"), head
    return body


def _submit_raw(url: str, client: int, n: int, start: Barrier) -> None:
    path, host = protocol.SUBMIT.path(ns="default"), ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(host) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start.wait()
        for i in range(n):
            item = Submission(envelope=b"x" * 300, id=f"{client}-{i}")
            line.sendall(request("POST", path, protocol.pack(protocol.submit_body("gpu", item))))
            answer(line)


def _submit_client(url: str, client: int, n: int, start: Barrier) -> None:
    plane = lakeshore.HttpDispatch(url)
    plane.count("gpu")
    start.wait()
    for i in range(n):
        plane.submit("gpu", b"x" * 300, id=f"{client}-{i}")
    plane.close()


def submit(kind: str, n: int = 1500) -> None:
    """Measure submits a second with 8 clients at once, from when all have started until all are done."""
    with served() as server:
        spawn = multiprocessing.get_context("spawn")
        start = spawn.Barrier(CLIENTS + 1)
        target = _submit_raw if kind == "raw" else _submit_client
        jobs = [spawn.Process(target=target, args=(server.url, c, n, start)) for c in range(CLIENTS)]
        for job in jobs:
            job.start()
        start.wait()
        before, began = server.seconds(), time.perf_counter()
        for job in jobs:
            job.join()
        seconds = time.perf_counter() - began
        with contextlib.closing(lakeshore.HttpDispatch(server.url)) as plane:
            assert plane.count("gpu") == CLIENTS * n
        print(
            f"submit, {CLIENTS} {kind} clients: {CLIENTS * n / seconds:,.0f}/s "
            f"({server.seconds() - before:.1f} s of server CPU in {seconds:.1f} s)"
        )


def roundtrip(n: int = 300) -> None:
    """Measure from submit to result, a worker on another connection."""
    with served() as server:
        stop = threading.Event()

        def work() -> None:
            plane = lakeshore.HttpDispatch(server.url)
            while not stop.is_set():
                claimed = plane.claim("gpu", "w", wait=1.0)
                if claimed is not None:
                    plane.ack(claimed.id, "w", result=claimed.envelope, fence=claimed.fence)
            plane.close()

        worker = threading.Thread(target=work)
        worker.start()
        plane = lakeshore.HttpDispatch(server.url)
        took = []
        for i in range(n):
            began = time.perf_counter()
            plane.submit("gpu", b"x" * 300, id=f"r-{i}")
            plane.result(f"r-{i}")
            took.append(time.perf_counter() - began)
        stop.set()
        worker.join()
        plane.close()
        middle, late = statistics.median(took) * 1e3, sorted(took)[int(n * 0.95)] * 1e3
        print(f"submit -> result: p50 {middle:.1f} ms, p95 {late:.1f} ms")


def frames(n: int = 200) -> None:
    """Measure from an append to the frame in a reader's hands."""
    with served() as server:
        writer, reader = lakeshore.HttpDispatch(server.url), lakeshore.HttpDispatch(server.url)
        sent: dict[int, float] = {}
        lags: list[float] = []

        def read() -> None:
            for seq, _ in reader.journal_read("t", timeout=10):
                lags.append(time.perf_counter() - sent[seq])

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.3)
        for seq in range(n):
            sent[seq] = time.perf_counter()
            writer.journal_append("t", seq, b"x" * 200, final=seq == n - 1)
            time.sleep(0.005)
        thread.join()
        firsts = []
        for i in range(30):
            rows = reader.journal_read(f"first-{i}", timeout=10)
            got: list[float] = []

            def first(rows: Iterator[tuple[int, bytes]] = rows, got: list[float] = got) -> None:
                next(rows)
                got.append(time.perf_counter())

            waiting = threading.Thread(target=first)
            waiting.start()
            time.sleep(0.1)
            began = time.perf_counter()
            writer.journal_append(f"first-{i}", 0, b"x", final=True)
            waiting.join()
            firsts.append(got[0] - began)
            rows.close()  # type: ignore[attr-defined]
        writer.close()
        reader.close()
        print(
            f"frame after append: first p50 {statistics.median(firsts) * 1e3:.1f} ms "
            f"(worst {max(firsts) * 1e3:.1f}), following p50 {statistics.median(lags) * 1e3:.1f} ms"
        )


def idle(polls: int = 500, streams: int = 500, seconds: float = 20.0) -> None:
    """Measure what idle polls and streams cost the server."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with served() as server:
        before = server.megabytes()
        lines = []
        for i in range(polls):
            line = socket.create_connection(server.address)
            body = {"worker_id": f"w-{i}", "timeout_s": 30.0, "queue": f"q-{i % 50}", "lease": 30.0}
            line.sendall(request("POST", protocol.POLL.path(), protocol.pack(body)))
            lines.append(line)
        for i in range(streams):
            line = socket.create_connection(server.address)
            path = protocol.STREAM.path(ns="default", id=f"journal-{i}")
            line.sendall(request("GET", f"{path}?since=-1", accept=protocol.ROWS))
            lines.append(line)
        time.sleep(3)
        cpu, began = server.seconds(), time.perf_counter()
        time.sleep(seconds)
        share = (server.seconds() - cpu) / (time.perf_counter() - began)
        print(
            f"idle: {polls} polls and {streams} streams cost {share:.1%} of a core, "
            f"{server.megabytes():.0f} MB (an empty server: {before:.0f} MB)"
        )
        for line in lines:
            line.close()


def main() -> None:
    """Run the parts named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["submit", "roundtrip", "frames", "idle"])
    parser.add_argument("--clients", choices=["raw", "httpdispatch"], default="raw")
    chosen = parser.parse_args()
    for part in chosen.parts:
        if part == "submit":
            submit(chosen.clients)
        else:
            {"roundtrip": roundtrip, "frames": frames, "idle": idle}[part]()


if __name__ == "__main__":
    main()
