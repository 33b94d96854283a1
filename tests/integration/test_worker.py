"""Workers as processes of their own: what kills, stops, or starves them, and what becomes of the jobs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakeshore import Dispatch, InvocationFailed, SyncQueue, run, thunk


def wait_until(condition, timeout=20.0):
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
    return value


class Daemons:
    """Starts daemons on one home, and leaves none behind."""

    def __init__(self, home, folder):
        self.home, self.folder, self.started = home, folder, []

    def __call__(self, *flags, queue="gpu", module=("lakeshore.daemon",), **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", *module, "--queue", queue, *flags],
            cwd=self.folder,
            env={**os.environ, "LAKESHORE_HOME": str(self.home), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def once(self, *flags, **options):
        process = self("--once", *flags, **options)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def end(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def daemon(home, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    daemons = Daemons(home, folder)
    yield daemons
    daemons.end()


@pytest.fixture
def plane(home):
    plane = Dispatch(str(home / "dispatch.sqlite"))
    yield plane
    plane.close()


@pytest.fixture
def q(plane):
    return SyncQueue("gpu", dispatch=plane)


def gone(pid):
    """Whether a process has ended (a zombie that nobody reaps counts)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# -- killed, stopped, told to stop


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_kill_9_in_mid_generator_and_another_worker_finishes_it(daemon, plane, q, tmp_path, isolation):
    first = str(tmp_path / "first")

    def train():
        import os
        import time

        again = os.path.exists(first)
        if not again:
            Path(first).write_text(str(os.getpid()))
        for step in range(8):
            yield {"step": step, "again": again}
            if not again and step == 3:
                time.sleep(600)
        return "trained"

    inv = q.submit(thunk(train))
    flags = ("--lease", "1", "--isolation", isolation)
    victim = daemon(*flags)
    seen = q.stream(inv, timeout=30)
    assert [next(seen)["step"] for _ in range(4)] == [0, 1, 2, 3]
    victim.kill()
    victim.wait(10)
    daemon(*flags)
    assert q.result(inv, timeout=30) == "trained"
    row = plane.get(inv)
    assert (row["state"], row["attempt"], row["losses"]) == ("succeeded", 2, 1)
    assert list(q.stream(inv)) == [{"step": step, "again": True} for step in range(8)]
    assert list(seen) == [{"step": step, "again": True} for step in range(8)]  # a live reader goes on
    assert seen.attempt == 2
    if isolation == "process" and sys.platform == "linux":
        assert wait_until(lambda: gone(int(Path(first).read_text())))


def test_sigterm_lets_the_body_finish(daemon, plane, q, tmp_path):
    flag = tmp_path / "started"

    def job():
        import time

        flag.touch()
        time.sleep(1)
        return "done"

    inv = q.submit(thunk(job))
    after = q.submit(thunk(lambda: "not me"))
    worker = daemon()
    wait_until(flag.exists)
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=15)
    assert worker.returncode == 0, out
    assert q.result(inv) == "done"
    assert plane.get(after)["state"] == "queued"
    assert "drained: 1 job executed" in out


@pytest.mark.parametrize("isolation", ["process", "inline"])
@pytest.mark.parametrize("how", ["grace", "second signal"])
def test_past_its_grace_the_job_is_handed_back(daemon, plane, q, tmp_path, isolation, how):
    flag = tmp_path / "started"

    def job():
        import time

        flag.touch()
        time.sleep(600)

    inv = q.submit(thunk(job))
    worker = daemon("--grace", "0.3" if how == "grace" else "600", "--isolation", isolation)
    wait_until(flag.exists)
    worker.send_signal(signal.SIGTERM)
    began = time.monotonic()
    if how != "grace":
        time.sleep(0.3)
        worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=15)
    assert worker.returncode == 0, out
    assert time.monotonic() - began < (8 if how == "grace" else 3)
    row = plane.get(inv)
    assert (row["state"], row["attempt"], row["losses"]) == ("queued", 0, 0)


