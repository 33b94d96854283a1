"""`WorkerThread`: in the same process, beside an event loop, out of the way of signals and exit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from lakeshore import Dispatch, WorkerThread, thunk


def test_start_is_idempotent_and_stop_ends_it(q):
    worker = WorkerThread(q)
    assert not worker.running
    assert worker.start() is worker.start()
    assert worker.running
    assert q.call(thunk(lambda: 2)) == 2
    assert worker.stop()
    assert not worker.running
    assert worker.executed == 1
    assert worker.current is None


def test_q_worker_starts_one(q):
    with q.worker(retries=0) as worker:
        assert worker.running
    assert "stopped" in repr(worker)


@pytest.mark.parametrize("options", [{"once": True}, {"thread": 2}, {"lease": -1}])
def test_a_bad_option_is_refused_before_a_thread_starts(q, options):
    with pytest.raises(
        ValueError, match=next(iter(options)) if "thread" not in options else "no option 'thread'"
    ):
        WorkerThread(q, **options)


def test_async_bodies_work_beside_a_running_loop(q):
    async def body():
        await asyncio.sleep(0.01)
        return "async"

    async def main():
        with WorkerThread(q):
            inv = q.submit(thunk(body))
            while q.status(inv)["state"] != "succeeded":
                await asyncio.sleep(0.01)
            return q.result(inv)

    assert asyncio.run(main()) == "async"


def test_signal_handlers_are_left_alone(q):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with WorkerThread(q):
        q.call(thunk(lambda: 1))
        assert {number: signal.getsignal(number) for number in before} == before


def test_a_closed_plane_ends_it_with_the_error(q, plane):
    worker = WorkerThread(q).start()
    plane.close()
    worker._thread.join(5)
    assert not worker.running
    assert worker.error is not None


LEAVE = """
    import sys, time
    from lakeshore import Dispatch, SyncQueue, thunk
    q = SyncQueue("gpu", dispatch=Dispatch(sys.argv[1]))
    inv = q.submit(thunk({job}))
    w = q.worker()
    while w.current != inv:
        time.sleep(0.01)
    print(inv)
"""


@pytest.mark.parametrize("job", ["time.sleep, 600", "eval, '[1 for _ in iter(int, 1)]'"])
def test_the_interpreter_leaves_and_the_job_is_back(tmp_path, job):
    file = tmp_path / "d.sqlite"
    code = textwrap.dedent(LEAVE.format(job=job))
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=30)
    assert time.monotonic() - began < 5
    assert (done.returncode, done.stderr) == (0, "")
    plane = Dispatch(str(file))
    row = plane.get(done.stdout.strip())
    assert (row["state"], row["attempt"]) == ("queued", 0)
    plane.close()
