"""A process is told apart from what else may have its pid, and only ours are taken for ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from lakeshore.cli import processes
from lakeshore.cli.processes import Process

STAND_IN = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture(params=["pidfd", "pid alone"])
def by_either(request, monkeypatch):
    if request.param == "pid alone":
        monkeypatch.delattr(os, "pidfd_open", raising=False)


@pytest.fixture
def child():
    started = []

    def start(*arguments):
        command = [sys.executable, "-c", STAND_IN, *arguments]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"up\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_is_known_by_what_it_runs(child, by_either):
    process = Process(child("-m", "lakeshore.daemon", "--drain-on-eof", "--queue", "gpu").pid)
    assert process.why_not(time.time()) is None
    process.close()
    process = Process(child("-m", "lakeshore.daemon", "--queue", "gpu").pid)
    assert "not started by" in process.why_not(time.time())
    process.close()


def test_a_pid_used_again_is_another_process(child):
    process = Process(child("-m", "lakeshore.daemon", "--drain-on-eof").pid)
    assert "another process" in process.why_not(time.time() - 3600)
    process.close()


def test_another_users_process_is_left_alone(child, monkeypatch):
    process = Process(child("-m", "lakeshore.daemon", "--drain-on-eof").pid)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert "another user" in process.why_not(time.time())
    process.close()


def test_it_is_signalled_and_waited_for(child, by_either):
    started = child()
    process = Process(started.pid)
    assert not process.ended_within(0.05)
    process.send(signal.SIGTERM)
    assert started.wait(10) == -signal.SIGTERM
    assert process.ended_within(10)
    process.send(signal.SIGTERM)
    assert process.why_not(time.time()) == "cannot be looked at"
    process.close()
    with pytest.raises(ProcessLookupError):
        Process(started.pid)


def test_ps_says_the_same_as_proc(child, monkeypatch):
    pid = child("-m", "lakeshore.daemon", "--drain-on-eof").pid
    uid, began, command = processes._look(pid)
    assert uid == os.geteuid()
    assert abs(began - time.time()) < 5
    monkeypatch.setattr(processes, "Path", lambda text: _Nowhere())
    said = processes._look(pid)
    assert said[0] == uid
    assert abs(said[1] - began) < 2
    assert said[2][-3:] == ["-m", "lakeshore.daemon", "--drain-on-eof"]


class _Nowhere:
    def exists(self):
        return False