def test_a_worker_that_was_stopped_past_its_lease_is_refused(daemon, plane, q, tmp_path):
    first = tmp_path / "first"

    def job():
        import time

        mine = not first.exists()
        first.touch()
        for n in range(20):
            yield [n, mine]
            time.sleep(0.05)
        return "first" if mine else "second"

    inv = q.submit(thunk(job))
    stopped = daemon("--lease", "1", "--isolation", "inline")
    seen = q.stream(inv)
    next(seen)
    stopped.send_signal(signal.SIGSTOP)
    other = daemon("--lease", "1")
    wait_until(lambda: plane.get(inv)["attempt"] == 2)
    stopped.send_signal(signal.SIGCONT)
    assert q.result(inv, timeout=20) == "second"
    assert list(q.stream(inv)) == [[n, False] for n in range(20)]
    again = q.submit(thunk(lambda: "next"))
    assert q.result(again, timeout=10) == "next"
    assert stopped.poll() is None
    assert other.poll() is None


@linux
def test_a_killed_worker_leaves_no_body_behind(daemon, q, tmp_path):
    pids = tmp_path / "pids"

    def job():
        import ctypes
        import os

        pids.write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(600)  # holds the GIL, so no thread of the child can look after it

    q.submit(thunk(job))
    worker = daemon()
    pid = int(wait_until(lambda: pids.exists() and pids.read_text()))
    worker.kill()
    worker.wait(10)
    wait_until(lambda: gone(pid), 5)


# -- crashes of bodies


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; print('so far', flush=True); os._exit(7)", "exited with code 7"),
        ("import ctypes; print('so far', flush=True); ctypes.string_at(0)", "SIGSEGV (signal 11)"),
        (
            "import os; print('so far'); os.kill(os.getpid(), 9)",
            "SIGKILL (signal 9; the system does this when memory",
        ),
        ("import os; print('so far'); os.abort()", "SIGABRT"),
    ],
)
def test_a_crash_costs_one_attempt_and_not_the_worker(daemon, plane, q, code, told):
    inv = q.submit(thunk(exec, code))
    good = q.submit(thunk(os.getpid))
    worker = daemon("--retries", "1")
    with pytest.raises(InvocationFailed) as caught:
        q.result(inv, timeout=30)
    row = plane.get(inv)
    assert (row["attempt"], row["losses"]) == (2, 0)
    assert told in row["error"]
    assert "so far" in caught.value.message
    assert "lakeshore" not in caught.value.message
    assert q.result(good, timeout=10) != worker.pid
    assert worker.poll() is None
    assert "so far" in "".join(item["text"] for item in q.logs(inv))


def test_a_child_is_kept_warm_and_replaced_after_a_crash(daemon, q):
    pids = [q.submit(thunk(os.getpid)) for _ in range(3)]
    crash = q.submit(thunk(os._exit, 1).with_options(retries=0))
    after = q.submit(thunk(os.getpid))
    daemon()
    warm = {q.result(inv, timeout=30) for inv in pids}
    assert len(warm) == 1
    with pytest.raises(InvocationFailed):
        q.result(crash, timeout=30)
    assert q.result(after, timeout=30) not in warm


def test_one_body_cannot_spoil_the_next(daemon, q, tmp_path):
    def spoil():
        import os
        import signal
        import sys

        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.close()
        os.close(1)
        os.close(2)
        sys.stderr = None

    def clean():
        print("heard")
        run.write("x").write_text("x")
        return ["x", os.getcwd(), os.getpid()]

    q.submit(thunk(spoil))
    inv = q.submit(thunk(clean))
    daemon()
    assert q.result(inv, timeout=30)[1] == str(daemon.folder)
    assert (daemon.folder / "x").exists()
    assert [item["text"] for item in q.logs(inv)] == ["heard\n"]


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os.kill(os.getpid(), 2)", "raise KeyboardInterrupt"])
def test_whatever_a_body_raises_is_its_own_failure(daemon, plane, q, leave):
    inv = q.submit(thunk(exec, f"import os, sys, time; {leave}; time.sleep(0.5)"))
    good = q.submit(thunk(lambda: "good"))
    daemon("--retries", "0")
    assert q.result(good, timeout=30) == "good"
    assert plane.get(inv)["state"] in ("failed", "succeeded")


