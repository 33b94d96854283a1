"""Faults that people met with other HTTP clients of job services."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from unit.planes_http.field import Field, frame
from unit.planes_http.loopback import TOKEN, Request, drop, status, stream

from lakeshore import DispatchError, HttpDispatch, PlaneUnavailable, SyncQueue, run_worker, thunk

Connect = Callable[..., HttpDispatch]


def test_result_survives_gateway_errors(field: Field, connect: Connect) -> None:
    field.script["await"] = [status(503, b"busy"), status(502, b"<html>bad gateway</html>"), status(504)]
    field.done("inv-1", {"ok": 1})
    assert SyncQueue("gpu", dispatch=connect(field)).result("inv-1", timeout=20) == {"ok": 1}


@pytest.mark.parametrize("code", [408, 425, 520, 521, 522, 523, 524, 529])
def test_what_gateways_say_for_a_moment_is_waited_out(field: Field, connect: Connect, code: int) -> None:
    field.script["submit"] = [status(code, b"<html>a moment</html>")]
    assert SyncQueue("gpu", dispatch=connect(field)).submit({"x": 1})
    assert len(field.posts("submit")) == 2


def test_500_is_waited_out_where_asking_again_is_harmless(field: Field, connect: Connect) -> None:
    plane = connect(field, timeout=1.0)
    field.script["await"] = [status(500, b"my database is away")] * 2
    field.done("inv-1", 7)
    assert SyncQueue("gpu", dispatch=plane).result("inv-1", timeout=20) == 7
    field.script["submit"] = [status(500, b"broken")]
    with pytest.raises(PlaneUnavailable, match="500: broken"):
        plane.submit("gpu", b"x", id="a")
    assert len(field.posts("submit")) == 1
    field.script["await"] = [status(500, b"broken for good")] * 99
    with pytest.raises(PlaneUnavailable, match="500: broken for good"):
        SyncQueue("gpu", dispatch=plane).result("inv-1", timeout=None)


def all_at_once(field: Field, request: Request) -> None:
    """Answer a poll with every job, whatever its capacity, and one that nobody can read among them."""
    commands: list[dict[str, Any]] = []
    while field.queue:
        id = field.queue.popleft()
        field.rows[id].update(state="running", attempt=1)
        body = {"invocation_id": id, "args_blob": field.rows[id]["envelope"], "attempt": 1}
        commands.append({"kind": "run", "body": body})
    commands.insert(1, {"kind": "run", "body": {"invocation_id": 5}})
    request.send({"commands": commands})


@pytest.mark.parametrize("once", [False, True])
def test_no_command_of_an_answer_is_lost(field: Field, connect: Connect, once: bool) -> None:
    plane = connect(field)
    queue = SyncQueue("gpu", dispatch=plane)
    ids = [queue.submit(thunk(lambda n=n: n)) for n in range(3)]
    field.script["poll"] = [partial(all_at_once, field)]
    if once:
        run_worker(queue, once=True, isolation="inline", allow_pickled=True)
        assert [field.rows[id]["state"] for id in ids] == ["succeeded", "pending", "pending"]
    else:
        run_worker(
            queue,
            isolation="inline",
            allow_pickled=True,
            poll=0.02,
            stop=lambda: len(field.posts("ack")) == 3,
        )
        assert [queue.result(id) for id in ids] == [0, 1, 2]


@pytest.mark.parametrize("headers", [{"retry_after": "1"}, {}], ids=["asked", "silent"])
def test_429_is_waited_out(field: Field, connect: Connect, headers: dict[str, str]) -> None:
    field.script["submit"] = [status(429, b"slow down", **headers)]
    began = time.monotonic()
    assert SyncQueue("gpu", dispatch=connect(field)).submit({"x": 1})
    assert len(field.posts("submit")) == 2
    assert not headers or time.monotonic() - began >= 1.0


def test_a_dropped_connection_is_no_end_of_the_wait(field: Field, connect: Connect) -> None:
    field.script["await"] = [drop, drop]
    field.done("inv-1", 7)
    assert SyncQueue("gpu", dispatch=connect(field)).result("inv-1", timeout=20) == 7


def test_an_echoed_token_is_in_no_error_and_no_log(
    field: Field, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    field.script["submit"] = [status(400, f"your headers: authorization: Bearer {TOKEN}".encode())]
    with pytest.raises(DispatchError) as caught:
        connect(field).submit("gpu", b"x", id="a")
    assert TOKEN not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_a_stream_resumes_after_a_cut(field: Field, connect: Connect) -> None:
    f = [frame(i, f"v{i}") for i in range(4)] + [frame(4, None, kind=3)]
    field.script["stream"] = [stream(f[0], f[1] + f[2][:3], cut=True), stream(*f[2:])]
    field.rows["inv-1"] = {"state": "running"}
    assert list(SyncQueue("gpu", dispatch=connect(field)).stream("inv-1", timeout=10)) == [
        "v0",
        "v1",
        "v2",
        "v3",
    ]
    assert [request.query["since"] for request in field.gets("/result/stream")] == ["-1", "1"]


def test_a_clean_end_of_a_body_is_not_the_end(field: Field, connect: Connect) -> None:
    f = [frame(i, f"v{i}") for i in range(3)] + [frame(3, None, kind=3)]
    field.script["stream"] = [stream(*f[:2]), stream(), stream(*f[2:])]
    field.rows["inv-1"] = {"state": "running"}
    assert list(SyncQueue("gpu", dispatch=connect(field)).stream("inv-1", timeout=10)) == ["v0", "v1", "v2"]


def test_a_page_with_status_200_is_no_answer(field: Field, connect: Connect) -> None:
    page = b"<!doctype html><html><title>Sign in</title></html>"
    field.script["submit"] = [status(200, page, content_type="text/html")]
    with pytest.raises(PlaneUnavailable, match=r"(?s)text/html.*Sign in"):
        connect(field).submit("gpu", b"x", id="a")
    assert len(field.seen) == 1


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b"Request Entity Too Large", "67,108,864 bytes unless set otherwise"),
        (b'{"error": {"code": "too_large", "message": "limit is 1,000,000 bytes"}}', "limit is 1,000,000"),
    ],
)
def test_413_says_sizes_and_the_way_by_file(field: Field, connect: Connect, body: bytes, limit: str) -> None:
    field.script["submit"] = [status(413, body)] * 3
    with pytest.raises(DispatchError) as caught:
        connect(field).submit("gpu", b"x" * 3_000_000, id="a")
    said = str(caught.value)
    assert "413" in said
    assert "3,000,1" in said
    assert limit in said
    assert "run.write" in said
    assert len(field.posts("submit")) == 1


def test_nothing_secret_or_raw_in_urls(field: Field, connect: Connect) -> None:
    plane = connect(field, namespace="a/../../admin?x=1#y")
    plane.submit("gpu", b"x", id="a")
    with pytest.raises(ValueError, match="wants 1 to 128"):
        SyncQueue("gpu", dispatch=plane).stream("../../v1/secrets?z=")
    with pytest.raises(TimeoutError):
        list(plane.journal_read("../../v1/secrets?z=", timeout=0.1))
    for request in field.seen:
        assert TOKEN not in request.target
        assert "/../" not in request.target
        assert "admin?x" not in request.target
        assert "secrets?z" not in request.target
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert field.seen[0].path == "/v1/namespaces/a%2F..%2F..%2Fadmin%3Fx%3D1%23y/producer/submit"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_climbs_in_any_encoding_is_refused(field: Field, connect: Connect, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a URL"):
        connect(field, namespace=name)
    with pytest.raises(ValueError, match="cannot be part of a URL"):
        connect(field).journal_read(name)
    assert not field.seen
