"""The command line on a real plane: what it prints, to whom, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lakeshore import Dispatch, SyncQueue, WorkerThread, run_worker, thunk
from lakeshore.cli.app import run


@pytest.fixture
def plane(home):
    from lakeshore.planes.default import set_default_plane

    plane = Dispatch(str(home / "dispatch.sqlite"))
    set_default_plane(plane)
    yield plane
    set_default_plane(None)
    plane.close()


@pytest.fixture
def q(plane):
    return SyncQueue("gpu", dispatch=plane)


@pytest.fixture
def cli(plane, capsys):
    """Run a command line; returns its code, stdout and stderr."""

    def call(*argv):
        code = run(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def done(q, fn, *args, **options):
    inv = q.submit(thunk(fn, *args))
    threading.Thread(target=lambda: run_worker(q, once=True, retries=0, **options)).start()
    while q.status(inv)["state"] in ("queued", "running"):
        time.sleep(0.005)
    return inv


def test_ls_shows_jobs_newest_first_and_filters(cli, q):
    first, second = done(q, lambda: 1), q.submit(thunk(lambda: 2))
    code, out, _ = cli("ls")
    assert code == 0
    assert out.index(second) < out.index(first)
    assert "succeeded" in out
    assert first not in cli("ls", "--state", "queued")[1]
    assert "no jobs" in cli("ls", "other")[1]
    assert "<lambda>" in out
    named = q.submit(thunk(pow, 2, 3).with_options(name="a power"))
    assert "a power" in cli("ls", "-n", "1")[1]
    assert json.loads(cli("show", named, "--json")[1])["name"] == "a power"
    assert q.cancel(named)
    rows = json.loads(cli("ls", "gpu", "--state", "queued", "--json")[1])
    assert [row["id"] for row in rows] == [second]


def test_show_takes_a_unique_beginning(cli, q):
    inv = done(q, lambda: 1)
    assert json.loads(cli("show", inv[:-1], "--json")[1])["state"] == "succeeded"
    code, out, _ = cli("show", inv)
    assert code == 0
    assert "succeeded" in out
    q.submit(thunk(lambda: 2))
    code, _, err = cli("show", inv[:2])
    assert code == 2
    assert "beginning of 2 ids" in err


@pytest.mark.parametrize("command", ["show", "result", "stream", "logs", "cancel", "requeue"])
def test_an_unknown_id_is_one_line_and_2(cli, command):
    code, out, err = cli(command, "nope")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "lakeshore ls" in err


def test_result_prints_the_value_or_the_error(cli, q):
    assert cli("result", done(q, lambda: {"loss": 0.5, 1: (2,)}))[1] == "{'loss': 0.5, 1: (2,)}\n"
    assert json.loads(cli("result", done(q, lambda: {"b": b"x", 1: float("nan")}), "--json")[1]) == {
        "b": {"base64": "eA=="},
        "1": "nan",
    }
    code, out, err = cli("result", done(q, lambda: 1 / 0))
    assert (code, out) == (1, "")
    assert "ZeroDivisionError" in err
    waiting = q.submit(thunk(lambda: 1))
    assert cli("result", waiting, "--timeout", "0.05")[0] == 1
    assert cli("result", waiting, "--timeout", "soon")[0] == 2
    q.cancel(waiting)
    assert cli("result", waiting)[0] == 1


def test_stream_and_logs(cli, q):
    def job():
        print("hello")
        yield {"step": 1}
        yield "text"

    inv = done(q, job)
    assert cli("stream", inv)[:2] == (0, "{'step': 1}\ntext\n")
    assert [json.loads(line) for line in cli("stream", inv, "--json")[1].splitlines()] == [
        {"step": 1},
        "text",
    ]
    assert cli("stream", inv, "--since", "0")[1] == "text\n"
    assert cli("logs", inv)[1] == "hello\n"
    assert json.loads(cli("logs", inv, "--json")[1]) == {"stream": "stdout", "text": "hello\n"}


def test_a_failed_stream_ends_in_1(cli, q):
    code, out, err = cli("stream", done(q, lambda: (1 // (1 - n) for n in range(3))))
    assert (code, out) == (1, "1\n")
    assert "ZeroDivisionError" in err


def test_cancel_and_requeue(cli, q):
    inv = q.submit(thunk(lambda: 1))
    assert cli("cancel", inv)[:2] == (0, f"{inv} cancelled\n")
    code, out, _ = cli("cancel", inv)
    assert code == 1
    assert "had ended already" in out
    assert cli("requeue", inv)[0] == 0
    assert q.count() == 1


def test_queues_workers_and_prune(cli, q, plane):
    done(q, lambda: 1)
    q.submit(thunk(lambda: 2))
    assert json.loads(cli("queues", "--json")[1])["gpu"]["succeeded"] == 1
    assert "gpu" in cli("queues")[1]
    assert json.loads(cli("workers", "--json")[1])[0]["queue"] == "gpu"
    assert str(os.getpid()) in cli("workers", "gpu")[1]
    assert "0 jobs" in cli("prune", "--older-than", "1h")[1]
    assert json.loads(cli("prune", "--older-than", "0", "--json")[1]) == {"deleted": 1}
    assert cli("prune", "--older-than", "long")[0] == 2
    assert cli("prune", "--older-than", "1h", "--state", "queued")[0] == 2
    assert q.count() == 1


def test_odd_text_in_a_table_is_shown_as_text(cli, plane):
    plane.submit("[red]q[/]", b"x", id="j")
    assert "[red]q[/]" in cli("ls")[1]


def test_wrong_use_is_one_line_and_2(cli):
    for argv in (("bogus",), ("ls", "--state", "bad"), ("ls", "-n", "0"), ("show",), ("prune",)):
        code, out, err = cli(*argv)
        assert (code, out) == (2, ""), argv
        assert err.startswith("lakeshore: ")


def command(*argv, **options):
    options.setdefault("capture_output", True)
    return subprocess.run([sys.executable, "-m", "lakeshore.cli", *argv], text=True, timeout=60, **options)


def test_version_and_help_open_no_plane(tmp_path):
    environment = {**os.environ, "LAKESHORE_HOME": str(tmp_path / "none")}
    assert command("--version", env=environment).stdout.startswith("lakeshore ")
    assert "worker" in command("--help", env=environment).stdout
    assert "--workers" in command("worker", "start", "--help", env=environment).stdout
    assert not (tmp_path / "none").exists()


def test_an_unreachable_plane_is_one_line_and_3(tmp_path):
    (tmp_path / "file").write_text("")
    done = command("ls", env={**os.environ, "LAKESHORE_HOME": str(tmp_path / "file")})
    assert (done.returncode, done.stdout) == (3, "")
    assert "LAKESHORE_HOME" in done.stderr or str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error(q):
    for _ in range(50):
        q.submit(thunk(lambda: 1))
    done = command(
        "ls", "--json", "-n", "50", capture_output=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert done.returncode == 0
    pipe = subprocess.Popen(
        f"{sys.executable} -m lakeshore.cli ls --json -n 50 | head -c 1",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert pipe.communicate(timeout=30)[1] == ""


# -- the supervisor


def in_two_attempts():
    from lakeshore import run

    yield "begun"
    if run.attempt == 1:
        time.sleep(60)
    return run.attempt


@pytest.fixture
def supervised(home):
    started = []

    def start(*flags, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "lakeshore.cli", "worker", *flags],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def workers_of(plane, count):
    until = time.monotonic() + 20
    while len(rows := plane.workers("gpu")) < count:
        assert time.monotonic() < until
        time.sleep(0.02)
    return rows


@pytest.mark.slow
def test_start_runs_n_daemons_and_drains_them_on_sigterm(supervised, plane, q):
    process = supervised("start", "--queue", "gpu", "--workers", "2")
    pids = {row["pid"] for row in workers_of(plane, 2)}
    assert len(pids) == 2
    inv = q.submit(thunk(time.sleep, 0.8))
    while plane.get(inv)["state"] == "queued":
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=15)
    assert process.returncode == 0, out
    assert plane.get(inv)["state"] == "succeeded"
    assert out.count("drained") == 2
    assert "[1] " in out


def test_a_crashed_daemon_starts_again(supervised, plane):
    supervised("start", "--queue", "gpu")
    (row,) = workers_of(plane, 1)
    os.kill(row["pid"], signal.SIGKILL)
    assert {row["pid"] for row in workers_of(plane, 2)} > {row["pid"]}


@pytest.mark.slow
def test_a_killed_daemons_job_does_not_wait_for_its_lease(supervised, plane, q):
    supervised("start", "--queue", "gpu", "--lease", "300")
    job = q.submit(thunk(in_two_attempts))
    assert next(q.stream(job)) == "begun"
    (row,) = plane.workers("gpu")
    os.kill(row["pid"], signal.SIGKILL)
    assert q.result(job, timeout=15) == 2


def test_it_gives_up_on_a_daemon_that_keeps_crashing(supervised, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'lakeshore.daemon' in sys.orig_argv:\n    os.write(2, b'no such luck\\n')\n    os._exit(9)\n"
    )
    process = supervised("start", "--queue", "gpu", PYTHONPATH=str(tmp_path))
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out.count("starts again") == 4
    assert "giving up" in out
    assert out.strip().endswith("no such luck")


def test_a_killed_supervisor_takes_its_daemons_along(supervised, plane):
    process = supervised("start", "--queue", "gpu")
    (row,) = workers_of(plane, 1)
    process.kill()
    process.wait(5)
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/{row['pid']}/exe"):
        assert time.monotonic() < until, "the daemon stayed"
        time.sleep(0.02)


def test_once_runs_one_job(supervised, plane, q):
    inv, other = q.submit(thunk(lambda: 1)), q.submit(thunk(lambda: 2))
    process = supervised("once", "--queue", "gpu")
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert plane.get(inv)["state"] == "succeeded"
    assert plane.get(other)["state"] == "queued"


@pytest.mark.parametrize("verb", ["start", "once"])
def test_bad_flags_start_nothing(supervised, verb):
    for flags in (
        ("--queue", "gpu", "--lease", "0"),
        (),
        ("--queue", "gpu", "--frob"),
        ("--queue", "gpu", "stray"),
    ):
        out, _ = (process := supervised(verb, *flags)).communicate(timeout=20)
        assert process.returncode == 2
        assert out.count("\n") == 1, out


def test_a_token_is_handed_on_by_environment_never_by_argument(monkeypatch):
    from lakeshore.cli.worker import _checked

    monkeypatch.setenv("LAKESHORE_CLIENT_TOKEN", "old")
    kept = _checked(["--queue", "gpu", "--token", "secret", "--retries", "2"])
    assert kept == ["--queue", "gpu", "--retries", "2"]
    assert _checked(["--token=other", "--queue", "gpu"]) == ["--queue", "gpu"]
    assert os.environ["LAKESHORE_CLIENT_TOKEN"] == "other"


def test_a_root_that_is_not_there_is_refused_and_not_made(monkeypatch, tmp_path, capsys):
    root = tmp_path / "dta"
    assert run(["worker", "start", "--queue", "gpu", "--root", str(root)]) == 2
    assert f"--root '{root}': there is no such directory" in capsys.readouterr().err
    monkeypatch.setenv("LAKESHORE_ROOT", str(root))
    assert run(["worker", "once", "--queue", "gpu"]) == 2
    assert f"LAKESHORE_ROOT '{root}': there is no such directory" in capsys.readouterr().err
    assert not root.exists()


@pytest.mark.parametrize("flag", ["--plane", "--store", "--store-file"])
def test_a_workers_store_goes_by_the_environment(monkeypatch, tmp_path, flag):
    from lakeshore.cli.worker import _checked

    monkeypatch.setenv("LAKESHORE_URL", "https://elsewhere.example.com")
    dsn = "postgresql://me:hush@127.0.0.1/db"
    (tmp_path / "store").write_text(dsn)
    value = str(tmp_path / "store") if flag == "--store-file" else dsn
    assert _checked(["--queue", "gpu", f"{flag}={value}"]) == ["--queue", "gpu"]
    assert os.environ["LAKESHORE_URL"] == dsn


def test_a_worker_thread_is_listed(cli, q):
    with WorkerThread(q) as worker:
        q.call(thunk(lambda: 1))
        assert worker.worker_id in cli("workers")[1]
