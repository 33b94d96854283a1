"""Kernel and daemon as two processes on one file: how soon a submitted job's first frame and result are here.

The worker is `python -m lakeshore.daemon`; this process submits and reads. Prints percentiles, the idle
worker's CPU share, and the conditions.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lakeshore


def one_frame() -> Iterator[int]:
    """Yield once."""
    yield 1


def nothing() -> int:
    """Return at once."""
    return 1


def first_frame(queue: lakeshore.SyncQueue) -> None:
    """Submit and wait for the first frame."""
    next(iter(queue.stream(queue.submit(lakeshore.thunk(one_frame)))))


def result(queue: lakeshore.SyncQueue) -> None:
    """Submit and wait for the result."""
    queue.result(queue.submit(lakeshore.thunk(nothing)))


def milliseconds(
    action: Callable[[lakeshore.SyncQueue], None], queue: lakeshore.SyncQueue, runs: int
) -> list[float]:
    """Time `runs` calls of `action`, each against an idle worker."""
    times = []
    for _ in range(runs):
        while queue.count("queued") or queue.count("running"):
            time.sleep(0.001)
        time.sleep(0.01)
        started = time.perf_counter()
        action(queue)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, from /proc (Linux)."""
    total = 0
    pids = [pid]
    while pids:
        this = pids.pop()
        fields = Path(f"/proc/{this}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
        for task in Path(f"/proc/{this}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="jobs per case (default 200)")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds to watch it idle (default 20)")
    parser.add_argument("--isolation", choices=["process", "inline"], default="process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        os.environ["LAKESHORE_HOME"] = str(home)
        plane = lakeshore.Dispatch(str(home / "dispatch.sqlite"))
        queue = lakeshore.SyncQueue("bench", dispatch=plane)
        command = [sys.executable, "-m", "lakeshore.daemon", "--queue", "bench", "--root", folder]
        worker = subprocess.Popen(
            [*command, "--isolation", options.isolation], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            started = time.perf_counter()
            first_frame(queue)
            cold = (time.perf_counter() - started) * 1e3
            milliseconds(result, queue, 10)
            print(
                f"Python {platform.python_version()}, {os.cpu_count()} cores, SQLite file, power-safe, "
                f"isolation={options.isolation}, {options.runs} jobs a line"
            )
            print(f"{'daemon start -> first frame':<28} {cold:7.1f} ms")
            for name, action in (("submit -> first frame", first_frame), ("submit -> result", result)):
                times = milliseconds(action, queue, options.runs)
                p50, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
                print(f"{name:<28} {p50:7.2f} ms p50 {p95:7.2f} ms p95 {max(times):7.2f} ms max")
            if options.idle and Path("/proc").is_dir():
                before = cpu_seconds(worker.pid)
                time.sleep(options.idle)
                share = (cpu_seconds(worker.pid) - before) / options.idle
                print(f"{'idle worker':<28} {share * 100:7.2f} % of a core over {options.idle:g} s")
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
            plane.close()


if __name__ == "__main__":
    main()
