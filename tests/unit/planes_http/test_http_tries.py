"""What is asked again, for how long, and what the giving up says; no verb takes effect twice."""

from __future__ import annotations

import email.utils
import gzip
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from unit.planes_http.field import Field, frame
from unit.planes_http.loopback import Request, Step, drop, status
from unit.planes_http.ours import Ours

from lakeshore import (
    ClaimLost,
    DispatchError,
    HttpDispatch,
    NotSupported,
    PlaneUnavailable,
    WaitTimeout,
    wire,
)
from lakeshore.planes.contract import ClaimSpec, Submission

Connect = Callable[..., HttpDispatch]


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def lossy(ours: Ours, request: pytest.FixtureRequest) -> Ours:
    """The first answers to each request are lost."""
    ours.drops = request.param
    return ours


def test_endings_without_a_fence_though_the_answer_is_lost(lossy: Ours, connect: Connect) -> None:
    plane = connect(lossy)
    for id in "abcd":
        lossy.plane.submit("gpu", b"e", id=id)
    lossy.plane.claim_many("gpu", "w", 4)
    plane.ack("a", "w", result=b"r")
    plane.nack("b", "w", error="E: x", retry=False)
    plane.nack("c", "w", error="E: x", delay=60)
    plane.release("d", "w")
    states = [lossy.plane.get(id)["state"] for id in "abcd"]  # type: ignore[index]
    assert states == ["succeeded", "failed", "queued", "queued"]


def test_an_ending_that_had_not_landed_is_no_success(ours: Ours, connect: Connect) -> None:
    """The answer was lost, and meanwhile another worker ended the job."""
    plane = connect(ours)
    ours.plane.submit("gpu", b"e", id="a")
    ours.plane.claim("gpu", "w", lease=0)

    def stolen(request: Request) -> None:
        ours.plane.claim("gpu", "thief")
        ours.plane.ack("a", "thief", result=b"other")
        request.cut()

    ours.script["ack"] = [stolen]
    with pytest.raises(ClaimLost):
        plane.ack("a", "w", result=b"mine")
    assert plane.result("a") == b"other"


def test_a_409_at_once_is_a_lost_claim(field: Field, connect: Connect) -> None:
    field.done("a", 1)
    with pytest.raises(ClaimLost, match="409: not running"):
        connect(field).ack("a", "w", result=wire.pack(1))


def test_the_next_claim_is_the_same_though_the_answer_is_lost(lossy: Ours, connect: Connect) -> None:
    plane = connect(lossy)
    for id in "abc":
        lossy.plane.submit("gpu", b"e", id=id)
    lossy.plane.claim("gpu", "w")
    following = plane.ack("a", "w", fence=1, next=ClaimSpec("gpu"))
    assert following is not None
    assert following.id == "b"
    assert lossy.plane.count("gpu") == 1


def test_frames_that_the_plane_numbers_land_once(lossy: Ours, connect: Connect) -> None:
    plane = connect(lossy)
    lossy.plane.submit("gpu", b"e", id="a")
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    assert claimed.fence == 1, "the answer that was lost is given again"
    plane.journal_append("a", None, b"of 1", worker_id="w", fence=1)
    plane.nack("a", "w", error="E", fence=1)
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    fence = claimed.fence
    for n in range(3):
        plane.journal_append("a", None, b"%d" % n, worker_id="w", fence=fence)
        plane.journal_extend("a", [b"%d.%d" % (n, i) for i in range(3)], worker_id="w", fence=fence)
    plane.ack("a", "w", fence=fence)
    told = [data for _, data in lossy.plane.journal_read("a")]
    assert told[1:] == [
        b"0", b"0.0", b"0.1", b"0.2", b"1", b"1.0", b"1.1", b"1.2", b"2", b"2.0", b"2.1", b"2.2",
    ]  # fmt: skip


def test_a_claim_given_up_and_asked_for_again_is_the_same(ours: Ours, connect: Connect) -> None:
    plane = connect(ours, timeout=0.3)
    ours.plane.submit("gpu", b"e", id="a")
    ours.drops = 100
    with pytest.raises(PlaneUnavailable):
        plane.claim("gpu", "w", wait=0.2)
    assert ours.plane.count("gpu", "running") == 1
    ours.drops = 0
    again = plane.claim("gpu", "w")
    assert again is not None
    assert (again.id, again.fence, again.attempt, again.envelope) == ("a", 1, 1, b"e")
    assert plane.claim("gpu", "w") is None