def test_what_a_body_forks_ends_by_sigterm(daemon, q):
    def job():
        import os
        import signal
        import time

        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        return os.WTERMSIG(os.waitpid(pid, 0)[1])

    invs = [q.submit(thunk(job)) for _ in range(2)]
    for inv, isolation in zip(invs, ("process", "inline"), strict=True):
        daemon.once("--isolation", isolation)
        assert q.result(inv) == signal.SIGTERM


@linux
def test_a_sigterm_to_the_whole_service_leaves_the_body_its_grace(daemon, plane, q, tmp_path):
    pids = tmp_path / "pids"

    def job():
        import os
        import time

        pids.write_text(str(os.getpid()))
        time.sleep(1)
        return "finished"

    inv = q.submit(thunk(job))
    worker = daemon()
    child = int(wait_until(lambda: pids.exists() and pids.read_text()))
    for pid in (child, worker.pid):
        os.kill(pid, signal.SIGTERM)
    worker.communicate(timeout=15)
    assert plane.get(inv)["state"] == "succeeded"


# -- cancel, timeout, the GIL


@pytest.mark.parametrize("way", ["cancel", "timeout"])
def test_a_sleeping_body_is_stopped_and_its_child_replaced(daemon, plane, q, tmp_path, way):
    mark, flag = tmp_path / "tidied", tmp_path / "started"

    def job():
        import time

        try:
            flag.touch()
            time.sleep(600)
        finally:
            mark.touch()

    inv = q.submit(thunk(job).with_options(timeout=0.4 if way == "timeout" else None, retries=0))
    daemon()
    wait_until(flag.exists)
    if way == "cancel":
        q.cancel(inv)
    wait_until(mark.exists, 3)
    assert q.call(thunk(lambda: "next"), timeout=10) == "next"
    assert plane.get(inv)["state"] == ("failed" if way == "timeout" else "cancelled")


@pytest.mark.slow
def test_a_body_that_will_not_stop_is_killed(daemon, plane, q):
    def job():
        import time

        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                time.sleep(60)
            except BaseException:
                continue

    inv = q.submit(thunk(job).with_options(timeout=0.3, retries=0))
    daemon()
    began = time.monotonic()
    with pytest.raises(InvocationFailed, match="TimeoutError"):
        q.result(inv, timeout=20)
    assert 4 < time.monotonic() - began < 12


# -- output


def test_what_child_processes_print_is_in_the_log_too(daemon, q):
    def job():
        import subprocess
        import sys

        print("body", flush=True)
        subprocess.run(
            [sys.executable, "-c", "import sys; print('grandchild'); sys.stderr.write('é\\n')"], check=True
        )

    inv = q.submit(thunk(job))
    code, out = daemon.once()
    text = {
        stream: "".join(i["text"] for i in q.logs(inv) if i["stream"] == stream)
        for stream in ("stdout", "stderr")
    }
    assert text == {"stdout": "body\ngrandchild\n", "stderr": "é\n"}
    assert code == 0
    assert "grandchild" in out


def test_a_flood_does_not_slow_or_swell(daemon, plane, q):
    def job():
        for _ in range(100_000):
            print("x" * 80)

    inv = q.submit(thunk(job))
    daemon.once()
    assert plane.get(inv)["state"] == "succeeded"
    assert sum(len(item["text"]) for item in q.logs(inv)) < 1_100_000


def test_tqdm_runs_in_the_daemon(daemon, q):
    pytest.importorskip("tqdm")

    def job():
        from tqdm.auto import tqdm

        return sum(tqdm(range(200)))

    inv = q.submit(thunk(job))
    daemon.once()
    assert q.result(inv) == 19900
    assert any("200/200" in item["text"] for item in q.logs(inv))


def test_display_and_progress_come_out_of_the_child(daemon, q, plane):
    def job():
        run.progress(1, 2)
        run.display({"a": 1})
        run.progress(2, 2)

    inv = q.submit(thunk(job))
    daemon.once()
    assert [item for item in q.logs(inv) if "display" in item] == [{"display": {"text/plain": "{'a': 1}"}}]
    assert len(list(plane.journal_read(f"{inv}.progress", timeout=0))) >= 1


