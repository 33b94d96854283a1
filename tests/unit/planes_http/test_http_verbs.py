"""Every verb of the contract through HTTP, over a real plane that serves our routes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from unit.planes_http.ours import Ours

from lakeshore import (
    ClaimLost,
    DispatchError,
    HttpDispatch,
    InvocationCancelled,
    InvocationFailed,
    Plane,
    PlaneUnavailable,
    Queue,
    Submission,
    SyncQueue,
    UnknownInvocation,
    WaitTimeout,
    run_worker,
    thunk,
    wire,
)
from lakeshore.planes.contract import ClaimSpec

Connect = Callable[..., HttpDispatch]


@pytest.fixture
def plane(ours: Ours, connect: Connect) -> HttpDispatch:
    return connect(ours)


def test_it_is_a_plane_that_is_not_trusted(plane: HttpDispatch) -> None:
    assert isinstance(plane, Plane)
    assert plane.trusted is False


def test_submit(plane: HttpDispatch, ours: Ours) -> None:
    assert plane.submit("gpu", b"e", id="a", key="k", priority=2.5, parent="p", delay=60) == "a"
    assert plane.submit("gpu", b"other", id="b", key="k") == "a"
    row = ours.plane.get("a")
    assert row is not None
    assert (row["queue"], row["key"], row["priority"], row["parent"]) == ("gpu", "k", 2.5, "p")
    assert row["not_before"] > row["submitted_at"] + 59
    assert plane.get("a") == row
    assert plane.envelope("a") == b"e"
    with pytest.raises(DispatchError, match="already taken by another job"):
        plane.submit("gpu", b"other", id="a")


def test_submit_many(plane: HttpDispatch) -> None:
    items = [Submission(envelope=b"%d" % i, id=f"j{i}", priority=float(i)) for i in range(3)]
    assert plane.submit_many("gpu", items) == ["j0", "j1", "j2"]
    assert plane.submit_many("gpu", []) == []
    assert plane.count("gpu") == 3
    assert plane.queues() == {"gpu": {"queued": 3}}
    listed = plane.invocations("gpu", limit=2)
    assert [row["id"] for row in listed] == ["j2", "j1"]
    assert [row["id"] for row in plane.invocations(before="j1")] == ["j0"]
    assert "result" not in listed[0]


def test_claim_work_ack(plane: HttpDispatch, ours: Ours) -> None:
    plane.submit("gpu", b"e", id="a")
    claimed = plane.claim("gpu", "w", lease=20)
    assert claimed is not None
    assert (claimed.id, claimed.envelope, claimed.attempt, claimed.queue, claimed.fence) == (
        "a",
        b"e",
        1,
        "gpu",
        1,
    )
    assert 10 < claimed.lease_expires_at - time.time() < 30
    plane.heartbeat("a", "w", lease=500, fence=1)
    row = plane.get("a")
    assert row is not None
    assert row["lease_expires_at"] > claimed.lease_expires_at + 400
    assert plane.journal_append("a", None, b"f0", worker_id="w", fence=1) == 0
    assert plane.journal_extend("a", [b"f1", b"f2"], worker_id="w", fence=1) == 2
    assert plane.ack("a", "w", result=b"r", fence=1, frame=wire.end_frame(3)) is None
    assert plane.result("a", timeout=0) == b"r"
    assert [data for _, data in plane.journal_read("a")] == [b"f0", b"f1", b"f2", wire.end_frame(3)]
    assert plane.ack("a", "w", result=b"r", fence=1) is None
    with pytest.raises(ClaimLost, match="no longer held by 'other'"):
        plane.ack("a", "other", fence=9)
    assert [worker["worker_id"] for worker in plane.workers("gpu")] == ["w"]


@pytest.mark.parametrize(("kind", "order"), [("fifo", "cab"), ("filo", "cba"), ("priority", "cab")])
def test_claim_orders(plane: HttpDispatch, kind: str, order: str) -> None:
    for id, priority in (("a", 0.0), ("b", 0.0), ("c", 1.0)):
        plane.submit("gpu", b"e", id=id, priority=priority)
    claimed = plane.claim_many("gpu", "w", 5, kind=kind)
    assert "".join(each.id for each in claimed) == order
    assert plane.claim("gpu", "w", kind="boltzmann", temperature=0.5) is None


def test_claim_waits_for_a_job(plane: HttpDispatch, ours: Ours) -> None:
    assert plane.claim("gpu", "w", wait=0.1) is None
    timer = threading.Timer(0.2, lambda: ours.plane.submit("gpu", b"e", id="late"))
    timer.start()
    began = time.monotonic()
    claimed = plane.claim("gpu", "w", wait=10)
    timer.join()
    assert claimed is not None
    assert claimed.id == "late"
    assert time.monotonic() - began < 2


def test_ack_claims_the_next_and_a_repeat_returns_the_same(plane: HttpDispatch) -> None:
    for id in ("a", "b"):
        plane.submit("gpu", b"e", id=id)
    first = plane.claim("gpu", "w")
    assert first is not None
    following = plane.ack("a", "w", fence=first.fence, next=ClaimSpec("gpu"))
    assert following is not None
    assert following.id == "b"
    again = plane.ack("a", "w", fence=first.fence, next=ClaimSpec("gpu"))
    assert again is not None
    assert (again.id, again.fence) == ("b", following.fence)
    assert plane.ack("b", "w", next=ClaimSpec("gpu")) is None


@pytest.mark.parametrize(
    ("error", "stored", "kind", "message"),
    [
        ("ValueError: no", "ValueError: no", "ValueError", "no"),
        ("it just broke", "it just broke", "Error", "it just broke"),
        ("KeyError", "KeyError", "KeyError", ""),
        ({"type": "T", "message": "m: n", "traceback": "tb"}, "T: m: n", "T", "m: n"),
    ],
)
def test_nack_for_good(
    plane: HttpDispatch, error: str | dict[str, str], stored: str, kind: str, message: str
) -> None:
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w")
    plane.nack("a", "w", error=error, retry=False, fence=1)
    row = plane.get("a")
    assert row is not None
    assert row["error"] == stored
    with pytest.raises(InvocationFailed) as caught:
        plane.result("a")
    assert (caught.value.type, caught.value.message, caught.value.id) == (kind, message, "a")
    assert caught.value.traceback == (error["traceback"] if isinstance(error, dict) else None)


def test_nack_to_retry_and_release(plane: HttpDispatch) -> None:
    plane.submit("gpu", b"e", id="a")
    assert plane.claim("gpu", "w") is not None
    plane.nack("a", "w", error="x", delay=60, fence=1)
    assert plane.claim("gpu", "w") is None
    plane.submit("gpu", b"e", id="b")
    assert plane.claim("gpu", "w") is not None
    plane.release("b", "w", fence=1)
    again = plane.claim("gpu", "w")
    assert again is not None
    assert (again.id, again.attempt, again.fence) == ("b", 1, 2)
    with pytest.raises(ClaimLost):
        plane.release("b", "w", fence=1)
    with pytest.raises(ClaimLost):
        plane.heartbeat("b", "other")
    with pytest.raises(ClaimLost):
        plane.heartbeat("nobody", "w")
    with pytest.raises(ClaimLost):
        plane.journal_append("b", None, b"x", worker_id="w", fence=1)


def test_cancel_requeue_and_the_ends(plane: HttpDispatch) -> None:
    plane.submit("gpu", b"e", id="a")
    assert plane.cancel("a") is True
    assert plane.cancel("a") is False
    assert plane.cancel("nobody") is False
    with pytest.raises(InvocationCancelled):
        plane.result("a")
    assert plane.requeue("a") is True
    assert plane.requeue("a") is False
    with pytest.raises(WaitTimeout, match="has not ended within 0.1 s"):
        plane.result("a", timeout=0.1)
    with pytest.raises(UnknownInvocation, match="'nobody'"):
        plane.result("nobody")
    assert plane.get("nobody") is None
    assert plane.envelope("nobody") is None


def test_result_is_told_at_once(plane: HttpDispatch, ours: Ours) -> None:
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w")
    timer = threading.Timer(0.2, lambda: ours.plane.ack("a", "w", result=b"r"))
    timer.start()
    began = time.monotonic()
    assert plane.result("a", timeout=None) == b"r"
    timer.join()
    assert time.monotonic() - began < 1
    assert len(ours.posts("await")) == 1


def test_prune_and_trim(plane: HttpDispatch) -> None:
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w")
    plane.journal_extend("a", [b"0", b"1", b"2"], worker_id="w", fence=1)
    assert plane.journal_trim("a", keep_last=1) == 2
    plane.ack("a", "w")
    assert plane.count("gpu", "succeeded") == 1
    assert list(plane.journal_read("a", since=0)) == [(2, b"2")]
    assert plane.prune(older_than=3600) == 0
    assert plane.prune(older_than=0, states="failed") == 0
    assert plane.prune(older_than=0, limit=5) == 1
    assert plane.get("a") is None


@pytest.mark.parametrize("name", ["news", "a/b", "../x?y#z", "Köln 🌊", "%2e%2e", "a b+c"])
def test_names_travel_whole(plane: HttpDispatch, name: str) -> None:
    assert plane.journal_append(name, None, b"0") == 0
    assert plane.journal_append(name, 1, b"1", final=True) == 1
    assert plane.journal_append(name, 1, b"again") == 1
    assert list(plane.journal_read(name, timeout=5)) == [(0, b"0"), (1, b"1")]
    plane.submit(name, b"e", id="a", key=name)
    assert plane.count(name) == 1
    claimed = plane.claim(name, name)
    assert claimed is not None
    assert claimed.queue == name


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.submit("", b"e", id="a"),
        lambda p: p.submit("q", "text", id="a"),
        lambda p: p.submit("q", b"e", id="no/slash"),
        lambda p: p.submit("q", b"e", id="a", priority=float("nan")),
        lambda p: p.submit("q", b"e", id="a", delay=-1),
        lambda p: p.submit_many("q", [Submission(envelope=b"", id="")]),
        lambda p: p.claim("q", "w", kind="lifo"),
        lambda p: p.claim("q", "w", wait=-1),
        lambda p: p.claim_many("q", "w", 0),
        lambda p: p.ack("a", "w", result="text"),
        lambda p: p.ack("a", "w", fence=True),
        lambda p: p.ack("a", "w", frame="text"),
        lambda p: p.nack("a", "w", error=3),
        lambda p: p.nack("a", "w", error="x", frame=b"f"),
        lambda p: p.result("a", timeout=float("nan")),
        lambda p: p.count("q", "done"),
        lambda p: p.invocations(limit=-1),
        lambda p: p.prune(older_than=-1),
        lambda p: p.prune(older_than=0, states=["queued"]),
        lambda p: p.journal_append("a", -1, b"x"),
        lambda p: p.journal_append("a", None, "x"),
        lambda p: p.journal_read("a", since=-2),
        lambda p: p.journal_trim("a", keep_last=-1),
    ],
)
def test_a_malformed_argument_is_refused_before_anything_is_sent(
    plane: HttpDispatch, ours: Ours, call: Callable[[HttpDispatch], object]
) -> None:
    with pytest.raises(ValueError, match="wants|only ended rows|retry=False"):
        call(plane)
    assert not [request for request in ours.seen if not request.path.endswith("/await")]


def test_a_job_runs_through_it(plane: HttpDispatch) -> None:
    def job(n: int):  # type: ignore[no-untyped-def]
        yield from range(n)
        return {"n": n}

    queue = SyncQueue("gpu", dispatch=plane)
    id = queue.submit(thunk(job, 3))
    assert run_worker(queue, once=True, allow_pickled=True) == 1
    assert queue.result(id, timeout=5) == {"n": 3}
    assert list(queue.stream(id)) == [0, 1, 2]
    many = queue.submit_many([thunk(lambda n: divmod(n, 2), n) for n in (4, 5)])
    assert sum(run_worker(queue, once=True, allow_pickled=True) for _ in many) == 2
    assert [queue.result(each) for each in many] == [(2, 0), (2, 1)]


def test_topics(plane: HttpDispatch) -> None:
    topic = SyncQueue("gpu", dispatch=plane).topic("metrics/loss")
    for value in (0, None, [], "x"):
        topic.post(value)
    topic.post(None, final=True)
    assert list(topic.stream()) == [0, None, [], "x"]


async def _first(queue: Queue, id: str) -> object:
    async for value in queue.stream(id):
        return value
    return None


def test_the_async_queue(plane: HttpDispatch) -> None:
    import asyncio

    async def main() -> tuple[object, object]:
        queue = Queue("gpu", dispatch=plane)
        id = await queue.submit(thunk(lambda: max(1, 2)))
        await asyncio.to_thread(run_worker, SyncQueue("gpu", dispatch=plane), once=True, allow_pickled=True)
        return await queue.result(id), await _first(queue, id)

    assert asyncio.run(main()) == (2, None)


def test_closed(plane: HttpDispatch) -> None:
    plane.close()
    plane.close()
    with pytest.raises(DispatchError, match="was closed"):
        plane.submit("gpu", b"e", id="a")
    with pytest.raises(DispatchError, match="was closed"):
        list(plane.journal_read("a"))


def test_with_timeout_shares_all_but_the_patience(plane: HttpDispatch) -> None:
    plane.submit("gpu", b"e", id="a")
    quick = plane.with_timeout(0.5)
    assert (quick.timeout, quick.namespace, quick._tries.line) == (0.5, "default", plane._tries.line)
    assert plane.timeout != 0.5
    assert quick.count("gpu") == 1
    claimed = quick.claim("gpu", "w")
    assert claimed is not None
    plane.journal_append("a", None, b"f", worker_id="w", fence=claimed.fence)
    with pytest.raises(ValueError, match="timeout"):
        plane.with_timeout(-1)


def test_with_timeout_gives_up_sooner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    plane = HttpDispatch(f"http://127.0.0.1:{port}", timeout=60)
    began = time.monotonic()
    with pytest.raises(PlaneUnavailable):
        plane.with_timeout(0.2).queues()
    assert time.monotonic() - began < 2
    plane.close()
