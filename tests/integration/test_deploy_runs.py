"""The commands of deploy/ run as they are written, on a real PostgreSQL: set-up, probes, jobs, drains."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import postgres_server
import pytest
from integration.deployed import (
    DEPLOY,
    Example,
    answers,
    documents,
    of_compose,
    of_kubernetes,
    of_systemd,
    until,
)

from lakeshore import Dispatch, HttpDispatch, SyncQueue, settings, thunk
from lakeshore.cli.serve import open_store
from lakeshore.planes.store_tokens import Tokens
from lakeshore.server import create_app
from lakeshore.server.run import background

pytestmark = pytest.mark.slow
LONG = os.environ.get("LONG_TESTS") == "1"

SOURCE = """
import pathlib, time
def job(started, go):
    pathlib.Path(started).touch()
    while not pathlib.Path(go).exists():
        time.sleep(0.02)
    return "done"
def write():
    from lakeshore import run
    run.write("kept.txt").write_text("kept")
    return "kept.txt"
"""


def body(name: str = "job") -> Callable[..., str]:
    """Return a function of no module, as a notebook's are: it travels by value."""
    cell = types.ModuleType("__main__")
    exec(SOURCE, cell.__dict__)
    return cell.__dict__[name]


@pytest.fixture(params=[of_compose, of_kubernetes, of_systemd], ids=lambda make: make.__name__[3:])
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Example]:
    made = request.param(tmp_path, postgres_server.shared().fresh())
    with contextlib.closing(made.machine):
        yield made


def ready(example: Example, name: str = "server") -> None:
    until(lambda: answers(f"{example.url}/readyz")[0] == 200, told=lambda: example.machine.said(name))


def test_the_commands_do_what_they_are_for(example: Example, tmp_path: Path) -> None:
    machine = example.machine
    again = example.setup if example.name == "compose" else []
    for words in [*example.setup, *again]:  # once more does nothing
        machine.run(words, **example.server_env)
    server = machine.start("server", example.server, **example.server_env)
    ready(example)
    if example.probe:
        machine.run(example.probe)
    assert answers(f"{example.url}/healthz")[0] == 200
    assert answers(f"{example.url}/metrics", example.token("admin"))[0] == 200
    assert answers(f"{example.url}/metrics", example.token("worker"))[0] == 403
    said = machine.said("server")
    assert not any(example.token(role) in said for role in example.tokens), "a secret is in the log"
    worker = machine.start("worker", example.worker, **example.worker_env)
    with contextlib.closing(HttpDispatch(example.url, token=example.token("producer"))) as plane:
        q = SyncQueue(example.queue, dispatch=plane)
        (tmp_path / "go").touch()
        first = q.submit(thunk(body(), str(tmp_path / "first"), str(tmp_path / "go")))
        assert q.result(first, timeout=30) == "done", machine.said("worker")

        # the worker is told to stop while a job runs: that one is finished, and no other is begun
        running = q.submit(thunk(body(), str(tmp_path / "started"), str(tmp_path / "later")))
        until((tmp_path / "started").exists, told=lambda: machine.said("worker"))
        waiting = q.submit(thunk(body(), str(tmp_path / "never"), str(tmp_path / "later")))
        worker.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.5)
        (tmp_path / "later").touch()
        assert worker.wait(20) == 0, machine.said("worker")
        assert q.result(running, timeout=10) == "done"
        assert plane.get(running)["attempt"] == 1
        assert plane.get(waiting)["state"] == "queued"

        if example.name == "kubernetes" and not LONG:
            return  # its server is stopped in its container, below
        # and the server while somebody waits: it is answered, and what is acknowledged is there afterwards
        began = time.monotonic()
        told: list[object] = []
        asking = threading.Thread(target=lambda: told.append(q.result(waiting, timeout=60)))
        asking.start()
        until(
            lambda: b"lakeshore_waiters 1.0" in answers(f"{example.url}/metrics", example.token("admin"))[1]
        )
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0, machine.said("server")
        assert time.monotonic() - began < 15
        machine.start("server", example.server, **example.server_env)
        ready(example)
        machine.start("worker", example.worker, **example.worker_env)
        asking.join(40)
        assert told == ["done"], machine.said("worker")


