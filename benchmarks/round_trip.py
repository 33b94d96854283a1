"""Round trips between two processes on one file, and what an idle worker costs.

A worker (`python -m lakeshore.daemon`) runs in a process of its own; this process submits, as a
kernel would. Figures are milliseconds, and per cent of one core for the idle worker.

    python benchmarks/round_trip.py [--jobs 300] [--idle 10] [--not-durable]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lakeshore import Dispatch, SyncQueue, thunk


def answer() -> int:
    """Return at once: the smallest job."""
    return 42


def counted() -> Iterator[int]:
    """Yield once, then end."""
    yield 1


def measure(once: Callable[[], float], jobs: int) -> dict[str, float]:
    """Run `once` (which returns seconds) `jobs` times, after ten that do not count."""
    for _ in range(10):
        once()
    times = sorted(once() * 1000 for _ in range(jobs))
    return {
        "p50_ms": statistics.median(times),
        "p99_ms": times[int(len(times) * 0.99) - 1],
        "max_ms": times[-1],
    }


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and the children it waited for, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(descendant for child in children for descendant in process_tree(int(child)))]


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=300, help="round trips that count, default 300")
    parser.add_argument(
        "--idle", type=float, default=10.0, help="seconds to watch the idle worker, default 10"
    )
    parser.add_argument("--not-durable", action="store_true", help="submit with durable=False")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakeshore-bench-") as home:
        env = dict(os.environ, LAKESHORE_HOME=home)
        command = [sys.executable, "-m", "lakeshore.daemon", "--queue", "bench", "--root", home]
        with (Path(home) / "worker.log").open("wb") as log:
            worker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            plane = Dispatch(str(Path(home) / "dispatch.sqlite"), durable=not options.not_durable)
            q = SyncQueue("bench", dispatch=plane)

            def to_result() -> float:
                begin = time.perf_counter()
                q.result(q.submit(thunk(answer)))
                return time.perf_counter() - begin

            def to_frame() -> float:
                begin = time.perf_counter()
                stream = q.stream(q.submit(thunk(counted)))
                next(stream)
                seconds = time.perf_counter() - begin
                list(stream)
                return seconds

            figures: dict[str, object] = {
                "submit_to_result": measure(to_result, options.jobs),
                "submit_to_first_frame": measure(to_frame, options.jobs),
            }
            time.sleep(1)  # the worker comes to rest
            tree = process_tree(worker.pid)
            before = sum(map(cpu_seconds, tree))
            time.sleep(options.idle)
            used = sum(map(cpu_seconds, tree)) - before
            figures["idle_worker_percent_of_a_core"] = 100 * used / options.idle
            print(json.dumps(figures, indent=2))
        finally:
            worker.terminate()
            worker.wait(30)


if __name__ == "__main__":
    main()
