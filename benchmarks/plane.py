"""The SQLite plane against raw apsw on the same disk in the same run: only the ratios mean something.

    python benchmarks/plane.py               about a minute
    python benchmarks/plane.py --rows 1000000   claims up to a million queued rows

Raw and plane take turns in short slices, and the best slice of each counts, so that other load on the
machine falls on both.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from lakeshore import Dispatch, SyncQueue
from lakeshore.planes.contract import ClaimSpec, Submission

BODY = b"x" * 200
SLICES = 7


def best_rates(sides: dict[str, Callable[[int], object]], n: int) -> dict[str, float]:
    """Run the sides in turns, `n` operations a slice; return each one's best operations per second."""
    best = dict.fromkeys(sides, 0.0)
    for _ in range(SLICES):
        for name, run in sides.items():
            began = time.perf_counter()
            run(n)
            best[name] = max(best[name], n / (time.perf_counter() - began))
    return best


def show(what: str, rates: dict[str, float], wants: float) -> None:
    """Print the plane's rate, raw's, and their ratio."""
    plane, raw = rates["plane"], rates["raw"]
    print(f"{what:<46}{plane:>10,.0f}/s  raw {raw:>9,.0f}/s  ratio {plane / raw:.2f}  (wants {wants})")


class Raw:
    """What SQLite itself does here: a keyed row a commit, claim and ack of it, a frame a commit."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.db = apsw.Connection(str(path))
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", synchronous)
        self.db.execute("CREATE TABLE job (seq INTEGER PRIMARY KEY, state TEXT, worker TEXT, body BLOB)")
        self.db.execute("CREATE INDEX queued ON job (seq) WHERE state = 'queued'")
        self.db.execute("CREATE TABLE plain (seq INTEGER PRIMARY KEY, body BLOB)")
        self.taken: int | None = None

    def insert(self, n: int) -> None:
        """Insert rows, one a commit."""
        for _ in range(n):
            self.db.execute("INSERT INTO plain (body) VALUES (?)", (BODY,))

    def fill(self, n: int) -> None:
        """Queue rows in one commit."""
        with self.db:
            self.db.executemany(
                "INSERT INTO job (state, body) VALUES ('queued', ?)", ((BODY,) for _ in range(n))
            )

    def _claim(self) -> None:
        head = "(SELECT seq FROM job WHERE state = 'queued' ORDER BY seq LIMIT 1)"
        sql = f"UPDATE job SET state = 'running', worker = 'w' WHERE seq = {head} RETURNING seq"
        self.taken = self.db.execute(sql).fetchall()[0][0]

    def _ack(self) -> None:
        self.db.execute("UPDATE job SET state = 'done' WHERE seq = ?", (self.taken,))

    def two_commits(self, n: int) -> None:
        """Claim and ack, a commit each."""
        for _ in range(n):
            self._claim()
            self._ack()

    def fused(self, n: int) -> None:
        """Ack and claim the next in one commit."""
        for _ in range(n):
            self.db.execute("BEGIN IMMEDIATE")
            self._ack()
            self._claim()
            self.db.execute("COMMIT")


class Mine:
    """The plane's side of the same work."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.plane = Dispatch(path, durable=durable)
        self.queue = SyncQueue("queue", dispatch=self.plane)
        self.count = 0
        self.job = None

    def submit(self, n: int) -> None:
        """Submit by the verb."""
        for _ in range(n):
            self.count += 1
            self.plane.submit("gpu", BODY, id=f"j{self.count:020d}")

    def submit_by_queue(self, n: int) -> None:
        """Submit a small payload through the queue layer, ids and encoding included."""
        for _ in range(n):
            self.queue.submit(BODY)

    def fill(self, n: int) -> None:
        """Queue rows in one commit."""
        items = []
        for _ in range(n):
            self.count += 1
            items.append(Submission(envelope=BODY, id=f"j{self.count:020d}"))
        self.plane.submit_many("gpu", items)

    def drain(self, n: int) -> None:
        """Ack and claim the next, fused."""
        job = self.job or self.plane.claim("gpu", "w")
        for _ in range(n):
            assert job is not None
            job = self.plane.ack(job.id, "w", result=b"r", fence=job.fence, next=ClaimSpec("gpu"))
        self.job = job

    def frames(self, n: int) -> None:
        """Append frames, one a commit."""
        for _ in range(n):
            self.plane.journal_append("topic", None, BODY)


