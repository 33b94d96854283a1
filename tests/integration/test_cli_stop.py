"""`lakeshore worker stop`: ends what `worker start` started, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from lakeshore import Dispatch, SyncQueue, thunk
from lakeshore.cli.app import run
from lakeshore.planes.default import set_default_plane


@pytest.fixture
def plane(home):
    plane = Dispatch(home / "dispatch.sqlite")
    set_default_plane(plane)
    yield plane
    set_default_plane(None)
    plane.close()


@pytest.fixture
def cli(plane, capsys):
    def call(*argv):
        code = run([*argv, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def start(plane):
    """Start a module as a process, and wait until the plane has seen `count` workers."""
    started = []

    def call(*command, count=1):
        started.append(subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL))
        until(lambda: len(plane.workers()) >= count)
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.wait()


def until(seen):
    end = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.02)


WORKER = ("lakeshore.cli", "worker", "start", "--queue", "gpu", "--isolation", "inline")


def test_a_running_job_ends_first(cli, start, plane):
    supervisor = start(*WORKER, "--workers", "2", count=2)
    job = SyncQueue("gpu", dispatch=plane).submit(thunk(time.sleep, 0.7))
    until(lambda: plane.get(job)["state"] == "running")
    assert cli("worker", "stop", "other") == (0, [])
    code, rows = cli("worker", "stop", "gpu")
    assert code == 0
    assert [row["outcome"] for row in rows] == ["stopped", "stopped"]
    assert plane.get(job)["state"] == "succeeded"
    assert supervisor.wait(10) == 0
    assert cli("worker", "stop") == (0, [])


def test_now_gives_a_job_back_and_a_short_wait_is_1(cli, start, plane):
    start(*WORKER)
    job = SyncQueue("gpu", dispatch=plane).submit(thunk(_wait))
    until(lambda: plane.get(job)["state"] == "running")
    code, rows = cli("worker", "stop", "--timeout", "0.1")
    assert code == 1
    assert [row["outcome"] for row in rows] == ["drains"]
    code, rows = cli("worker", "stop", "--now")
    assert (code, rows[0]["outcome"]) == (0, "stopped")
    row = plane.get(job)
    assert (row["state"], row["attempt"]) == ("queued", 0)


def _wait():
    for _ in range(6000):
        time.sleep(0.01)


def test_others_are_left_alone(cli, start, plane):
    daemon = start("lakeshore.daemon", "--queue", "gpu")
    plane.claim("gpu", f"kernel-{os.getpid()}-1")
    code, rows = cli("worker", "stop")
    assert code == 0
    assert {row["pid"]: row["outcome"] for row in rows} == {
        daemon.pid: "left alone",
        os.getpid(): "left alone",
    }
    assert all("not started by" in row["reason"] for row in rows)
    assert daemon.poll() is None
