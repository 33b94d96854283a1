"""The loop: options, drains, stop, once, cancel, timeout, loss, outages, grace, slots."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time

import pytest

from lakeshore import Dispatch, PlaneUnavailable, SyncQueue, WorkerThread, run, run_worker, thunk
from lakeshore.worker.loop import Event


def here(fn):
    """A call that this process's registry answers with `fn`, which may use what cannot travel."""

    def stand_in():
        raise AssertionError("the registry comes first")

    call = thunk(stand_in)
    return call, {call.__envelope__(id="x", plane=None, key=None, parent=None).fn["qualname"]: fn}


def wait_until(condition, timeout=10.0):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"lease": 0}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"concurrency": 0}, "concurrency"),
        ({"isolation": "docker"}, "inline or process"),
        ({"runtime_policy": "exact"}, "strict, minor or off"),
        ({"allow_modules": "json"}, "list of module names"),
        ({"poll": -1}, "poll"),
        ({"grace": "soon"}, "grace"),
        ({"root": __file__}, "is a file"),
    ],
)
def test_a_bad_option_is_named_and_nothing_is_claimed(q, plane, option, told):
    q.submit(thunk(lambda: 1))
    with pytest.raises(ValueError, match=told):
        run_worker(q, once=True, **option)
    assert plane.count("gpu") == 1


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"stop": 5}, "stop: wants a function"),
        ({"on_event": "print"}, "on_event: wants a function"),
        ({"registry": []}, "registry: wants a dict"),
        ({"registry": "train"}, "registry: wants a dict"),
    ],
)
def test_what_is_no_function_or_queue_is_named(q, plane, option, told):
    q.submit(thunk(lambda: 1))
    with pytest.raises(TypeError, match=told):
        run_worker(q, once=True, **option)
    for odd in (None, "gpu", plane):
        with pytest.raises(TypeError, match=r"q: wants a SyncQueue, got .*run_worker\(SyncQueue"):
            run_worker(odd, once=True)
    assert plane.count("gpu") == 1


def test_once_runs_at_most_one_and_never_waits(q):
    assert run_worker(q, once=True) == 0
    q.submit(thunk(lambda: 1), delay=60)
    began = time.monotonic()
    assert run_worker(q, once=True) == 0
    assert time.monotonic() - began < 0.5
    for _ in range(3):
        q.submit(thunk(lambda: 1))
    assert run_worker(q, once=True) == 1
    assert q.count() == 3


def test_a_drain_runs_all_in_order_with_one_commit_between(q, plane, tmp_path):
    log = tmp_path / "log"

    def note(n):
        with log.open("a") as file:
            file.write(f"{n} ")

    for n in range(10):
        q.submit(thunk(note, n))
    claims = []
    claim = plane.claim
    plane.claim = lambda *args, **options: claims.append(1) or claim(*args, **options)
    executed = run_worker(q, stop=lambda: plane.count("gpu", "succeeded") == 10)
    assert executed == 10
    assert log.read_text() == "0 1 2 3 4 5 6 7 8 9 "
    assert len(claims) <= 3


def test_stop_is_asked_before_the_next_claim(q, plane):
    for _ in range(5):
        q.submit(thunk(lambda: 1))
    started = []
    executed = run_worker(
        q,
        stop=lambda: len(started) == 2,
        on_event=lambda event: event.kind == "started" and started.append(event),
    )
    assert executed == 2
    assert (plane.count("gpu"), plane.count("gpu", "running")) == (3, 0)


def test_a_stop_that_raises_ends_the_loop_and_leaves_no_job_running(q, plane):
    begun = []

    def stop():
        if begun:
            raise LookupError("mine")

    inv = q.submit(thunk(lambda: "done"))
    with pytest.raises(LookupError, match="mine"):
        run_worker(q, stop=stop, on_event=begun.append)
    assert q.result(inv) == "done"


