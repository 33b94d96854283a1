"""SQLite and PostgreSQL side by side, to choose between them: one client, four workers, a result's way, room.

Run: ``python benchmarks/sqlite_or_postgres.py postgresql://… [FOLDER]``. The file is made in FOLDER, a
temporary one by default, which wants to be on the database's disk; the database keeps a namespace of its own.
Both wait for the disk at every commit, unless the first line says otherwise. Rates depend on that disk and
on the cores: quote ratios.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import apsw
import psycopg

from lakeshore import Dispatch, Submission
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.default import open_postgres
from lakeshore.planes.store import Store

BODY = b"e" * 200
JOBS = 2000
ROOM = 5000


def opened(store: str, ns: str) -> Store:
    return open_postgres(store, ns) if store.startswith("postgres") else Dispatch(store, ns=ns)


def submits(store: str, ns: str) -> float:
    """Return how many jobs one client submits in a second, each by itself."""
    with opened(store, ns) as plane:
        plane.submit("one", BODY, id="first")
        began = time.perf_counter()
        for n in range(JOBS):
            plane.submit("one", BODY, id=f"one-{n}")
        return JOBS / (time.perf_counter() - began)


def work(store: str, ns: str, queue: str, ready: object, done: object) -> None:
    with opened(store, ns) as plane:
        plane.count(queue)
        ready.wait()  # type: ignore[attr-defined]
        count, name = 0, uuid.uuid4().hex
        held = plane.claim(queue, name)
        while held is not None:
            held = plane.ack(held.id, name, fence=held.fence, result=b"r", next=ClaimSpec(queue))
            count += 1
        done.put(count)  # type: ignore[attr-defined]


def drained(store: str, ns: str, workers: int) -> float:
    """Return how many jobs so many processes take and end in a second."""
    queue = f"drain{workers}"
    with opened(store, ns) as plane:
        plane.submit_many(queue, [Submission(envelope=BODY, id=f"{queue}-{n}") for n in range(JOBS)])
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(workers + 1), context.Queue()
    running = [context.Process(target=work, args=(store, ns, queue, ready, done)) for _ in range(workers)]
    for each in running:
        each.start()
    ready.wait()
    began = time.perf_counter()
    assert sum(done.get() for _ in running) == JOBS
    took = time.perf_counter() - began
    for each in running:
        each.join()
    return JOBS / took


def way(store: str, ns: str) -> float:
    """Return the median milliseconds from a submit to its result, a worker waiting."""
    stop = threading.Event()

    def serve() -> None:
        with opened(store, ns) as plane:
            while not stop.is_set():
                held = plane.claim("way", "w", wait=0.5)
                if held is not None:
                    plane.ack(held.id, "w", fence=held.fence, result=b"r")

    worker, times = threading.Thread(target=serve), []
    worker.start()
    with opened(store, ns) as plane:
        for n in range(300):
            began = time.perf_counter()
            plane.submit("way", BODY, id=f"way-{n}")
            plane.result(f"way-{n}")
            times.append(time.perf_counter() - began)
    stop.set()
    worker.join()
    return statistics.median(times) * 1000


def room(store: str, ns: str) -> float:
    """Return how many bytes an ended job takes, without arguments, result or frames."""
    before = size(store)
    with opened(store, ns) as plane:
        plane.submit_many("room", [Submission(envelope=b"", id=f"room-{n}") for n in range(ROOM)])
        held = plane.claim("room", "w")
        while held is not None:
            held = plane.ack(held.id, "w", fence=held.fence, next=ClaimSpec("room"))
    return (size(store) - before) / ROOM


def size(store: str) -> int:
    """Return the bytes that a store's tables and indexes take."""
    if not store.startswith("postgres"):
        return Path(store).stat().st_size
    with psycopg.connect(store) as raw:
        row = raw.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relnamespace = 'lakeshore'::regnamespace AND relkind IN ('r', 'p')"
        ).fetchone()
    assert row is not None
    return int(row[0])


def conditions(store: str) -> str:
    """Return what the figures hang on."""
    with psycopg.connect(store) as raw:
        rows = raw.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), "
            "current_setting('synchronous_commit')"
        ).fetchall()
    version, fsync, commit = rows[0]
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; SQLite "
        f"{apsw.sqlite_lib_version()}; PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}"
    )


def main() -> None:
    """Print a line a figure, both engines in it."""
    ns = f"bench-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        stores = {"SQLite": str(Path(folder, "jobs.sqlite")), "PostgreSQL": sys.argv[1]}
        print(conditions(sys.argv[1]))
        print(f"{'':<38}{'SQLite':>10}{'PostgreSQL':>12}")
        for name, unit, measured in (
            ("submits, one client", "jobs/s", submits),
            ("taken and ended, one worker", "jobs/s", lambda store, ns: drained(store, ns, 1)),
            ("taken and ended, four workers", "jobs/s", lambda store, ns: drained(store, ns, 4)),
            ("submit to result, median", "ms", way),
            ("an ended job", "bytes", room),
        ):
            values = [measured(store, ns) for store in stores.values()]
            shown = "".join(
                f"{value:>{width}.{1 if unit == 'ms' else 0}f}"
                for value, width in zip(values, (10, 12), strict=True)
            )
            print(f"{f'{name} ({unit})':<38}{shown}", flush=True)


if __name__ == "__main__":
    main()