def test_posts_of_many_to_a_topic_land_once(lossy: Ours, connect: Connect) -> None:
    planes = [connect(lossy) for _ in range(2)]
    for n in range(2):
        for plane in planes:
            plane.journal_append("news", None, b"same")
            plane.journal_extend("news", [b"a%d" % n, b"b%d" % n])
    lossy.plane.journal_append("news", None, b"end", final=True)
    assert [seq for seq, _ in lossy.plane.journal_read("news")] == list(range(13))


def test_frames_given_up_and_appended_again_land_once(ours: Ours, connect: Connect) -> None:
    """A worker repeats the call after `PlaneUnavailable`; the first had landed."""
    plane = connect(ours, timeout=0.3)
    plane.submit("gpu", b"e", id="a")
    assert plane.claim("gpu", "w")

    def lands(request: Request) -> None:
        ours.plane.journal_append("a", None, request.body["bytes"])
        request.cut()

    ours.script["result-chunk"] = [lands, *[status(503)] * 9]
    with pytest.raises(PlaneUnavailable):
        plane.journal_append("a", None, b"x", worker_id="w", fence=1)
    ours.script["result-chunk"] = []
    assert plane.journal_append("a", None, b"x", worker_id="w", fence=1) == 0
    assert plane.journal_append("a", None, b"x", worker_id="w", fence=1) == 1
    assert plane.count("gpu") == 0
    ours.plane.ack("a", "w")
    assert list(plane.journal_read("a")) == [(0, b"x"), (1, b"x")]


STORM: list[Step] = [status(502, b"<html>"), drop, status(429)]


@pytest.mark.parametrize("route", ["submit", "await", "poll", "ack", "result-chunk", "a", "cancel", "count"])
def test_storms_are_ridden_out(ours: Ours, connect: Connect, route: str) -> None:
    plane = connect(ours, timeout=10)
    ours.script[route] = list(STORM)
    plane.submit("gpu", b"e", id="a")
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    plane.journal_append("a", None, b"0", worker_id="w", fence=1)
    plane.ack("a", "w", result=b"r", fence=1)
    assert plane.result("a") == b"r"
    row = plane.get("a")
    assert row is not None
    assert plane.cancel("a") is False
    assert plane.count("gpu") == 0
    assert ours.script[route] == []


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (status(503), "it answered 503"),
        (drop, "RemoteProtocolError"),
        (status(429, retry_after="60"), "60 s"),
    ],
)
def test_giving_up_says_what_was_tried(field: Field, connect: Connect, step: Step, said: str) -> None:
    field.script["submit"] = [step] * 100
    began = time.monotonic()
    with pytest.raises(PlaneUnavailable, match=f"does not answer .*{said}.*can be repeated") as caught:
        connect(field, timeout=0.6).submit("gpu", b"e", id="a")
    assert time.monotonic() - began < 1.5
    assert caught.value.__context__ is None
    assert 1 <= len(field.posts("submit")) < 9


def test_nobody_there(connect: Connect) -> None:
    with Field() as server:
        pass
    plane = connect(server, timeout=0.4)
    for call in (
        lambda: plane.submit("gpu", b"e", id="a"),
        lambda: plane.claim("gpu", "w", wait=0.2),
        lambda: plane.claim("gpu", "w"),
        lambda: plane.result("a", timeout=None),
        lambda: plane.get("a"),
        lambda: list(plane.journal_read("a", timeout=None)),
        lambda: plane.count("gpu"),
    ):
        with pytest.raises(PlaneUnavailable, match="ConnectError"):
            call()


def test_a_wait_shorter_than_the_outage_is_a_wait(connect: Connect) -> None:
    """The caller that asks again in slices meets `PlaneUnavailable` once nothing answered for `timeout`."""
    with Field() as server:
        pass
    plane, ends = connect(server, timeout=1.0), []
    for _ in range(20):
        try:
            plane.result("a", timeout=0.2)
        except (WaitTimeout, PlaneUnavailable) as exc:
            ends.append(type(exc))
            assert "ConnectError" in str(exc)
        if ends[-1] is PlaneUnavailable:
            break
    assert ends[0] is WaitTimeout
    assert ends[-1] is PlaneUnavailable
    assert 3 <= len(ends) <= 8