@pytest.mark.parametrize("verb", ["claim", "ack"])
def test_a_claim_made_while_the_worker_is_told_to_stop_is_handed_back(q, plane, verb):
    """Told between the last look and the commit that claims: the job is not run, and not held."""
    jobs = [q.submit(thunk(lambda: 1)) for _ in range(2)]
    worker = WorkerThread(q)
    make, made = getattr(plane, verb), []

    def then_told(*args, **options):
        made.append(make(*args, **options))
        worker.stop(timeout=0)
        return made[-1]

    setattr(plane, verb, then_told)
    worker.start()
    wait_until(lambda: not worker.running)
    assert made[0].id == jobs[0 if verb == "claim" else 1]
    row = plane.get(made[0].id)
    assert (row["state"], row["attempt"], worker.executed) == ("queued", 0, 0 if verb == "claim" else 1)


def test_stop_acts_within_a_second_on_an_idle_worker(q):
    halt = threading.Event()
    thread = threading.Thread(target=run_worker, args=(q,), kwargs={"stop": halt.is_set})
    thread.start()
    time.sleep(0.05)
    halt.set()
    thread.join(1.0)
    assert not thread.is_alive()


def test_an_idle_worker_wakes_for_a_job_at_once(q):
    with WorkerThread(q):
        time.sleep(0.1)
        began = time.monotonic()
        assert q.call(thunk(lambda: 7)) == 7
        assert time.monotonic() - began < 0.2


def test_an_idle_worker_costs_next_to_nothing(tmp_path):
    plane = Dispatch(str(tmp_path / "d.sqlite"))
    with WorkerThread(SyncQueue("gpu", dispatch=plane)):
        time.sleep(0.3)
        before = time.process_time()
        time.sleep(2.0)
        assert time.process_time() - before < 0.02
    plane.close()


# -- bodies that are stopped


@pytest.fixture
def spin():
    def spin():
        while True:
            pass

    return spin


def test_a_cancelled_body_is_stopped_and_the_next_job_runs(q, plane, spin):
    with WorkerThread(q) as worker:
        inv = q.submit(thunk(spin))
        wait_until(lambda: worker.current == inv)
        q.cancel(inv)
        assert q.call(thunk(lambda: "next"), timeout=5) == "next"
    assert plane.get(inv)["state"] == "cancelled"


def test_a_cancelled_generator_is_closed(q, tmp_path):
    mark = tmp_path / "closed"

    def job():
        try:
            while True:
                yield 1
                time.sleep(0.01)
        finally:
            mark.touch()

    with WorkerThread(q) as worker:
        inv = q.submit(thunk(job))
        wait_until(lambda: worker.current == inv)
        q.cancel(inv)
        wait_until(mark.exists)
        wait_until(lambda: worker.current is None)


def test_a_cancelled_async_body_is_cancelled(q, tmp_path):
    mark = tmp_path / "cancelled"

    async def job():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            mark.touch()
            raise

    with WorkerThread(q) as worker:
        inv = q.submit(thunk(job))
        wait_until(lambda: worker.current == inv)
        q.cancel(inv)
        wait_until(mark.exists)
        wait_until(lambda: worker.current is None)


def test_a_body_may_look_at_cancelled(q, plane):
    def job():
        while not run.cancelled:
            time.sleep(0.005)
        return "left"

    with WorkerThread(q) as worker:
        inv = q.submit(thunk(job))
        wait_until(lambda: worker.current == inv)
        q.cancel(inv)
        wait_until(lambda: worker.current is None)
    assert plane.get(inv)["state"] == "cancelled"


@pytest.mark.parametrize("kind", ["sync", "async", "generator"])
def test_a_timeout_fails_the_job_with_where_it_was(q, plane, drain, kind, spin):
    async def forever():
        await asyncio.sleep(60)

    def slowly():
        while True:
            yield 1
            time.sleep(0.01)

    job = {"sync": spin, "async": forever, "generator": slowly}[kind]
    inv = q.submit(thunk(job).with_options(timeout=0.2))
    began = time.monotonic()
    drain(retries=0)
    assert time.monotonic() - began < 2
    row = plane.get(inv)
    assert row["error"].startswith("TimeoutError: the body ran longer than its timeout of 0.2 s")
    if kind == "sync":
        assert "in spin" in row["traceback"]
    if kind == "generator":
        got = []
        with pytest.raises(Exception, match="TimeoutError"):
            for value in q.stream(inv, timeout=1):
                got.append(value)
        assert len(got) > 3


