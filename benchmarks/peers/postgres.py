"""lakeshore on PostgreSQL: `run_worker` over a plane that holds the database's address."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from lakeshore import DispatchError, HttpDispatch, SyncQueue, run_worker, thunk, udf
from lakeshore.planes.contract import Submission
from lakeshore.planes.postgres import PostgresDispatch
from peers import bodies
from peers.pgserver import server
from peers.side import each, end, program, rested, timed


@udf(transport="ref")
def nothing() -> None:
    """Return at once: the smallest job."""
    bodies.nothing()


@udf(transport="pickle")
def shown() -> None:
    """As a notebook's function is sent: no source tree is looked at."""


WORKER = """
import sys
from lakeshore import SyncQueue, run_worker
from lakeshore.planes.postgres import PostgresDispatch
run_worker(SyncQueue(sys.argv[2], dispatch=PostgresDispatch(sys.argv[1])), allow_pickled=True)
"""
FINISHED = """
INSERT INTO lakeshore.invocation (ns, id, queue, state, priority, submitted_at, finished_at)
SELECT 'default', 'f' || i, 'claimed', 'succeeded', 0, 1, 2 FROM generate_series(1, %(n)s) AS i
"""
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %(who)s
"""


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address, self._server = server(folder)
        self._plane = PostgresDispatch(self._named("asking"))
        self._running: list[subprocess.Popen[bytes]] = []

    def _named(self, who: str) -> str:
        """Return the address, with a name by which its connections are counted."""
        return f"{self._address}{'&' if '?' in self._address else '?'}application_name={who}"

    def submit(self, n: int) -> float:
        queue = SyncQueue("submitted", dispatch=self._plane)
        return timed(lambda: queue.submit(thunk(nothing)), n)

    def submit_many(self, n: int) -> float:
        """The rows of a bulk submit, as the verb of the plane takes them."""
        return timed(lambda: self._fill("submitted", n), 1)

    def _fill(self, queue: str, n: int) -> None:
        start = time.monotonic_ns()
        self._plane.submit_many(
            queue, [Submission(envelope=b"x" * 200, id=f"m{start}-{i}") for i in range(n)]
        )

    # -- drains

    def fill(self, n: int) -> None:
        SyncQueue("drained", dispatch=self._plane).submit_many([thunk(nothing) for _ in range(n)])

    def drain(self, n: int) -> list[float]:
        jobs, first, last = 0, 0.0, time.monotonic()

        def told(event: Any) -> None:
            nonlocal jobs, first, last
            if event.kind == "ended" and event.ending == "succeeded":
                jobs, last = jobs + 1, time.monotonic()
                first = first or last

        def stop() -> bool:
            return jobs >= n or time.monotonic() - last > (0.5 if jobs else 5.0)

        queue = SyncQueue("drained", dispatch=self._plane)
        run_worker(queue, stop=stop, on_event=told, allow_modules=["peers.postgres"])
        return [jobs, first, last]

    # -- claims

    def stock(self, n: int) -> None:
        while n > 0:
            self._fill("claimed", min(n, 20_000))
            n -= 20_000

    def claim(self, n: int, kind: str = "fifo") -> list[float]:
        self._plane.claim("claimed", "w", kind=kind)
        return each(lambda: self._plane.claim("claimed", "w", kind=kind), n, 1e6, within=20)

    # -- with others in processes of their own

    def start(self, queue: str = "served") -> list[int]:
        """Start a worker beside; returns once it has ended a job."""
        command = (sys.executable, "-c", WORKER, self._address, queue)
        self._running.append(program(*command, log=self._folder / "worker.log"))
        queued = SyncQueue(queue, dispatch=self._plane)
        queued.result(queued.submit(thunk(shown)), timeout=20)
        return [self._running[-1].pid]

    def serve(self) -> None:
        """Start a control plane on the database."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = (
            "-m",
            "lakeshore.cli",
            "serve",
            "--store",
            self._named("served"),
            "--port",
            port,
            "--no-auth",
        )
        log = self._folder / "serve.log"
        self._running.append(program(sys.executable, *command, log=log))
        self._url, until = f"http://127.0.0.1:{port}", time.monotonic() + 20
        while True:
            try:
                HttpDispatch(self._url, timeout=1).count("served")
                return
            except DispatchError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def _through(self, http: bool) -> Any:
        return HttpDispatch(self._url) if http else self._plane

    def round_trip(self, n: int, http: bool = False) -> list[float]:
        queue = SyncQueue("served", dispatch=self._through(http))
        return rested(lambda: queue.result(queue.submit(thunk(shown))), n)

    def wait(self, n: int, http: bool = False) -> int:
        """Have `n` threads wait for jobs that nobody runs; returns the connections that they cost then."""
        plane = self._through(http)
        jobs = [plane.submit("waited", b"x", id=f"w{http}-{i}") for i in range(n)]
        threads = [threading.Thread(target=plane.result, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        time.sleep(2)
        with psycopg.connect(self._address, application_name="counting") as raw:
            counted = raw.execute(CONNECTIONS, {"who": "served" if http else "asking"}).fetchone()
        for _ in jobs:
            held = self._plane.claim("waited", "w")
            assert held is not None
            self._plane.ack(held.id, "w", fence=held.fence)
        for thread in threads:
            thread.join()
        assert counted is not None
        return int(counted[0])

    def finish(self, n: int) -> None:
        """Have `n` finished rows, by SQL: to work them off takes an hour."""
        with psycopg.connect(self._address) as raw:
            raw.execute(FINISHED, {"n": n})

    def neglect(self) -> None:
        """No statistics and no vacuum from now on."""
        with psycopg.connect(self._address) as raw:
            raw.execute("ALTER TABLE lakeshore.invocation SET (autovacuum_enabled = off)")

    def close(self) -> None:
        for each_running in self._running:
            end(each_running)
        self._plane.close()
        if self._server is not None:
            self._server.cleanup()