@pytest.mark.parametrize(
    "text", ["soon", "-1", "1e400", "9" * 40, "", "Wed, 21 Oct 2015 07:28:00 GMT", "nan"]
)
def test_a_retry_after_that_says_nothing(field: Field, connect: Connect, text: str) -> None:
    field.script["submit"] = [status(429, retry_after=text)]
    assert connect(field).submit("gpu", b"e", id="a") == "a"


def test_a_retry_after_date(field: Field, connect: Connect) -> None:
    field.script["submit"] = [status(503, retry_after=email.utils.formatdate(time.time() + 2, usegmt=True))]
    began = time.monotonic()
    connect(field).submit("gpu", b"e", id="a")
    assert time.monotonic() - began > 0.9


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (status(200, b"\xc1\xff", content_type="application/x-msgpack"), "no msgpack"),
        (status(200, b"", content_type="application/x-msgpack"), "no msgpack"),
        (status(200, msgpack.packb([1]), content_type="application/x-msgpack"), "wants a map, got list"),
        (status(200, b"\xdf\xff\xff\xff\xff", content_type="application/x-msgpack"), "no msgpack"),
        (status(200, b"\x91" * 5000, content_type="application/x-msgpack"), "no msgpack"),
        (status(200, b'{"a": 1}', content_type="application/json"), "application/json"),
        (status(200, b"OK", content_type="text/plain"), "text/plain"),
        (status(204), "status 204"),
        (status(200, msgpack.packb({}), content_type="application/x-msgpack"), "invocation_id: wants str"),
        (status(200, msgpack.packb({"invocation_id": 7})), "invocation_id: wants str, got int"),
        (status(404, b"<h1>default backend</h1>", content_type="text/html; charset=utf-8"), "text/html"),
        (status(200, b"not gzip", content_encoding="gzip"), "compressed"),
    ],
)
def test_what_is_no_answer(field: Field, connect: Connect, step: Step, said: str) -> None:
    field.script["submit"] = [step] * 50
    with pytest.raises(PlaneUnavailable, match=said):
        connect(field, timeout=0.3).submit("gpu", b"e", id="a")


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 409, 410, 418, 422, 500, 501])
def test_refusals_are_told_and_not_repeated(field: Field, connect: Connect, code: int) -> None:
    field.script["submit"] = [status(code, b"because"), status(200)]
    with pytest.raises(DispatchError, match=rf"{code}\b.*: because"):
        connect(field).submit("gpu", b"e", id="a")
    assert len(field.posts("submit")) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(field: Field, connect: Connect, code: int) -> None:
    field.script["submit"] = [status(code, location="https://elsewhere.example/login?next=1")]
    with pytest.raises(
        PlaneUnavailable, match=r"redirects to 'https://elsewhere.example/login' .* nothing was done"
    ):
        connect(field).submit("gpu", b"e", id="a")
    assert len(field.seen) == 1


def test_a_compressed_error_page_is_read(field: Field, connect: Connect) -> None:
    page = gzip.compress(b"<html>WAF says no</html>")
    field.script["submit"] = [status(403, page, content_encoding="gzip", content_type="text/html")]
    with pytest.raises(DispatchError, match="WAF says no"):
        connect(field).submit("gpu", b"e", id="a")


def test_a_huge_error_page_is_cut(field: Field, connect: Connect) -> None:
    field.script["submit"] = [status(400, b"no " * 10_000_000)]
    with pytest.raises(DispatchError, match="400: no no") as caught:
        connect(field).submit("gpu", b"e", id="a")
    assert len(str(caught.value)) < 1000


def test_a_413_before_the_body_is_read(field: Field, connect: Connect) -> None:
    """The server answers and closes while the body is still on its way."""
    original = field.server.RequestHandlerClass.do_POST  # type: ignore[attr-defined]

    def refuse(handler: Any) -> None:
        handler.send_response(413)
        handler.send_header("content-length", "0")
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True
        handler.rfile.read(1000)

    field.server.RequestHandlerClass.do_POST = refuse  # type: ignore[attr-defined]
    try:
        with pytest.raises(DispatchError, match=r"20,000,\d+ bytes"):
            connect(field, timeout=1).submit("gpu", b"x" * 20_000_000, id="a")
    finally:
        field.server.RequestHandlerClass.do_POST = original  # type: ignore[attr-defined]


