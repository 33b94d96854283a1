"""The file plane over time: fair shares, a small WAL, flat descriptors, waits that cost nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import apsw
import pytest

from lakeshore import Dispatch

LONG = os.environ.get("LONG_TESTS") == "1"

WRITER = """
    import sys, time
    from lakeshore import Dispatch
    path, me, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    plane = Dispatch(path, durable=False)
    print("ready", flush=True)
    sys.stdin.readline()
    n, worst, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        plane.submit("gpu", b"x" * 500, id=f"{me}-{n}")
        worst = max(worst, time.monotonic() - began)
        n += 1
    print(n, worst)
"""

READER = """
    import os, sys, time
    from lakeshore import Dispatch
    path, seconds = sys.argv[1], float(sys.argv[2])
    plane = Dispatch(path)
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    plane.count("gpu"); plane.invocations("gpu", limit=5)
    before, looks = len(os.listdir("/proc/self/fd")), 0
    while time.monotonic() < end:
        plane.count("gpu"); plane.invocations("gpu", limit=200); looks += 1
    assert len(os.listdir("/proc/self/fd")) <= before
    print(looks)
"""

SOAKER = """
    import os, sys, time
    from lakeshore import Dispatch
    from lakeshore.planes.contract import ClaimSpec
    path, me, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    plane = Dispatch(path, durable=me in "01")
    def held():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096, len(os.listdir("/proc/self/fd"))
    plane.prune(older_than=1.0, limit=400)  # this opens what it reads with, before descriptors are counted
    print("ready", flush=True)
    sys.stdin.readline()
    sent = done = 0
    job, early, end, spec = None, None, time.monotonic() + seconds, ClaimSpec("gpu", lease=3600.0)
    while time.monotonic() < end:
        plane.submit("gpu", b"x" * (3000 if sent % 10 == 0 else 300), id=f"{me}-{sent}")
        sent += 1
        if job is None:
            job = plane.claim("gpu", me, lease=3600)
        if job is None:
            continue
        plane.journal_append(job.id, None, b"f" * 200, worker_id=me, fence=job.fence)
        job = plane.ack(job.id, me, result=b"r", fence=job.fence, frame=b"end", next=spec)
        done += 1
        if sent % 500 == 0:
            plane.prune(older_than=1.0, limit=400)
        if early is None and time.monotonic() > end - seconds * 0.7:
            early = held()
    if job is not None:
        plane.release(job.id, me, fence=job.fence)
    late = held()
    print(sent, done, late[0] - early[0], late[1] - early[1])
"""

IDLER = """
    import resource, sys, time
    from lakeshore import Dispatch
    plane = Dispatch(sys.argv[1])
    def used():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime
    seconds = float(sys.argv[3])
    before = used()
    try:
        if sys.argv[2] == "claim":
            plane.claim("none", "w", wait=seconds)
        elif sys.argv[2] == "result":
            plane.result("queued", timeout=seconds)
        else:
            list(plane.journal_read("silent", timeout=seconds))
    except TimeoutError:
        pass
    print(60 * (used() - before) / seconds)