def test_the_nightly_prune_deletes_what_ended_long_ago(example: Example, home: Path) -> None:
    machine = example.machine
    for words in example.setup:
        machine.run(words, **example.server_env)
    at = re.search(r"--store-file (\S+)", machine.here(" ".join(example.prune)))
    assert at is not None
    store = Path(at[1]).read_text().strip()
    with contextlib.closing(open_store(store, settings.read())) as plane:
        for id in ("ended", "waits"):
            plane.submit("gpu", b"", id=id)
        plane.cancel("ended")
        assert "0 jobs deleted" in machine.run(example.prune, **example.server_env)
        at_once = [word.replace("30d", "0s") for word in example.prune]
        assert at_once != example.prune
        assert "1 job deleted" in machine.run(at_once, **example.server_env)
        assert plane.get("ended") is None
        assert plane.get("waits")["state"] == "queued"


def test_the_scaler_reads_the_depth_of_a_queue(tmp_path: Path) -> None:
    authentication, scaled = documents(DEPLOY / "kubernetes" / "scaler.yaml")
    (reference,) = authentication["spec"]["secretTargetRef"]
    with contextlib.ExitStack() as opened:
        plane = opened.enter_context(Dispatch(tmp_path / "d.sqlite"))
        token, _ = Tokens(plane).create(ns="default", role=reference["key"])
        here = opened.enter_context(background(create_app(plane)))
        for n in range(3):
            plane.submit("default", b"", id=f"job{n}")
        found = {}
        for trigger in scaled["spec"]["triggers"]:
            url = trigger["metadata"]["url"]
            at = re.sub(r"^http://lakeshore\.lakeshore:8080", here, url)
            status, data = answers(at, token)
            assert status == 200
            found[trigger["name"]] = json.loads(data)[trigger["metadata"]["valueLocation"]]
        assert found == {"queued": 3, "running": 0}
        assert answers(at)[0] == 401


APART = ["--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
CLOSED = """
set -e
count=$1; shift
while [ "$count" -gt 0 ]; do mount --bind "$1" "$1"; shift; count=$((count - 1)); done
mount -o remount,bind,ro /
exec "$@"
"""


def contained(words: list[str], *writable: Path) -> list[str]:
    """Return a command as the first process of its container: no file of the system may be written."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare: it makes what a container has")
    places = [str(place) for place in writable]
    return [unshare, *APART, "sh", "-c", CLOSED, "contained", str(len(places)), *places, *words]


def first_process(outer: subprocess.Popen[bytes]) -> int:
    (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    assert re.search(r"^NSpid:.*\s1$", Path(f"/proc/{inner}/status").read_text(), re.MULTILINE)
    return int(inner)


def test_they_work_and_drain_in_their_containers(tmp_path: Path) -> None:
    """They write nowhere but to their volumes; as first processes they heed their signals."""
    example = of_kubernetes(tmp_path, postgres_server.shared().fresh())
    state, own = tmp_path / "state", tmp_path / "tmp"
    (state / "storage").mkdir()
    own.mkdir()
    if subprocess.run(contained(["true"], own), capture_output=True).returncode != 0:
        pytest.skip("no right to make a container's namespaces")
    with contextlib.closing(example.machine) as machine:
        for words in example.setup:
            machine.run(words, **example.server_env)
        env = {**example.server_env, "TMPDIR": str(own)}
        here = [machine.here(word) for word in example.server]
        server = machine.start("server", contained(here, state / "storage", own), **env)
        ready(example)
        here = [machine.here(word) for word in example.worker]
        worker = machine.start("worker", contained(here, state, own), **env)
        with contextlib.closing(HttpDispatch(example.url, token=example.token("producer"))) as plane:
            q = SyncQueue("default", dispatch=plane)
            assert q.result(q.submit(thunk(body("write"))), timeout=30) == "kept.txt", machine.said("worker")
            files = [path.read_bytes() for path in (state / "storage").rglob("*") if path.is_file()]
            assert b"kept" in files
        for outer, name in ((worker, "worker"), (server, "server")):
            os.kill(first_process(outer), signal.SIGTERM)
            assert outer.wait(20) == 0, machine.said(name)


# -- the array job of SLURM ------------------------------------------------------------------------------


@dataclass
class Array:
    """The array script with a control plane behind it, and a stand-in for SLURM's own command."""

    example: Example
    script: list[str]
    env: dict[str, str]
    q: SyncQueue
    folder: Path

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        return self.example.machine.start(self.q.name, self.script, **self.env, **env)

    def said(self) -> str:
        return self.example.machine.said(self.q.name)

    def job(self, name: str) -> str:
        return self.q.submit(
            thunk(body(), str(self.folder / f"{name}.started"), str(self.folder / f"{name}.go"))
        )

    def go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def started(self, name: str) -> None:
        until((self.folder / f"{name}.started").exists, told=self.said)

    def requeued(self) -> list[str]:
        asked = self.folder / "scontrol.asked"
        return asked.read_text().split() if asked.exists() else []

    def nothing_is_left_behind(self) -> bool:
        return not list((self.folder / "scratch").iterdir())


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Example, HttpDispatch]]:
    example = of_systemd(tmp_path_factory.mktemp("control"), "")
    with contextlib.ExitStack() as opened:
        opened.callback(example.machine.close)
        for words in example.setup:
            example.machine.run(words, **example.server_env)
        example.machine.start("server", example.server, **example.server_env)
        ready(example)
        plane = HttpDispatch(example.url, token=example.token("producer"))
        yield example, opened.enter_context(contextlib.closing(plane))


