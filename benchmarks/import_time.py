"""What `import lakeshore` costs over a bare interpreter; prints medians and the machine.

Each run is a fresh interpreter, alternately with and without the import, so that a busy moment hits both.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time


def seconds(code: str) -> float:
    """Time one fresh interpreter that runs `code`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="interpreters per case (default 15)")
    runs = parser.parse_args().runs
    cases = {
        "bare interpreter": "pass",
        "import lakeshore": "import lakeshore",
        "... and SyncQueue, Dispatch": "import lakeshore; lakeshore.SyncQueue; lakeshore.Dispatch",
    }
    for code in cases.values():
        seconds(code)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, code in cases.items():
            times[name].append(seconds(code))
    bare = statistics.median(times["bare interpreter"])
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, medians of {runs} interpreters")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:<30} {median * 1e3:7.1f} ms   {(median - bare) * 1e3:+7.1f} ms")


if __name__ == "__main__":
    main()