def throughput(folder: Path) -> None:
    """Print rates and their ratios."""
    for synchronous, durable in (("FULL", True), ("NORMAL", False)):
        raw = Raw(folder / f"raw-{synchronous}.sqlite", synchronous)
        mine = Mine(folder / f"plane-{synchronous}.sqlite", durable=durable)
        n = 300 if durable else 1500
        show(
            f"submit, {synchronous}",
            best_rates({"raw": raw.insert, "plane": mine.submit}, n),
            0.9 if durable else 0.4,
        )
        show(
            f"submit through SyncQueue, {synchronous}",
            best_rates({"raw": raw.insert, "plane": mine.submit_by_queue}, n),
            0.9 if durable else 0.4,
        )
        raw.fill(n * SLICES * 2 + 10)
        mine.fill(n * SLICES + 10)
        show(
            f"drain, {synchronous}, against claim and ack in two commits",
            best_rates({"raw": raw.two_commits, "plane": mine.drain}, n),
            1.1 if durable else 0.4,
        )
        raw.fill(n * SLICES + 10)
        mine.fill(n * SLICES + 10)
        show(
            f"drain, {synchronous}, against both in one commit",
            best_rates({"raw": raw.fused, "plane": mine.drain}, n),
            0.9 if durable else 0.6,
        )
        if not durable:
            show("frames, NORMAL", best_rates({"raw": raw.insert, "plane": mine.frames}, n), 0.5)
        began = time.perf_counter()
        mine.fill(20_000)
        rate = 20_000 / (time.perf_counter() - began)
        print(f"{f'submit_many of 20,000, {synchronous}':<46}{rate:>10,.0f}/s  (wants 50,000)")


def p50(call: Callable[[], object], n: int = 200) -> float:
    """Return the median microseconds of a call."""
    taken = []
    for _ in range(n):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)


def claims(folder: Path, most: int) -> None:
    """Print what one claim costs by the rows queued, delayed and finished."""
    mine = Mine(folder / "claims.sqlite", durable=False)
    rows = 1000
    mine.fill(rows)

    def line(what: str) -> None:
        costs = {
            kind: p50(lambda kind=kind: mine.plane.claim("gpu", "w", kind=kind)) for kind in ("fifo", "filo")
        }  # type: ignore[misc]
        print(f"{what:<46}" + "  ".join(f"{kind} {cost:6.1f} us" for kind, cost in costs.items()))

    line(f"claim at {rows:,} queued")
    while rows < most:
        mine.fill(rows * 9)
        rows *= 10
        line(f"claim at {rows:,} queued")
        if rows == 100_000:
            cost = p50(lambda: mine.plane.claim("gpu", "w", kind="boltzmann"), 15) / 1000
            print(f"{'boltzmann at 100,000 queued':<46}{cost:.1f} ms  (wants 25)")
    delayed = [Submission(envelope=BODY, id=f"d{i}", delay=3600.0) for i in range(100_000)]
    mine.plane.submit_many("gpu", delayed)
    line("... and 100,000 delayed")
    done = Dispatch(folder / "claims.sqlite", durable=False)
    for _ in range(20):
        for job in done.claim_many("gpu", "w2", 1000):
            done.ack(job.id, "w2", fence=job.fence)
    line("... and 20,000 finished")


WAITER = """
    import resource, sys, time
    from lakeshore import Dispatch
    plane = Dispatch(sys.argv[1], durable=False)
    wait = {
        "claim": lambda: plane.claim("none", "w", wait=float(sys.argv[3])),
        "journal_read": lambda: next(plane.journal_read("silent", timeout=float(sys.argv[3])), None),
    }[sys.argv[2]]
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.monotonic()
    try:
        wait()
    except TimeoutError:
        pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(60 * used / (time.monotonic() - began))
"""

