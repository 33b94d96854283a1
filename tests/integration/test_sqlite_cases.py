"""The file plane under what others reported: many processes, foreign locks, forks, stale workers."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from lakeshore import Dispatch, DispatchError
from lakeshore.planes.contract import Submission

LONG = os.environ.get("LONG_TESTS") == "1"
"""``LONG_TESTS=1 pytest tests/integration -k sqlite`` runs each fault as often as it takes to trust it."""

CLAIMER = """
    import sys
    from lakeshore import Dispatch
    plane = Dispatch(sys.argv[1], durable=False)
    print("ready", flush=True)
    sys.stdin.readline()
    while (job := plane.claim("gpu", sys.argv[2])) is not None:
        plane.ack(job.id, sys.argv[2], fence=job.fence)
        print(job.id)
"""


def spawn(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python with `code`, its ends piped."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_together(processes: list[subprocess.Popen[str]]) -> None:
    """Let processes that said "ready" go at the same moment."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def finish(process: subprocess.Popen[str], *, timeout: float = 120) -> str:
    """Wait for a process that must end well, and return what it printed."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err[-2000:]
    return out


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    """Wait for a process that stops itself."""
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def sound(path: Path) -> None:
    """Check the file by another SQLite, when no plane is open on it."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_each_job_is_claimed_once(tmp_path: Path) -> None:
    path, n = tmp_path / "p.sqlite", 10_000 if LONG else 600
    plane = Dispatch(path)
    ids = [f"j{i:05d}" for i in range(n)]
    plane.submit_many("gpu", [Submission(envelope=b"e", id=id) for id in ids])
    processes = [spawn(CLAIMER, path, f"w{k}") for k in range(16 if LONG else 6)]
    start_together(processes)
    claimed = [id for process in processes for id in finish(process).split()]
    assert sorted(claimed) == ids
    assert plane.count("gpu", "succeeded") == n


