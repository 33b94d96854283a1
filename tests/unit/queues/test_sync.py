"""SyncQueue: what is submitted comes back, what cannot be is refused before anything is stored."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading

import pytest

from lakeshore import (
    ClaimLost,
    Dispatch,
    DispatchError,
    InvocationCancelled,
    InvocationFailed,
    PackError,
    Queue,
    SyncQueue,
    UnknownInvocation,
    WaitTimeout,
    run_worker,
    thunk,
)


@pytest.fixture
def q() -> SyncQueue:
    return SyncQueue("gpu", dispatch=Dispatch(":memory:"))


def test_a_plain_payload_goes_round(q):
    inv = q.submit({"x": (1, 2)})
    job = q.claim()
    assert (job.id, job.payload, job.attempt, len(q)) == (inv, {"x": (1, 2)}, 1, 0)
    job.ack([None, 2**70])
    assert q.result(inv) == [None, 2**70]
    assert q.status(inv)["state"] == "succeeded"


def test_falsy_payloads_and_results_are_values(q):
    for value in (None, 0, "", [], False, {}):
        inv = q.submit(value)
        job = q.claim()
        assert job.payload == value
        job.ack(value)
        assert q.result(inv) == value


def test_an_empty_queue_is_still_true(q):
    assert q
    assert len(q) == 0


def test_payload_or_envelope_but_not_both(q):
    for arguments in ({}, {"payload": 1, "envelope": b"x"}):
        with pytest.raises(TypeError, match="not both"):
            q.submit(**arguments)
    assert q.count() == 0


def test_what_cannot_be_packed_is_not_stored(q):
    with pytest.raises(PackError, match="model"):
        q.submit({"model": object()})
    with pytest.raises(PackError):
        q.submit_many([1, object()])
    assert q.count() == 0


def test_the_payload_limit_names_sizes_and_the_way_out(q, monkeypatch):
    monkeypatch.setenv("LAKESHORE_MAX_PAYLOAD", "1000")
    with pytest.raises(PackError, match=r"1,00\d bytes.*1,000.*run\.write"):
        q.submit(b"x" * 1001)
    assert q.count() == 0
    q.submit(b"x" * 900)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, None, 3, "\ud800"])
def test_a_malformed_queue_name_is_refused(name):
    with pytest.raises(ValueError, match="queue"):
        SyncQueue(name, dispatch=Dispatch(":memory:"))


def test_a_malformed_order_is_refused():
    with pytest.raises(ValueError, match="lifo"):
        SyncQueue("gpu", dispatch=Dispatch(":memory:"), kind="lifo")
    with pytest.raises(ValueError, match="temperature"):
        SyncQueue("gpu", dispatch=Dispatch(":memory:"), temperature=float("nan"))


def test_a_key_makes_a_submit_repeatable(q):
    first = q.submit(1, key="k")
    assert q.submit(2, key="k") == first
    assert q.count() == 1


def test_submit_many_pickles_a_function_once(q):
    pickled = []

    class Weight:
        def __reduce__(self):
            pickled.append(1)
            return str, ("weight",)

    weight = Weight()
    pair = lambda x: (x, weight)  # noqa: E731
    ids = q.submit_many(thunk(pair, n) for n in range(20))
    assert len(pickled) == 1
    assert q.submit(thunk(pair, 0))
    assert len(pickled) == 2
    assert run_worker(q, allow_pickled=True, stop=lambda: not q.count()) == 21
    assert [q.result(id) for id in ids] == [(n, "weight") for n in range(20)]


def test_submit_many_keeps_order(q):
    ids = q.submit_many(range(50))
    assert len(set(ids)) == 50
    assert [q.claim().payload for _ in range(50)] == list(range(50))


def test_an_unknown_id_is_named(q):
    for ask in (q.result, q.stream, q.logs):
        with pytest.raises(UnknownInvocation, match="01UNKNOWN"):
            ask("01UNKNOWN")
    assert q.status("01UNKNOWN") is None
    assert not q.cancel("01UNKNOWN")
    assert not q.requeue("01UNKNOWN")
    for malformed in ("", "../x", None):
        with pytest.raises(ValueError, match="id"):
            q.result(malformed)


def test_result_times_out_and_the_job_goes_on(q):
    inv = q.submit(1)
    with pytest.raises(WaitTimeout, match=inv):
        q.result(inv, timeout=0.01)
    assert q.status(inv)["state"] == "queued"


def test_a_cancelled_job_says_so(q):
    inv = q.submit(1)
    assert q.cancel(inv)
    with pytest.raises(InvocationCancelled, match=inv):
        q.result(inv)
    with pytest.raises(InvocationCancelled, match=inv):
        list(q.stream(inv))


def test_a_failure_keeps_type_and_message(q):
    inv = q.submit(1)
    try:
        raise KeyError("weights")
    except KeyError as error:
        q.claim().nack(error, retry=False)
    with pytest.raises(InvocationFailed, match="KeyError: 'weights'") as caught:
        q.result(inv)
    assert (caught.value.type, caught.value.message, caught.value.id) == ("KeyError", "'weights'", inv)
    assert "raise KeyError" in caught.value.traceback
    assert isinstance(caught.value, DispatchError)
    assert q.requeue(inv)
    assert q.claim().attempt == 1


@pytest.mark.parametrize("verb", ["result", "stream", "claim"])
def test_interrupt_while_waiting_leaves_everything_usable(q, verb):
    inv = q.submit("later", delay=3600)
    wait = {
        "result": lambda: q.result(inv, timeout=10),
        "stream": lambda: list(q.stream(inv, timeout=10)),
        "claim": lambda: q.claim(wait=10),
    }[verb]

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    other = q.submit("now")
    q.claim().ack(1)
    assert q.result(other) == 1
    assert q.status(inv)["state"] == "queued"


def test_working_acks_the_result_and_gives_back_on_error(q):
    inv = q.submit(20)
    with q.working() as job:
        job.result = job.payload + 1
    assert q.result(inv) == 21
    inv = q.submit(1)
    with pytest.raises(RuntimeError), q.working():
        raise RuntimeError("not today")
    row = q.status(inv)
    assert (row["state"], row["error"]) == ("queued", "RuntimeError: not today")
    q.claim().ack()
    with q.working() as nothing:
        assert nothing is None


def test_working_keeps_the_lease(q):
    q.submit(1)
    other = SyncQueue("gpu", dispatch=q.plane)
    with q.working(lease=1.0) as job:
        assert other.claim(wait=1.5) is None
        job.result = "kept"
    assert q.result(job.id) == "kept"


def test_a_lost_claim_is_refused(q):
    inv = q.submit(1)
    job = q.claim(lease=0)
    other = q.claim()
    assert other.attempt == 2
    for late in (job.ack, job.heartbeat, job.release, lambda: job.nack("E")):
        with pytest.raises(ClaimLost, match=inv):
            late()
    other.ack("mine")
    assert q.result(inv) == "mine"


def test_a_result_wakes_its_waiter(q):
    inv = q.submit(1)
    got = []
    waiter = threading.Thread(target=lambda: got.append(q.result(inv, timeout=20)))
    waiter.start()
    q.claim(wait=5).ack("ready")
    waiter.join(5)
    assert got == ["ready"]


def test_an_undecodable_payload_fails_and_the_next_is_taken(q):
    q.plane.submit("gpu", b"\xc1garbage", id="poison")
    good = q.submit(1)
    assert q.claim().id == good
    row = q.status("poison")
    assert row["state"] == "failed"
    assert "cannot be decoded" in row["error"]


@pytest.mark.parametrize("kind", [SyncQueue, Queue])
def test_arguments_beside_the_payload_say_how_a_call_is_submitted(q, kind):
    def f(x, y=0):
        return x

    verb = kind("gpu", dispatch=q.plane).submit
    with pytest.raises(TypeError, match=r"q\.submit\(thunk\(f, 3, 'a'\)\)$"):
        _answer(verb(f, 3, "a"))
    with pytest.raises(TypeError, match=r"thunk\(f, \[0, 1, .*\.\.\.\]\)\)$"):
        _answer(verb(lambda x: x, list(range(100))))
    assert q.count() == 0


def test_a_call_that_was_made_here_says_how_it_is_submitted(q):
    def long(n):
        yield n

    async def fetch(n):
        return n

    async def each(n):
        yield n

    waits = fetch(3)
    for made, name, kind in ((long(3), "long", "generator"), (waits, "fetch", "coroutine"),
                             (each(3), "each", "async_generator")):  # fmt: skip
        with pytest.raises(PackError, match=rf"gave a {kind}.*q\.submit\(thunk\({name}, \.\.\.\)\)"):
            q.submit(made)
    waits.close()
    assert q.count() == 0


def _answer(made):
    return asyncio.run(made) if inspect.iscoroutine(made) else made