@pytest.fixture
def array(control: tuple[Example, HttpDispatch], tmp_path: Path, request: pytest.FixtureRequest) -> Array:
    example, plane = control
    queue = request.function.__name__[:40]
    stand_in = tmp_path / "bin" / "scontrol"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/scontrol.asked\n')
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "scratch").mkdir()
    machine = example.machine
    env = {
        "PATH": f"{stand_in.parent}{os.pathsep}{machine.env['PATH']}",
        "LAKESHORE_URL": example.url,
        "LAKESHORE_QUEUE": queue,
        "LAKESHORE_TOKEN_FILE": str(example.tokens["worker"]),
        "LAKESHORE_SCRATCH": str(tmp_path / "scratch"),
        "SLURM_JOB_ID": "4711",
    }
    script = [str(DEPLOY / "slurm" / "workers.sh"), "--allow-pickled"]
    return Array(example, script, env, SyncQueue(queue, dispatch=plane), tmp_path)


def test_before_its_time_is_up_it_finishes_its_job_and_goes_on_elsewhere(array: Array) -> None:
    first, second = array.job("first"), array.job("second")
    task = array.start()
    array.started("first")
    task.send_signal(signal.SIGUSR1)
    until(lambda: "drains: the time is nearly up" in array.said())
    array.go("first")
    assert task.wait(20) == 0, array.said()
    assert array.q.result(first, timeout=5) == "done"
    assert array.q.status(second)["state"] == "queued"
    assert array.requeued() == ["requeue", "4711"]
    assert array.nothing_is_left_behind()


def test_a_job_that_takes_longer_than_there_is_time_goes_back_unharmed(array: Array) -> None:
    job = array.job("long")
    task = array.start(LAKESHORE_GRACE="1")
    array.started("long")
    task.send_signal(signal.SIGTERM)
    assert task.wait(20) == 0, array.said()
    row = array.q.status(job)
    assert (row["state"], row["losses"]) == ("queued", 0)
    assert array.requeued() == [], "who was told to stop does not ask to come again"
    array.go("long")
    task = array.start(LAKESHORE_IDLE="1")
    assert array.q.result(job, timeout=20) == "done"
    assert task.wait(20) == 0, array.said()
    assert "drains: nothing is left to do" in array.said()
    assert array.requeued() == []
    assert array.nothing_is_left_behind()