def test_a_body_that_drips_is_given_up(field: Field, connect: Connect) -> None:
    def drip(request: Request) -> None:
        request.handler.send_response(200)
        request.handler.send_header("content-type", "application/x-msgpack")
        request.handler.send_header("content-length", "1000000")
        request.handler.end_headers()
        while not field.stopping.wait(0.05):
            request.handler.wfile.write(b"x")

    field.script["submit"] = [drip]
    began = time.monotonic()
    with pytest.raises(PlaneUnavailable, match="too slowly"):
        connect(field, timeout=0.5).submit("gpu", b"e", id="a")
    assert time.monotonic() - began < 5


def test_a_slow_body_that_keeps_coming_is_read(field: Field, connect: Connect) -> None:
    body = msgpack.packb({"state": "succeeded", "result_blob": b"x" * 100_000})

    def slow(request: Request) -> None:
        request.handler.send_response(200)
        request.handler.send_header("content-type", "application/x-msgpack")
        request.handler.send_header("content-length", str(len(body)))
        request.handler.end_headers()
        for start in range(0, len(body), 10_000):
            request.handler.wfile.write(body[start : start + 10_000])
            time.sleep(0.05)

    field.script["await"] = [slow]
    assert len(connect(field, timeout=0.4).result("a", timeout=5)) == 100_000


def test_large_payloads_and_results_pass(ours: Ours, connect: Connect) -> None:
    plane, large = connect(ours), b"x" * 8_000_000
    plane.submit("gpu", large, id="a")
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    assert claimed.envelope == large
    plane.ack("a", "w", result=large, fence=1)
    assert plane.result("a") == large


@pytest.mark.parametrize(
    ("shown", "state"),
    [("pending", "queued"), ("queued", "queued"), ("running", "running"), ("killed", "cancelled")],
)
def test_the_field_s_states(field: Field, connect: Connect, shown: str, state: str) -> None:
    field.rows["a"] = {"state": shown}
    row = connect(field).get("a")
    assert row is not None
    assert row["state"] == state
    assert {"id", "queue", "attempt", "error", "worker_id"} <= row.keys()


def test_a_state_that_nobody_knows(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "paused"}
    with pytest.raises(PlaneUnavailable, match="state: wants one of .* got 'paused'"):
        connect(field).result("a", timeout=1)


def test_a_404_from_await_is_an_unknown_id(field: Field, connect: Connect) -> None:
    plane = connect(field)
    field.script["await"] = [status(404, b"unknown invocation")] * 2
    assert plane.get("a") is None
    with pytest.raises(DispatchError, match="no invocation 'a'"):
        plane.result("a", timeout=1)