@pytest.mark.slow
def test_a_write_lock_held_elsewhere_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    plane = Dispatch(path)
    held = 6.5 if LONG else 2.0
    other = spawn(
        """
        import sqlite3, sys, time
        db = sqlite3.connect(sys.argv[1], isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        print("held", flush=True)
        time.sleep(float(sys.argv[2]))
        db.execute("COMMIT")
        """,
        path,
        held,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    began = time.monotonic()
    assert plane.submit("gpu", b"e", id="late") == "late"
    assert time.monotonic() - began > held / 2
    finish(other)


def test_a_lock_held_too_long_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    plane, other = Dispatch(path), Dispatch(path)
    raw, mine = other._frames, plane._frames
    assert raw is not None
    assert mine is not None
    mine.patience.seconds = 0.2
    plane._rows = mine
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(DispatchError, match=r"p\.sqlite.*lock"):
        plane.submit("gpu", b"e", id="a")
    assert plane.count("gpu") == 0
    raw.execute("ROLLBACK")
    assert plane.submit("gpu", b"e", id="a") == "a"


def test_a_fresh_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    code = """
        import sys
        from lakeshore import Dispatch
        print("ready", flush=True)
        for line in sys.stdin:
            plane = Dispatch(line.strip())
            plane.submit("gpu", b"e", id="i" + sys.argv[1])
            plane.close()
            print("done", flush=True)
    """
    processes = [spawn(code, k) for k in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for turn in range(200 if LONG else 6):
        path = tmp_path / f"fresh{turn}.sqlite"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n", process.communicate()[1]
        with Dispatch(path) as plane:
            assert plane.count("gpu") == 8
    for process in processes:
        finish(process)


def test_posts_of_many_processes_are_all_kept(tmp_path: Path) -> None:
    path, n = tmp_path / "p.sqlite", 1000 if LONG else 100
    plane = Dispatch(path)
    code = """
        import sys
        from lakeshore import Dispatch
        plane = Dispatch(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
        for i in range(int(sys.argv[3])):
            plane.journal_append("topic", None, f"{sys.argv[2]}-{i}".encode())
    """
    processes = [spawn(code, path, k, n) for k in range(4)]
    start_together(processes)
    for process in processes:
        finish(process)
    plane.journal_append("topic", None, b"", final=True)
    frames = list(plane.journal_read("topic", timeout=1))
    assert [seq for seq, _ in frames] == list(range(4 * n + 1))
    assert len({body for _, body in frames}) == 4 * n + 1


def test_parent_and_children_go_on_after_a_fork(tmp_path: Path) -> None:
    code = """
        import os, sys
        from lakeshore import Dispatch
        plane = Dispatch(sys.argv[1])
        plane.submit("gpu", b"e", id="before")
        children = []
        for k in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for i in range(40):
                        plane.submit("gpu", b"e" * 3000, id=f"c{k}-{i}")
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        for i in range(40):
            plane.submit("gpu", b"e" * 3000, id=f"p-{i}")
        assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0] * 4
        print(plane.count("gpu"))
        plane.close()
    """
    path = tmp_path / "p.sqlite"
    assert finish(spawn(code, path)) == "201\n"
    sound(path)


@pytest.mark.parametrize("load", ["writes", "turns", "reads", "frames", "waits"])
def test_forks_beside_busy_threads_hang_nothing_and_lose_nothing(tmp_path: Path, load: str) -> None:
    code = """
        import os, signal, subprocess, sys, threading, time
        from lakeshore import Dispatch
        path, load, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])
        plane = Dispatch(path, durable=False)
        other = Dispatch(path, durable=False)
        done, stop, failed = [], threading.Event(), []

        def busy(who):
            try:
                while not stop.is_set():
                    id = f"{who}-{len(done)}"
                    if load in ("writes", "turns"):
                        plane.submit("gpu", b"e" * 2000, id=id)
                        done.append(id)
                    elif load == "reads":
                        plane.count("gpu"); other.get("none")
                    elif load == "frames":
                        plane.journal_append("topic", None, b"f"); done.append(id)
                    else:
                        plane.claim("none", "w", wait=0.01); other.submit("x", b"", id=id, key=id)
            except BaseException as error:
                failed.append(repr(error))

        if load == "turns":  # with another process, so that turns are waited for
            rival = subprocess.Popen([sys.executable, "-c", (
                "import itertools, sys; from lakeshore import Dispatch; plane = Dispatch(sys.argv[1])\\n"
                "for i in itertools.count(): plane.submit('rival', b'e', id=f'r{i}')"), path])
        threads = [threading.Thread(target=busy, args=(f"t{k}",), daemon=True) for k in range(2)]
        for thread in threads: thread.start()
        hung = 0
        for k in range(forks):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    plane.submit("child", b"", id=f"child-{k}")
                    other.count("gpu")
                    plane.journal_append("topic", None, b"c")
                    os._exit(0)
                except BaseException as error:
                    os.write(2, repr(error).encode())
                    os._exit(3)
            hung += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        stop.set()
        for thread in threads: thread.join(30)
        lost = 0
        if load == "turns":
            rival.kill(); rival.wait()
        if load in ("writes", "turns"):
            lost = len(set(done)) - plane.count("gpu")
        elif load == "frames":
            plane.journal_append("topic", None, b"", final=True)
            lost = len(done) + forks + 1 - sum(1 for _ in plane.journal_read("topic", timeout=5))
        print(hung, lost, plane.count("child") - forks, failed)
    """
    forks = 500 if LONG else 12
    out = finish(spawn(code, tmp_path / "p.sqlite", load, forks))
    assert out.split() == ["0", "0", "0", "[]"]
    sound(tmp_path / "p.sqlite")


def test_a_key_race_makes_one_row(tmp_path: Path) -> None:
    plane = Dispatch(tmp_path / "p.sqlite")
    ids: list[str] = []
    gate = threading.Barrier(16)

    def submit(i: int) -> None:
        gate.wait()
        ids.append(plane.submit("gpu", b"e", id=f"id{i}", key="same"))

    threads = [threading.Thread(target=submit, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(ids), len(set(ids)), plane.count("gpu")) == (16, 1, 1)


WORKER = """
    import sys
    from lakeshore import Dispatch
    from lakeshore.planes.contract import ClaimSpec
    from lakeshore.errors import ClaimLost
    plane, me = Dispatch(sys.argv[1], durable=False), sys.argv[2]
    spec = ClaimSpec("gpu", lease=0.3)
    print("ready", flush=True)
    job = None
    while True:
        if job is None:
            job = plane.claim("gpu", me, lease=0.3, wait=0.2)
        if job is None:
            continue
        try:
            plane.journal_append(job.id, None, f"{me}/{job.fence}".encode(), worker_id=me, fence=job.fence)
            job = plane.ack(job.id, me, result=f"{me}/{job.fence}".encode(), fence=job.fence, next=spec)
        except ClaimLost:
            job = None
"""


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_complete_nothing_twice(tmp_path: Path) -> None:
    jobs, kills, workers = (10_000, 200, 8) if LONG else (1500, 12, 3)
    path = tmp_path / "p.sqlite"
    plane = Dispatch(path, durable=False)
    plane.submit_many("gpu", [Submission(envelope=b"e", id=f"j{i}") for i in range(jobs)])
    names = iter(f"w{i}" for i in range(10_000))
    alive = [spawn(WORKER, path, next(names)) for _ in range(workers)]
    killed = 0
    deadline = time.monotonic() + (600 if LONG else 90)
    while plane.count("gpu", "succeeded") < jobs:
        assert time.monotonic() < deadline, plane.queues()
        if killed < kills:
            victim = alive.pop(0)
            time.sleep(random.uniform(0.0, 0.2))  # no event to wait for: the moment is to be random
            victim.kill()
            victim.communicate()
            killed += 1
            alive.append(spawn(WORKER, path, next(names)))
            assert alive[-1].stdout is not None
            alive[-1].stdout.readline()
        else:
            time.sleep(0.05)
    for process in alive:
        process.kill()
        process.communicate()
    executions = 0
    for i in range(jobs):
        row = plane.get(f"j{i}")
        assert row is not None
        assert row["state"] == "succeeded"
        assert row["fence"] == row["attempt"] == row["losses"] + 1
        executions += row["attempt"]
        frames = list(plane.journal_read(f"j{i}", timeout=0))
        assert frames[-1][1] == row["result"], "the last attempt's frame is the result's"
    assert executions - jobs <= killed
    plane.close()
    sound(path)


def test_a_stopped_worker_that_wakes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    plane = Dispatch(path, durable=False)
    code = """
        import os, signal, sys
        from lakeshore import Dispatch
        from lakeshore.errors import ClaimLost
        plane = Dispatch(sys.argv[1])
        job = plane.claim("gpu", "w", lease=0.1)
        print("claimed", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        refused = 0
        for late in (
            lambda: plane.journal_append(job.id, None, b"late", worker_id="w", fence=job.fence),
            lambda: plane.heartbeat(job.id, "w", fence=job.fence),
            lambda: plane.ack(job.id, "w", result=b"late", fence=job.fence),
            lambda: plane.nack(job.id, "w", error="late", retry=False, fence=job.fence),
        ):
            try:
                late()
            except ClaimLost:
                refused += 1
        print(refused)
    """
    for turn in range(100 if LONG else 3):
        plane.submit("gpu", b"e", id=f"j{turn}")
        process = spawn(code, path)
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        wait_until_stopped(process)
        job = plane.claim("gpu", "w", wait=5.0)  # the same worker id: only the fence differs
        assert job is not None
        plane.journal_append(job.id, None, b"new", worker_id="w", fence=job.fence)
        process.send_signal(signal.SIGCONT)
        assert finish(process) == "4\n"
        plane.ack(job.id, "w", result=b"new", fence=job.fence)
        assert plane.result(job.id, timeout=0) == b"new"
        assert [body for _, body in plane.journal_read(job.id, timeout=0)] == [b"new"]


def test_a_stopped_holder_of_the_side_lock_delays_others_once(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    plane = Dispatch(path, durable=False)
    plane.submit("gpu", b"e", id="first")
    code = """
        import fcntl, os, signal, sys
        fd = os.open(sys.argv[1] + "-writers", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX, 2, 0)
        print("held", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    process = spawn(code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    wait_until_stopped(process)
    began = time.monotonic()
    plane.submit("gpu", b"e", id="a")
    first = time.monotonic() - began
    for i in range(20):
        plane.submit("gpu", b"e", id=f"b{i}")
    rest = time.monotonic() - began - first
    process.send_signal(signal.SIGCONT)
    finish(process)
    assert 0.5 < first < 1.6
    assert rest < 0.5