"""


def spawn(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def go(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def said(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=1900)
    assert process.returncode == 0, err
    return out.split()


@pytest.mark.slow
@pytest.mark.parametrize("writers", [4, 8])
def test_writers_share_fairly(tmp_path: Path, writers: int) -> None:
    path, seconds = tmp_path / "p.sqlite", 20.0 if LONG else 2.0
    Dispatch(path).close()
    processes = [spawn(WRITER, path, k, seconds) for k in range(writers)]
    go(processes)
    figures = [said(process) for process in processes]
    counts = [int(n) for n, _ in figures]
    mean = sum(counts) / writers
    assert 0.5 * mean <= min(counts) <= max(counts) <= 2 * mean, counts
    if LONG:
        assert max(float(worst) for _, worst in figures) < 0.25, figures


@pytest.mark.slow
def test_the_wal_stays_small_beside_constant_readers(tmp_path: Path) -> None:
    path, seconds = tmp_path / "p.sqlite", 25.0 if LONG else 4.0
    plane = Dispatch(path)
    writers = [spawn(WRITER, path, k, seconds) for k in range(2)]
    processes = [*writers, *(spawn(READER, path, seconds) for _ in range(3))]
    go(processes)
    largest, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)  # between two looks at a size that nothing announces
        largest = max(largest, (tmp_path / "p.sqlite-wal").stat().st_size)
    written = sum(int(said(process)[0]) for process in writers)
    for process in processes[2:]:
        said(process)
    assert largest < 64 * 1024 * 1024, f"{largest:,} bytes after {written:,} rows"
    assert plane.count("gpu") == written


@pytest.mark.slow
def test_writers_against_checkpoints_lose_nothing_and_keep_nothing(tmp_path: Path) -> None:
    """Four writers, two of them power-safe; ``LONG_TESTS=1 SOAK_SECONDS=1800`` is the half hour."""
    path, seconds = tmp_path / "p.sqlite", float(os.environ.get("SOAK_SECONDS", 60)) if LONG else 3.0
    Dispatch(path).close()
    processes = [spawn(SOAKER, path, k, seconds) for k in range(4)]
    go(processes)
    largest, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)  # between two looks at a size that nothing announces
        largest = max(largest, (tmp_path / "p.sqlite-wal").stat().st_size)
    figures = [[int(figure) for figure in said(process)] for process in processes]
    sent, done = (sum(figure[i] for figure in figures) for i in (0, 1))
    print(f"{sent:,} submitted, {done:,} done, WAL {largest:,} bytes at most; grown RSS and fds: {figures}")
    assert largest < 64 * 1024 * 1024
    assert all(grown < 16 * 1024 * 1024 and fds <= 0 for _, _, grown, fds in figures), figures
    with Dispatch(path) as plane:
        assert plane.count("gpu") == sent - done
        assert plane.count("gpu", "running") == 0
        assert plane.prune(older_than=0) <= done
        assert plane.queues() == {"gpu": {"queued": sent - done}} if sent > done else plane.queues() == {}
    assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["claim", "result", "journal_read"])
def test_a_wait_costs_next_to_nothing(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "p.sqlite"
    Dispatch(path).submit("gpu", b"e", id="queued")
    per_minute = float(said(spawn(IDLER, path, verb, 30 if LONG else 3))[0])
    assert per_minute < 0.1


def test_a_frame_wakes_a_reader_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    plane = Dispatch(path, durable=False)
    reader = spawn(
        """
        import sys, time
        from lakeshore import Dispatch
        print("ready", flush=True)
        for _, body in Dispatch(sys.argv[1]).journal_read("topic", timeout=30):
            if body:
                print(time.monotonic() - float(body))
        """,
        path,
    )
    go([reader])
    for _ in range(60):
        plane.journal_append("topic", None, str(time.monotonic()).encode())
        time.sleep(0.01)  # so that the reader sleeps before each frame
    plane.journal_append("topic", None, b"", final=True)
    lags = sorted(map(float, said(reader)))
    assert len(lags) == 60
    assert lags[30] < 0.02, f"half of the frames came later than {lags[30] * 1000:.1f} ms"


def test_clock_steps_change_no_order_and_lapse_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = Dispatch(tmp_path / "p.sqlite")
    now = time.time()
    held = plane.submit("gpu", b"e", id="held")
    claimed = plane.claim("gpu", "w", lease=30.0)
    assert claimed is not None
    for i, step in enumerate((0, -3600, +3600, -7200, +7200)):
        monkeypatch.setattr(plane, "_now", lambda step=step: now + step)
        plane.submit("gpu", b"e", id=f"j{i}")
        row = plane.get(held)
        assert row is not None
        assert 25 < row["lease_expires_at"] - (now + step) < 31
    order = [plane.claim("gpu", "w") for _ in range(5)]
    assert [job and job.id for job in order] == [f"j{i}" for i in range(5)]
    assert plane.claim("gpu", "w") is None, "the lease of the first has not lapsed"
    plane.ack(held, "w", fence=claimed.fence)