ECHO = """
    import sys
    from lakeshore import Dispatch
    from lakeshore.planes.contract import ClaimSpec
    plane = Dispatch(sys.argv[1], durable=sys.argv[2] == "True")
    print("ready", flush=True)
    while True:
        job = plane.claim("echo", "w", wait=30)
        if job is None or job.envelope == b"stop":
            break
        plane.ack(job.id, "w", result=job.envelope, fence=job.fence)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python with `code`."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def idling(folder: Path, seconds: float) -> None:
    """Print what waiting costs."""
    processes = {
        verb: python(WAITER, folder / "idle.sqlite", verb, seconds) for verb in ("claim", "journal_read")
    }
    for verb, process in processes.items():
        used = float(process.communicate()[0])
        print(f"{f'blocked in {verb}':<46}{used:.3f} CPU s/min  (wants 0.1)")


def latency(folder: Path) -> None:
    """Print the round trip through another process, and how late a reader in this one is."""
    for durable in (True, False):
        path = folder / f"echo-{durable}.sqlite"
        plane = Dispatch(path, durable=durable)
        echo = python(ECHO, path, durable)
        assert echo.stdout is not None
        echo.stdout.readline()
        taken = []
        for i in range(300):
            began = time.perf_counter()
            plane.submit("echo", b"e", id=f"e{i}")
            plane.result(f"e{i}")
            taken.append((time.perf_counter() - began) * 1000)
        plane.submit("echo", b"stop", id="stop")
        echo.communicate()
        taken.sort()
        what = f"submit -> result, {'FULL' if durable else 'NORMAL'}, another process"
        wants = "4 and 25" if durable else "2 and 25"
        print(f"{what:<46}p50 {taken[150]:.2f} ms  p99 {taken[297]:.2f} ms  (wants {wants})")
    plane = Dispatch(folder / "lag.sqlite", durable=False)
    lags: list[float] = []

    def read() -> None:
        for _, body in plane.journal_read("topic"):
            if body:
                lags.append((time.perf_counter() - float(body)) * 1000)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        time.sleep(0.002)  # a yield now and then: the reader sleeps in between
        plane.journal_append("topic", None, str(time.perf_counter()).encode())
    plane.journal_append("topic", None, b"", final=True)
    reader.join()
    lags.sort()
    print(
        f"{'frame -> reader in another thread':<46}p50 {lags[100]:.2f} ms  p99 {lags[198]:.2f} ms  (wants 2)"
    )


WRITER = """
    import sys, time
    from lakeshore import Dispatch
    plane, end = Dispatch(sys.argv[1], durable=sys.argv[4] == "True"), float(sys.argv[3])
    while time.time() < end - float(sys.argv[5]): time.sleep(0.001)
    n, worst = 0, 0.0
    while time.time() < end:
        began = time.perf_counter()
        plane.submit("gpu", b"x" * 200, id=f"{sys.argv[2]}-{n}")
        worst = max(worst, time.perf_counter() - began)
        n += 1
    print(n, worst)
"""


def fairness(folder: Path, seconds: float) -> None:
    """Print how evenly writers share the file, and how long one waited."""
    for writers in (4, 8):
        for durable in (True, False):
            path = folder / f"fair-{writers}-{durable}.sqlite"
            Dispatch(path).close()
            end = time.time() + seconds + 1.5
            processes = [python(WRITER, path, k, end, durable, seconds) for k in range(writers)]
            said = [process.communicate()[0].split() for process in processes]
            counts, worst = [int(n) for n, _ in said], max(float(w) for _, w in said)
            mean = sum(counts) / writers
            what = f"{writers} writers, {'FULL' if durable else 'NORMAL'}: {sum(counts) / seconds:,.0f}/s"
            shares = f"shares {min(counts) / mean:.2f}-{max(counts) / mean:.2f}"
            print(f"{what:<46}{shares}  worst wait {worst * 1000:.0f} ms  (wants 0.5-2, 250)")


def main() -> None:
    """Run what is asked for, default everything."""
    parts = ("throughput", "claims", "idling", "latency", "fairness")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; default all")
    parser.add_argument("--rows", type=int, default=100_000, help="most queued rows for claims")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to idle and to write")
    arguments = parser.parse_args()
    for part in arguments.parts or parts:
        with tempfile.TemporaryDirectory(prefix="lakeshore-benchmark-") as name:
            folder = Path(name)
            if part == "throughput":
                throughput(folder)
            elif part == "claims":
                claims(folder, arguments.rows)
            elif part == "idling":
                idling(folder, arguments.seconds)
            elif part == "latency":
                latency(folder)
            elif part == "fairness":
                fairness(folder, arguments.seconds)
            else:
                parser.error(f"no part {part!r}")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"load {os.getloadavg()[0]:.1f}, CPU {usage.ru_utime + usage.ru_stime:.0f} s")


if __name__ == "__main__":
    main()
