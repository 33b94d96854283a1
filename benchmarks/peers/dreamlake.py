"""dreamlake-lakeshore: the nearest peer, on its local plane."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import dreamlake.lakeshore as dls
from dreamlake.lakeshore.dispatch import Dispatch

from peers import bodies
from peers.side import drained, each, end, megabyte, program, rested, timed

WORKER = """
import sys
import dreamlake.lakeshore as dls
from dreamlake.lakeshore.dispatch import Dispatch
dls.run_worker(dls.SyncQueue(sys.argv[2], dispatch=Dispatch(sys.argv[1])))
"""
READER = """
import sys
import dreamlake.lakeshore as dls
from dreamlake.lakeshore.dispatch import Dispatch
next(iter(dls.SyncQueue("silent", dispatch=Dispatch(sys.argv[1])).stream("silent", timeout=3600)))
"""
COPIES = """
INSERT INTO invocations (id, queue, envelope, submitted_at)
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < ?)
SELECT ? || i, 'gpu', zeroblob(200), ? + i * 1e-6 FROM k
"""


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, str(folder / "dreamlake.sqlite")
        self._plane = Dispatch(self._path)
        self._from_a_cell = bodies.from_a_cell()
        self._serving = self._queue("served")
        self._programs: list[subprocess.Popen[bytes]] = []

    def _queue(self, name: str) -> dls.SyncQueue:
        return dls.SyncQueue(name, dispatch=self._plane)

    def submit(self, n: int) -> float:
        queue = self._queue("submitted")
        return timed(lambda: queue.submit(dls.thunk(bodies.nothing)), n)

    def submit_payload(self, n: int) -> float:
        queue = self._queue("submitted")
        return timed(lambda: queue.submit({"x": 1, "name": "a payload"}), n)

    def submit_value(self, n: int) -> float:
        queue = self._queue("submitted")
        return timed(lambda: queue.submit(dls.thunk(self._from_a_cell, 3)), n)

    def fill(self, n: int) -> None:
        queue = self._queue("drained")
        for _ in range(n):
            queue.submit(dls.thunk(bodies.nothing))

    def drain(self, n: int) -> list[float]:
        queue = self._queue("drained")
        return drained(lambda: bool(dls.run_worker(queue, once=True)), n)

    def stock(self, n: int) -> None:
        db = sqlite3.connect(self._path)
        db.execute("PRAGMA synchronous=OFF")
        db.execute(COPIES, (n, f"c{time.monotonic_ns()}-", time.time()))
        db.commit()
        db.close()

    def claim(self, n: int, kind: str = "fifo") -> list[float]:
        return each(lambda: self._plane.claim("gpu", "w", kind=kind), n, 1e6, within=3)

    def start(self) -> list[int]:
        log = self._folder / "worker.log"
        worker = program(sys.executable, "-c", WORKER, self._path, "served", log=log)
        self._programs.append(worker)
        self._serving.result(self._serving.submit(dls.thunk(bodies.nothing)))
        return [worker.pid]

    def round_trip(self, n: int) -> list[float]:
        queue = self._serving
        return rested(lambda: queue.result(queue.submit(dls.thunk(bodies.nothing))), n)

    def array(self, n: int) -> list[float]:
        queue, array = self._serving, megabyte()
        return rested(lambda: queue.result(queue.submit(dls.thunk(bodies.echo, array))), n)

    def first_frame(self, n: int) -> list[float]:
        queue = self._serving
        return rested(lambda: next(iter(queue.stream(queue.submit(dls.thunk(bodies.ticks, 1))))), n)

    def frames(self, n: int) -> tuple[float, list[float]]:
        stream = self._serving.stream(self._serving.submit(dls.thunk(bodies.ticks, n)))
        seen = [(time.monotonic(), value["at"]) for value in stream]
        return seen[-1][0] - seen[0][0], [(here - there) * 1e3 for here, there in seen]

    def reader(self) -> list[int]:
        reader = program(sys.executable, "-c", READER, self._path, log=self._folder / "reader.log")
        self._programs.append(reader)
        return [reader.pid]

    def cold_result(self) -> float:
        home = self._folder / f"cold-{time.monotonic_ns()}"
        home.mkdir()
        plane = Dispatch(str(home / "dispatch.sqlite"))
        queue = dls.SyncQueue("cold", dispatch=plane)
        job = queue.submit(dls.thunk(bodies.now))
        began = time.time()
        command = ("-m", "dreamlake.lakeshore.daemon", "--queue", "cold", "--root", str(home))
        worker = program(sys.executable, *command, log=home / "log", LAKESHORE_HOME=str(home))
        taken: float = queue.result(job) - began
        end(worker)
        plane.close()
        return taken * 1e3

    def close(self) -> None:
        for started in self._programs:
            end(started)
        self._plane.close()