@pytest.mark.parametrize("isolation", ["inline", "process"])
@pytest.mark.parametrize("kind", ["sync", "async", "generator"])
def test_a_body_that_swallows_its_stop_still_failed_by_its_timeout(q, plane, drain, kind, isolation):
    def swallows():
        import time

        with contextlib.suppress(BaseException):
            time.sleep(0.1)
            while True:
                time.sleep(0.01)
        return "swallowed"

    async def awaits():
        with contextlib.suppress(BaseException):
            await asyncio.sleep(60)
        return "swallowed"

    def yields():
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)
                yield 1
        return "swallowed"

    job = {"sync": swallows, "async": awaits, "generator": yields}[kind]
    inv = q.submit(thunk(job).with_options(timeout=0.3))
    drain(retries=0, isolation=isolation)
    assert plane.get(inv)["error"].startswith("TimeoutError: the body ran longer than its timeout of 0.3 s")


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_body_that_swallows_its_stop_is_handed_back_all_the_same(q, plane, tmp_path, isolation):
    def swallows(started):
        import time
        from pathlib import Path

        Path(started).touch()
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)
        return "half of it"

    started = tmp_path / "started"
    inv = q.submit(thunk(swallows, str(started)))
    with q.worker(grace=0.0, isolation=isolation):
        wait_until(started.exists)
    assert (plane.get(inv)["state"], plane.get(inv)["attempt"]) == ("queued", 0)


def test_a_timed_out_job_is_tried_again(q, plane, drain, tmp_path):
    flag = tmp_path / "flag"

    def job():
        if not flag.exists():
            flag.touch()
            while True:
                pass
        return "second"

    inv = q.submit(thunk(job).with_options(timeout=0.1))
    assert drain(retries=1) == 2
    assert q.result(inv) == "second"


def test_the_lease_is_kept_while_a_body_runs(q, plane):
    def job():
        time.sleep(1.2)
        return run.attempt

    inv = q.submit(thunk(job))
    with WorkerThread(q, lease=0.3), WorkerThread(q, lease=0.3):
        assert q.result(inv, timeout=5) == 1
    assert plane.get(inv)["losses"] == 0


def test_a_stale_claim_is_dropped_quietly(q, plane):
    """Its lease lapsed unseen (as after SIGSTOP) and another has the job: nothing of the first is kept."""
    entered, go = threading.Event(), threading.Event()
    call, registry = here(lambda: (entered.set(), go.wait(5), "stale")[-1])
    events = []
    inv = q.submit(call)
    with WorkerThread(q, lease=60, on_event=events.append, registry=registry):
        assert entered.wait(5)
        plane.cancel(inv)
        plane.requeue(inv)
        taken = plane.claim("gpu", "other")
        assert taken.id == inv
        go.set()
        wait_until(lambda: any(event.kind == "ended" for event in events))
    assert plane.get(inv)["worker_id"] == "other"
    assert [event.ending for event in events if event.kind == "ended"] == ["lost"]
    plane.ack(inv, "other", result=b"\x01", fence=taken.fence)
    assert q.result(inv) == 1


# -- draining


def test_a_drain_lets_the_body_finish_within_its_grace(q):
    inv = q.submit(thunk(lambda: time.sleep(0.5) or "done"))
    worker = WorkerThread(q).start()
    wait_until(lambda: worker.current == inv)
    assert worker.stop()
    assert q.result(inv) == "done"


def test_past_its_grace_the_job_is_handed_back_uncounted(q, plane, spin):
    inv = q.submit(thunk(spin))
    worker = WorkerThread(q, grace=0.2).start()
    wait_until(lambda: worker.current == inv)
    assert worker.stop(timeout=5)
    row = plane.get(inv)
    assert (row["state"], row["attempt"]) == ("queued", 0)