def test_a_proxy_s_404_is_not_an_unknown_id(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    plane.submit("gpu", b"e", id="a")
    ours.script["a"] = [status(404, b"default backend - 404")]
    with pytest.raises(PlaneUnavailable, match="is no control plane, or something stands before it"):
        plane.get("a")


def test_a_server_that_does_not_hold_is_not_hammered(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "running"}
    field.hold = lambda id, seconds: None  # type: ignore[method-assign]
    with pytest.raises(WaitTimeout):
        connect(field).result("a", timeout=1)
    assert len(field.posts("await")) < 15


def test_one_pool_is_shared_and_kept(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    for n in range(20):
        plane.submit("gpu", b"e", id=f"j{n}")
    assert ours.connections == 1
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(10):
                plane.submit("gpu", b"e", id=f"t{n}-{i}")
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert plane.count("gpu") == 100
    assert ours.connections <= 9


class TestInTheField:
    """A control plane without `Lakeshore-Protocol`."""

    def test_a_job_from_end_to_end(self, field: Field, connect: Connect) -> None:
        plane = connect(field)
        plane.submit("gpu", b"e", id="a")
        claimed = plane.claim("gpu", "w", wait=1)
        assert claimed is not None
        assert (claimed.id, claimed.attempt, claimed.queue, claimed.fence) == ("a", 1, "gpu", 0)
        plane.heartbeat("a", "w", fence=0)
        assert plane.journal_append("a", None, frame(0, "v0"), worker_id="w", fence=0) == 0
        assert plane.journal_extend("a", [frame(0, "v1"), frame(0, "v2")], worker_id="w", fence=0) == 2
        assert plane.ack("a", "w", result=b"r", fence=0, frame=wire.end_frame(0)) is None
        assert plane.result("a", timeout=1) == b"r"
        read = [wire.Frame.from_bytes(data) for _, data in plane.journal_read("a")]
        assert [each.seq for each in read] == [0, 1, 2, 3]
        assert [each.body for each in read[:3]] == ["v0", "v1", "v2"]
        routes = {request.path.rpartition("/")[2] for request in field.seen}
        assert routes == {"submit", "poll", "result-chunk", "ack", "await", "stream"}

    def test_a_retry_counts_anew(self, field: Field, connect: Connect) -> None:
        plane = connect(field)
        plane.submit("gpu", b"e", id="a")
        for attempt in (1, 2):
            claimed = plane.claim("gpu", "w", wait=1)
            assert claimed is not None
            assert claimed.attempt == attempt
            field.chunks.clear()  # the server keeps attempts apart
            assert [plane.journal_append("a", None, b"%d" % n) for n in range(2)] == [0, 1]
            plane.nack("a", "w", error="E: x", retry=True)
        plane.claim("gpu", "w", wait=1)
        plane.release("a", "w")
        acks = field.posts("ack")
        assert [ack["error"]["retry"] for ack in acks] == [True] * 3
        assert acks[-1]["error"]["type"] == "WorkerStopped"

    def test_a_seq_that_another_took_is_passed_over(self, field: Field, connect: Connect) -> None:
        one, two = connect(field), connect(field)
        assert [one.journal_append("t", None, b"a"), one.journal_append("t", None, b"b")] == [0, 1]
        assert [two.journal_append("t", None, b"c"), one.journal_append("t", None, b"d")] == [2, 3]

    def test_the_next_claim_is_a_claim(self, field: Field, connect: Connect) -> None:
        plane = connect(field)
        for id in ("a", "b"):
            plane.submit("gpu", b"e", id=id)
        plane.claim("gpu", "w", wait=1)
        following = plane.ack("a", "w", next=ClaimSpec("gpu"))
        assert following is not None
        assert following.id == "b"
        field.script["poll"] = [status(400, b"no")]
        assert plane.ack("b", "w", next=ClaimSpec("gpu")) is None

    @pytest.mark.parametrize(
        "call",
        [
            lambda p: p.submit("gpu", b"e", id="a", delay=1),
            lambda p: p.submit_many("gpu", [Submission(envelope=b"e", id="a")]),
            lambda p: p.claim("gpu", "w", kind="filo"),
            lambda p: p.cancel("a"),
            lambda p: p.requeue("a"),
            lambda p: p.envelope("a"),
            lambda p: p.count("gpu"),
            lambda p: p.queues(),
            lambda p: p.invocations(),
            lambda p: p.workers(),
            lambda p: p.journal_trim("a"),
            lambda p: p.prune(older_than=0),
        ],
    )
    def test_other_verbs_name_the_server(
        self, field: Field, connect: Connect, call: Callable[[HttpDispatch], object]
    ) -> None:
        with pytest.raises(NotSupported, match=rf"the control plane at {field.url} does not have it"):
            call(connect(field))
        assert {request.path.rpartition("/")[2] for request in field.seen} == {"await"}

    def test_an_upgrade_is_noticed(self, connect: Connect, ours: Ours) -> None:
        plane = connect(ours)
        header = ours.serve

        def old(request: Request) -> None:
            request.send({"state": None})

        ours.serve = old  # type: ignore[method-assign]
        with pytest.raises(NotSupported):
            plane.count("gpu")
        ours.serve = header  # type: ignore[method-assign]
        plane.submit("gpu", b"e", id="a")
        assert plane.count("gpu") == 1


def test_pauses_grow_and_are_jittered(field: Field, connect: Connect) -> None:
    times: list[float] = []

    def note(request: Request) -> None:
        times.append(time.monotonic())
        request.reply(503)

    field.script["submit"] = [note] * 4
    connect(field, timeout=10).submit("gpu", b"e", id="a")
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[0] < 0.3
    assert gaps[-1] > gaps[0]