def test_big_values_pass_through_the_child(daemon, q):
    def job():
        yield b"v" * 9_000_000
        return b"r" * 9_000_000

    inv = q.submit(thunk(job))
    daemon.once()
    assert [len(value) for value in q.stream(inv)] == [9_000_000]
    assert len(q.result(inv)) == 9_000_000


# -- the daemon's own ways


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--lease", "soon"), "--lease"),
        (("--lease", "0"), "lease"),
        (("--concurrency", "0"), "concurrency"),
        (("--isolation", "docker"), "--isolation"),
        (("--frobnicate",), "--frobnicate"),
        (("--url", "ftp://localhost:1"), "ftp://localhost:1"),
        (("--root", __file__), "is a file"),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_2(daemon, flags, told):
    process = daemon(*flags)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert out.count("\n") == 1
    assert told in out


@pytest.mark.parametrize(
    "environment",
    [{"LAKESHORE_RUNTIME_POLICY": "exact"}, {"LAKESHORE_MAX_PAYLOAD": "much"}],
)
def test_a_bad_environment_is_one_line_and_exit_2(daemon, environment):
    process = daemon(**environment)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert out.count("\n") == 1
    assert next(iter(environment)) in out


def test_without_a_queue_it_says_how_to_give_one(daemon):
    process = daemon(queue="")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "LAKESHORE_QUEUE" in out


def test_a_plane_that_cannot_be_opened_is_waited_for(daemon, home, q, plane):
    inv = q.submit(thunk(lambda: 1))
    away = home.with_name("away")
    home.rename(away)
    home.write_text("in the way")
    code, out = daemon.once()
    assert code == 3
    assert "plane away" in out
    worker = daemon()
    line = worker.stdout.readline()
    assert "plane away" in line
    home.unlink()
    away.rename(home)
    assert q.result(inv, timeout=20) == 1


def test_signals_end_a_daemon_that_waits_for_its_plane(daemon, home):
    home.rmdir()
    home.write_text("in the way")
    worker = daemon()
    worker.stdout.readline()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=5)
    assert worker.returncode == 0


def test_a_foreign_file_is_left_as_it_is(daemon, home):
    file = home / "dispatch.sqlite"
    file.write_bytes(b"not a database, " * 1000)
    code, out = daemon.once()
    assert code == 3
    assert str(file) in out
    assert file.read_bytes() == b"not a database, " * 1000


def test_a_start_and_an_end_are_one_line_each(daemon, q):
    inv = q.submit(thunk(lambda: 1 / 0).with_options(name="ratio", retries=0))
    _, out = daemon.once()
    lines = [line for line in out.splitlines() if inv in line]
    assert re.search(rf"start {inv} ratio attempt 1$", lines[0])
    assert re.search(rf"failed {inv} ratio after \d+\.\d\d s: ZeroDivisionError: division by zero$", lines[1])
    assert len(lines) == 2


def test_slots_run_side_by_side(daemon, q, tmp_path):
    def meet(n):
        import time

        (tmp_path / str(n)).touch()
        until = time.monotonic() + 10
        while not (tmp_path / str(1 - n)).exists():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    invs = [q.submit(thunk(meet, n)) for n in range(2)]
    daemon("--concurrency", "2")
    assert all(q.result(inv, timeout=30) for inv in invs)


def test_a_drain_on_eof(daemon, q, home):
    process = subprocess.Popen(
        [sys.executable, "-m", "lakeshore.daemon", "--queue", "gpu", "--drain-on-eof"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert q.call(thunk(lambda: 1), timeout=20) == 1
    process.stdin.close()
    assert process.wait(10) == 0


def test_a_child_that_cannot_start_is_the_workers_fault_and_not_the_jobs(daemon, plane, q, tmp_path):
    inv = q.submit(thunk(lambda: 1))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os, sys\nif '-c' in sys.orig_argv:\n    os.write(2, b'broken install')\n    os._exit(9)\n"
    )
    code, out = daemon.once(PYTHONPATH=str(broken))
    assert code == 1
    assert "does not start" in out
    assert "broken install" in out
    row = plane.get(inv)
    assert (row["state"], row["attempt"]) == ("queued", 0)