def test_stop_without_drain_hands_back_at_once(q, plane, spin):
    inv = q.submit(thunk(spin))
    worker = WorkerThread(q).start()
    wait_until(lambda: worker.current == inv)
    began = time.monotonic()
    assert worker.stop(drain=False)
    assert time.monotonic() - began < 1.5
    assert plane.get(inv)["state"] == "queued"


# -- outages


class Flaky(Dispatch):
    """A plane that is away for some calls of some verbs."""

    def __init__(self):
        super().__init__(":memory:")
        self.away = {}

    def _maybe(self, verb):
        if self.away.get(verb, 0) > 0:
            self.away[verb] -= 1
            raise PlaneUnavailable(f"{verb}: the disk is full")

    def claim(self, *args, **options):
        self._maybe("claim")
        return super().claim(*args, **options)

    def ack(self, *args, **options):
        self._maybe("ack")
        return super().ack(*args, **options)

    def heartbeat(self, *args, **options):
        self._maybe("heartbeat")
        return super().heartbeat(*args, **options)


def test_an_absent_plane_is_waited_for_and_the_result_delivered():
    plane = Flaky()
    q = SyncQueue("gpu", dispatch=plane)
    plane.away = {"claim": 1, "ack": 3, "heartbeat": 2}
    events = []
    inv = q.submit(thunk(lambda: time.sleep(0.4) or 5))
    with WorkerThread(q, lease=0.9, on_event=events.append):
        assert q.result(inv, timeout=10) == 5
    assert plane.get(inv)["attempt"] == 1
    assert [event.kind for event in events][:2] == ["plane_away", "plane_back"]


def test_past_the_lease_the_result_still_waits_for_the_plane():
    plane = Flaky()
    q = SyncQueue("gpu", dispatch=plane)
    plane.away = {"ack": 10**6, "heartbeat": 10**6}
    inv = q.submit(thunk(lambda: 5))
    with WorkerThread(q, lease=0.3):
        wait_until(lambda: plane.away["ack"] < 10**6)
        time.sleep(0.5)
        plane.away = {}
        assert q.result(inv, timeout=10) == 5
    assert plane.get(inv)["attempt"] == 1


def test_a_result_that_another_worker_was_first_with_is_dropped_with_a_word(caplog):
    plane = Flaky()
    q = SyncQueue("gpu", dispatch=plane)
    plane.away = {"ack": 10**6, "heartbeat": 10**6}
    events = []
    inv = q.submit(thunk(lambda: 5))
    with WorkerThread(q, lease=0.3, on_event=events.append):
        wait_until(lambda: plane.away["ack"] < 10**6)
        wait_until(lambda: (taken := plane.claim("gpu", "other")) and taken.id == inv)
        plane.away = {}
        wait_until(lambda: any(event.ending == "lost" for event in events))
    assert f"job {inv} (attempt 1): the result is dropped" in caplog.text
    assert plane.get(inv)["worker_id"] == "other"


def test_a_worker_that_is_to_stop_in_an_outage_says_what_it_drops(caplog):
    plane = Flaky()
    q = SyncQueue("gpu", dispatch=plane)
    plane.away = {"ack": 10**6, "heartbeat": 10**6}
    inv = q.submit(thunk(lambda: 5))
    worker = WorkerThread(q, grace=0.2).start()
    wait_until(lambda: plane.away["ack"] < 10**6)
    assert worker.stop()
    assert f"job {inv} (attempt 1): the result is dropped: the ending of {inv} was given up" in caplog.text


# -- the rest


def test_a_chdir_moves_neither_root_nor_the_next_job(q, plane, tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)

    def second():
        run.write("out/x.txt").write_text("hi")
        return ["out/x.txt", os.getcwd()]

    q.submit(thunk(os.chdir, str(there)))
    inv = q.submit(thunk(second))
    run_worker(q, stop=lambda: plane.count("gpu", "succeeded") == 2)
    assert q.result(inv) == ["out/x.txt", str(here)]
    assert (here / "out/x.txt").exists()
    assert not (there / "out").exists()


