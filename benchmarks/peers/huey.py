"""huey on SQLite, with its own defaults; a task that is taken from the table is no longer in it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from huey import SqliteHuey

from peers import bodies
from peers.side import drained, each, end, megabyte, program, rested, timed

queue = SqliteHuey("bench", filename=os.environ.get("BENCH_HUEY", "huey.sqlite"))
nothing, now, echo = queue.task()(bodies.nothing), queue.task()(bodies.now), queue.task()(bodies.echo)

COPIES = """
INSERT INTO task (queue, data, priority)
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < ?)
SELECT 'bench', ?, 0 FROM k
"""


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker: subprocess.Popen[bytes] | None = None

    def submit(self, n: int) -> float:
        taken = timed(lambda: nothing(), n)
        queue.storage.flush_queue()
        return taken

    def fill(self, n: int) -> None:
        for _ in range(n):
            nothing()

    def drain(self, n: int) -> list[float]:
        def one() -> bool:
            task = queue.dequeue()
            if task is not None:
                queue.execute(task)
            return task is not None

        return drained(one, n)

    def stock(self, n: int) -> None:
        db = sqlite3.connect(queue.storage.filename)
        db.execute("PRAGMA synchronous=OFF")
        db.execute(COPIES, (n, queue.serialize_task(nothing.s())))
        db.commit()
        db.close()

    def claim(self, n: int) -> list[float]:
        return each(queue.dequeue, n, 1e6, within=3)

    def _consumer(self, file: str) -> subprocess.Popen[bytes]:
        command = ("-m", "huey.bin.huey_consumer", "peers.huey.queue", "-w", "1", "-q")
        return program(sys.executable, *command, log=self._folder / "worker.log", BENCH_HUEY=file)

    def start(self) -> list[int]:
        queue.storage.flush_queue()
        self._worker = self._consumer(queue.storage.filename)
        now()(blocking=True, timeout=20)
        return [self._worker.pid]

    def round_trip(self, n: int) -> list[float]:
        return rested(lambda: now()(blocking=True), n)

    def array(self, n: int) -> list[float]:
        array = megabyte()
        return rested(lambda: echo(array)(blocking=True), n)

    def cold_result(self) -> float:
        queue.storage.flush_queue()
        result = now()
        began = time.time()
        worker = self._consumer(queue.storage.filename)
        taken: float = result(blocking=True, timeout=20) - began
        end(worker)
        return taken * 1e3

    def close(self) -> None:
        end(self._worker)
