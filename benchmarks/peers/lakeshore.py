"""lakeshore itself, through `SyncQueue`, `run_worker` and the daemon."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from lakeshore import Dispatch, SyncQueue, run_worker, thunk, udf
from lakeshore.planes.contract import Submission
from peers import bodies
from peers.side import each, end, megabyte, program, rested, timed

BY_REFERENCE = udf(transport="ref")  # `benchmarks/` is on every process's path here, though not installed


@BY_REFERENCE
def nothing() -> None:
    """Return at once: the smallest job."""


@BY_REFERENCE
def now() -> float:
    """Return the time at which it runs, Unix seconds."""
    return time.time()


@BY_REFERENCE
def echo(value: Any) -> Any:
    """Return what was given."""
    return value


@BY_REFERENCE
def ticks(n: int, pause: float = 0.0) -> Iterator[dict[str, float]]:
    """Yield as `bodies.ticks` does."""
    return bodies.ticks(n, pause)


WORKER = """
import sys
from lakeshore import Dispatch, SyncQueue, run_worker
plane = Dispatch(sys.argv[1], durable=sys.argv[2] == "True")
run_worker(SyncQueue("served", dispatch=plane), isolation=sys.argv[3])
"""
READER = """
import sys
from lakeshore import Dispatch, SyncQueue
next(SyncQueue("silent", dispatch=Dispatch(sys.argv[1])).stream(sys.argv[2], timeout=None))
"""
COPIES = """
INSERT INTO invocation (ns, id, queue, state, priority, submitted_at, not_before, finished_at, envelope)
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < ?1)
SELECT 'default', ?2 || i, 'gpu', ?3, 0.0, ?4, ?5, ?6, zeroblob(200) FROM k
"""


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = {durable: folder / f"tier-{durable}.sqlite" for durable in (True, False)}
        self._planes = {durable: Dispatch(path, durable=durable) for durable, path in self._paths.items()}
        self._from_a_cell = bodies.from_a_cell()
        self._worker: subprocess.Popen[bytes] | None = None
        self._reader: subprocess.Popen[bytes] | None = None

    def _queue(self, name: str, durable: bool = True) -> SyncQueue:
        return SyncQueue(name, dispatch=self._planes[durable])

    # -- throughput

    def submit(self, n: int, durable: bool = True) -> float:
        queue = self._queue("submitted", durable)
        return timed(lambda: queue.submit(thunk(nothing)), n)

    def submit_payload(self, n: int, durable: bool = True) -> float:
        queue = self._queue("submitted", durable)
        return timed(lambda: queue.submit({"x": 1, "name": "a payload"}), n)

    def submit_value(self, n: int, durable: bool = True) -> float:
        queue, function = self._queue("submitted", durable), self._from_a_cell
        return timed(lambda: queue.submit(thunk(function, 3)), n)

    def submit_many(self, n: int, durable: bool = True) -> float:
        """The rows of a bulk submit, as the verb of the plane takes them."""
        start = time.monotonic_ns()
        items = [Submission(envelope=b"x" * 200, id=f"m{start}-{i}") for i in range(n)]
        return timed(lambda: self._planes[durable].submit_many("submitted", items), 1)

    def submit_many_calls(self, n: int, durable: bool = True) -> float:
        """The same with a call a row, encoding included."""
        queue = self._queue("submitted", durable)
        return timed(lambda: queue.submit_many([thunk(nothing) for _ in range(n)]), 1)

    def fill(self, n: int, durable: bool = True) -> None:
        self._queue("drained", durable).submit_many([thunk(nothing) for _ in range(n)])

    def drain(self, n: int, durable: bool = True, isolation: str = "inline") -> list[float]:
        jobs, first, last = 0, 0.0, time.monotonic()

        def told(event: Any) -> None:
            nonlocal jobs, first, last
            if event.kind == "ended":
                jobs, last = jobs + 1, time.monotonic()
                first = first or last

        def stop() -> bool:
            return jobs >= n or time.monotonic() - last > (0.5 if jobs else 5.0)

        queue = self._queue("drained", durable)
        run_worker(queue, stop=stop, on_event=told, isolation=isolation)  # type: ignore[arg-type]
        return [jobs, first, last]

    # -- claims

    def stock(self, n: int, state: str = "queued", delayed: bool = False) -> None:
        """Copy rows straight into the file: a million through the verbs takes most of a minute."""
        self._planes[False].close()
        db = apsw.Connection(str(self._paths[False]))
        db.pragma("synchronous", "off")
        ended = time.time() if state == "succeeded" else None
        due = time.time() + 3600 if delayed else None
        db.execute(COPIES, (n, f"c{time.monotonic_ns()}-", state, time.time(), due, ended))
        db.pragma("wal_checkpoint", "truncate")
        db.close()
        self._planes[False] = Dispatch(self._paths[False], durable=False)

    def claim(self, n: int, kind: str = "fifo") -> list[float]:
        plane = self._planes[False]
        plane.claim("gpu", "w", kind=kind)
        return each(lambda: plane.claim("gpu", "w", kind=kind), n, 1e6)

    # -- with a worker in another process

    def start(self, durable: bool = True, isolation: str = "process", daemon: bool = False) -> list[int]:
        """The daemon works on the default file of LAKESHORE_HOME, power-safe and isolated, as it comes."""
        self.stop()
        path = self._folder / "dispatch.sqlite" if daemon else self._folder / f"served-{durable}.sqlite"
        self._served = Dispatch(path, durable=durable)
        self._serving = SyncQueue("served", dispatch=self._served)
        told = ("-m", "lakeshore.daemon", "--queue", "served", "--root", str(self._folder))
        command = told if daemon else ("-c", WORKER, str(path), str(durable), isolation)
        self._worker = program(sys.executable, *command, log=self._folder / "worker.log")
        self._serving.call(thunk(nothing), timeout=20)
        return [self._worker.pid]

    def stop(self) -> None:
        if self._worker is not None:
            end(self._worker)
            self._served.close()
            self._worker = None

    def round_trip(self, n: int) -> list[float]:
        queue = self._serving
        return rested(lambda: queue.result(queue.submit(thunk(nothing))), n)

    def array(self, n: int) -> list[float]:
        queue, array = self._serving, megabyte()
        return rested(lambda: queue.result(queue.submit(thunk(echo, array))), n)

    def first_frame(self, n: int) -> list[float]:
        queue = self._serving
        return rested(lambda: next(queue.stream(queue.submit(thunk(ticks, 1)))), n)

    def frames(self, n: int, pause: float = 0.0) -> tuple[float, list[float]]:
        stream = self._serving.stream(self._serving.submit(thunk(ticks, n, pause)))
        seen = [(time.monotonic(), value["at"]) for value in stream]
        assert len(seen) == n
        return seen[-1][0] - seen[0][0], [(here - there) * 1e3 for here, there in seen]

    def reader(self) -> list[int]:
        path = self._folder / "silent.sqlite"
        with_job = Dispatch(path)
        job = SyncQueue("silent", dispatch=with_job).submit(thunk(nothing))
        with_job.close()
        self._reader = program(sys.executable, "-c", READER, str(path), job, log=self._folder / "reader.log")
        return [self._reader.pid]

    def cold(self) -> float:
        return self._cold(lambda plane, job: (plane.get(job) or {})["started_at"])

    def cold_result(self) -> float:
        """To the body's own clock, as the peers are measured."""
        return self._cold(lambda plane, job: SyncQueue("cold", dispatch=plane).result(job))

    def _cold(self, moment: Callable[[Dispatch, str], float]) -> float:
        home = self._folder / f"cold-{time.monotonic_ns()}"
        home.mkdir(mode=0o700)
        plane = Dispatch(home / "dispatch.sqlite")
        queue = SyncQueue("cold", dispatch=plane)
        job = queue.submit(thunk(now))
        began = time.time()
        command = ("-m", "lakeshore.daemon", "--queue", "cold", "--root", str(home))
        worker = program(sys.executable, *command, log=home / "log", LAKESHORE_HOME=str(home))
        queue.result(job)
        taken = moment(plane, job) - began
        end(worker)
        plane.close()
        return taken * 1e3

    def close(self) -> None:
        self.stop()
        end(self._reader)
        for plane in self._planes.values():
            plane.close()