def test_threads_start_as_before_once_the_worker_is_idle(q):
    start = threading.Thread.start
    with q.worker():
        assert [q.call(thunk(pow, 2, n)) for n in range(3)] == [1, 2, 4]
        wait_until(lambda: threading.Thread.start is start)
        q.call(thunk(pow, 2, 3))
    assert threading.Thread.start is start


def test_slots_work_side_by_side(q):
    barrier = threading.Barrier(3)

    call, registry = here(lambda: barrier.wait(5))
    invs = [q.submit(call) for _ in range(3)]
    with WorkerThread(q, concurrency=3, registry=registry) as worker:
        assert sorted(q.result(inv, timeout=10) for inv in invs) == [0, 1, 2]
    assert worker.executed == 3


def test_the_registry_comes_first(q, drain):
    call, registry = here(lambda: "registered")
    inv = q.submit(call)
    drain(registry=registry, allow_pickled=False)
    assert q.result(inv) == "registered"


def test_events_tell_start_and_end_and_may_raise(q):
    events = []

    def listen(event):
        events.append(event)
        raise RuntimeError("a listener's own fault")

    inv = q.submit(thunk(lambda: 1 / 0).with_options(name="ratio"))
    run_worker(q, once=True, retries=0, on_event=listen)
    started, ended = events
    assert started == Event("started", inv, "gpu", 1, "ratio")
    assert (ended.ending, ended.detail) == ("failed", "ZeroDivisionError: division by zero")


def test_ctrl_c_drains_and_a_second_one_hands_back(q, plane, spin):
    inv = q.submit(thunk(spin))

    def press():
        wait_until(lambda: plane.get(inv)["state"] == "running")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        run_worker(q)
    assert plane.get(inv)["state"] == "queued"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_idle_workers_prune_what_may_go(q, plane, monkeypatch):
    monkeypatch.setenv("LAKESHORE_KEEP", "0.01s")
    monkeypatch.setattr("lakeshore.worker.loop.PRUNE_AFTER", 0.0)
    inv = q.submit(thunk(lambda: 1))
    with WorkerThread(q):
        wait_until(lambda: plane.get(inv) is None)


def test_a_fault_of_ours_fails_the_job_and_not_the_worker(q, plane, drain, monkeypatch):
    monkeypatch.setattr("lakeshore.worker.inline.perform", lambda *args, **options: 1 / 0)
    inv = q.submit(thunk(lambda: 1))
    assert drain(retries=0) == 1
    assert plane.get(inv)["error"] == "ZeroDivisionError: division by zero"


def test_a_slot_that_cannot_go_on_ends_the_worker_with_its_error(q):
    calls = []

    def claim(*args, **options):
        calls.append(1)
        time.sleep(0.01)
        if len(calls) > 3 and threading.current_thread() is not main:
            raise LookupError("in a slot")
        return

    main = threading.current_thread()
    q.plane.claim = claim
    with pytest.raises(LookupError, match="in a slot"):
        run_worker(q, concurrency=2)


def test_a_working_directory_that_is_gone(q, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ValueError, match="working directory is gone"):
        run_worker(q, once=True)


def test_a_body_that_removes_its_directory_harms_nobody(q, plane, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    q.submit(thunk(os.rmdir, str(here)))
    inv = q.submit(thunk(lambda: 1))
    run_worker(q, stop=lambda: plane.count("gpu", "queued") == 0, root=tmp_path)  # the last job runs too
    assert q.result(inv) == 1


def test_odd_progress_and_displays_are_told_as_far_as_they_can_be(q, drain):
    class Odd:
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"application/json": {"x": object()}, "text/plain": "odd"}

    def job():
        run.progress(1, float("inf"), object())
        run.display(Odd())
        return "fine"

    inv = q.submit(thunk(job))
    drain(retries=0)
    assert q.result(inv) == "fine"
    assert list(q.logs(inv)) == [{"display": {"text/plain": "odd"}}]
