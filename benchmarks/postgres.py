"""The plane on PostgreSQL, in figures: submits, drains, a claim in a long queue, submit to result.

Run: ``python benchmarks/postgres.py postgresql://… [--long]`` on an otherwise idle database; it uses a
namespace of its own and deletes nothing. Rates depend on the disk: compare what one machine prints.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
import uuid

from lakeshore import Submission
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.postgres import PostgresDispatch

BODY = b"e" * 100


def fill(dp: PostgresDispatch, queue: str, n: int) -> float:
    began, step = time.perf_counter(), 20_000
    for start in range(0, n, step):
        ids = range(start, min(n, start + step))
        dp.submit_many(queue, [Submission(envelope=BODY, id=f"{queue}-{i}") for i in ids])
    return n / (time.perf_counter() - began)


def drain(dp: PostgresDispatch, queue: str, worker: str) -> int:
    done, held = 0, dp.claim(queue, worker)
    while held is not None:
        held = dp.ack(held.id, worker, fence=held.fence, result=b"r", next=ClaimSpec(queue))
        done += 1
    return done


def drain_rate(dsn: str, dp: PostgresDispatch, ns: str, jobs: int, workers: int) -> float:
    queue = f"drain{workers}"
    fill(dp, queue, jobs)
    command = [sys.executable, __file__, dsn, "--drain", ns, queue]
    running = [
        subprocess.Popen([*command, f"w{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(workers)
    ]
    for each in running:
        assert each.stdout is not None
        each.stdout.readline()  # it is connected
    began = time.perf_counter()
    done = sum(int(each.communicate("go\n")[0]) for each in running)
    took = time.perf_counter() - began
    assert done == jobs
    return jobs / took


def claim_cost(dp: PostgresDispatch, queue: str) -> float:
    times = []
    for _ in range(300):
        began = time.perf_counter()
        held = dp.claim(queue, "w")
        times.append(time.perf_counter() - began)
        assert held is not None
    return statistics.median(times) * 1000


def round_trip(dp: PostgresDispatch) -> float:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            held = dp.claim("trip", "w", wait=1)
            if held is not None:
                dp.ack(held.id, "w", fence=held.fence, result=b"r")

    worker = threading.Thread(target=work)
    worker.start()
    times = []
    for n in range(200):
        began = time.perf_counter()
        dp.submit("trip", BODY, id=f"trip-{n}")
        dp.result(f"trip-{n}")
        times.append(time.perf_counter() - began)
    stop.set()
    worker.join()
    return statistics.median(times) * 1000


def main() -> None:
    dsn = sys.argv[1]
    if "--drain" in sys.argv:
        ns, queue, worker = sys.argv[3:6]
        with PostgresDispatch(dsn, ns=ns) as dp:
            dp.count(queue)
            print("ready", flush=True)
            sys.stdin.readline()
            print(drain(dp, queue, worker))
        return
    ns = f"bench-{uuid.uuid4().hex}"
    long_queue = 1_000_000 if "--long" in sys.argv else 100_000
    with PostgresDispatch(dsn, ns=ns) as dp:
        print(f"submit -> result, p50          {round_trip(dp):8.1f} ms")
        for workers in (1, 4):
            print(
                f"drain, {workers} worker(s)             {drain_rate(dsn, dp, ns, 4000, workers):8.0f} jobs/s"
            )
        fill(dp, "short", 1_000)
        short = claim_cost(dp, "short")
        rate = fill(dp, "long", long_queue)
        print(f"submit_many                    {rate:8.0f} rows/s")
        print(f"claim, 1,000 queued, p50       {short:8.2f} ms")
        print(f"claim, {long_queue:,} queued, p50  {claim_cost(dp, 'long'):8.2f} ms")


if __name__ == "__main__":
    main()
