"""What a worker does where a control plane, or what stands before it, refuses or repeats itself."""

from __future__ import annotations

import email.utils
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from unit.planes_http.field import Field, frame
from unit.planes_http.loopback import Request, Step, status, stream

from lakeshore import (
    DispatchError,
    HttpDispatch,
    InvocationFailed,
    PlaneUnavailable,
    SyncQueue,
    run_worker,
    thunk,
)
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.http_headers import retry_after
from lakeshore.planes.protocol import FRAMES, MSGPACK
from lakeshore.wire import FrameKind

Connect = Callable[..., HttpDispatch]


def commands(*bodies: dict[str, Any]) -> Callable[[Request], None]:
    """Answer a poll with these jobs."""
    return lambda request: request.send({"commands": [{"kind": "run", "body": body} for body in bodies]})


def job(plane: HttpDispatch, field: Field, id: str, **over: Any) -> dict[str, Any]:
    """Submit one and return the command that hands it out."""
    SyncQueue("gpu", dispatch=plane).submit(thunk(math.sqrt, 4.0), id=id)
    field.queue.remove(id)
    field.rows[id]["state"] = "running"
    return {"invocation_id": id, "args_blob": field.rows[id]["envelope"], "attempt": 1, **over}


def work(plane: HttpDispatch, until: Callable[[], bool]) -> int:
    return run_worker(
        SyncQueue("gpu", dispatch=plane), stop=until, allow_pickled=True, log=False, allow_modules=["math"]
    )


@pytest.mark.parametrize("code", [400, 403, 405, 410, 413, 415, 422, 431])
def test_a_refused_result_fails_its_job_and_the_worker_goes_on(
    field: Field, connect: Connect, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    plane = connect(field)
    q = SyncQueue("gpu", dispatch=plane)
    first, second = (q.submit(thunk(math.sqrt, 4.0)) for _ in range(2))
    field.script["ack"] = [status(code, b"not this one")]
    assert work(plane, lambda: len(field.posts("ack")) >= 3) == 2
    assert field.rows[second]["state"] == "succeeded"
    assert field.rows[first]["state"] == "failed"
    assert field.rows[first]["error"]["retry"] is False
    assert "its result was refused" in field.rows[first]["error"]["message"]
    if code == 413:
        assert "run.write" in field.rows[first]["error"]["message"]
    assert "Traceback" not in caplog.text


def test_an_ending_that_is_refused_twice_is_left_with_a_warning(
    field: Field, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    plane = connect(field)
    q = SyncQueue("gpu", dispatch=plane)
    first, second = (q.submit(thunk(math.sqrt, 4.0)) for _ in range(2))
    field.script["ack"] = [status(403), status(403)]
    with caplog.at_level(logging.WARNING, "lakeshore.worker"):
        assert work(plane, lambda: len(field.posts("ack")) >= 3) == 2
    assert field.rows[second]["state"] == "succeeded"
    assert f"job {first} (attempt 1): its ending was refused" in caplog.text


def test_a_worker_that_is_not_let_in_ends_with_the_refusal(field: Field, connect: Connect) -> None:
    field.script["poll"] = [status(401, b"no token")]
    with pytest.raises(DispatchError, match="401, no valid token"):
        work(connect(field), lambda: len(field.posts("poll")) > 1)


def test_a_job_that_is_handed_out_twice_in_one_answer_runs_once(field: Field, connect: Connect) -> None:
    plane = connect(field)
    body = job(plane, field, "a")
    newer = {**body, "attempt": 2}
    field.script["poll"] = [commands(body, newer, body)]
    assert work(plane, lambda: len(field.posts("poll")) > 1) == 1
    assert [each["state"] for each in field.posts("ack")] == ["succeeded"]
    assert field.rows["a"]["state"] == "succeeded"
    field.script["poll"] = [commands(body, newer, body)]
    taken = plane.claim_many("gpu", "w", 5)
    assert [(each.id, each.attempt) for each in taken] == [("a", 2)]


@pytest.mark.parametrize("step", [status(204), status(200), status(202, content_type="text/plain")])
def test_a_success_without_a_word_is_a_yes(field: Field, connect: Connect, step: Step) -> None:
    plane = connect(field, timeout=0.3)
    body = job(plane, field, "a")
    field.script["poll"], field.script["ack"] = [commands(body)], [step]
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    plane.ack("a", "w", result=b"r", fence=claimed.fence)
    assert len(field.posts("ack")) == 1


@pytest.mark.parametrize("id", ["", "../x", 5])
def test_an_id_that_none_can_have_is_not_handed_to_the_user(
    field: Field, connect: Connect, id: object
) -> None:
    field.script["submit"] = [lambda request: request.send({"invocation_id": id})]
    with pytest.raises(PlaneUnavailable, match="not as a control plane does"):
        connect(field).submit("gpu", b"e", id="a")


def test_a_result_that_is_kept_elsewhere_is_named(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "succeeded"}
    field.script["await"] = [lambda request: request.send({"state": "succeeded", "result_ref": "s3://b/k"})]
    with pytest.raises(DispatchError, match=r"result_ref 's3://b/k'"):
        connect(field).result("a", timeout=1)


def test_a_failure_s_text_is_bounded(field: Field, connect: Connect) -> None:
    error = {"type": "X" * 1000, "message": "m" * 1_000_000, "traceback": "t" * 1_000_000}
    field.rows["a"] = {"state": "failed", "error": error}
    with pytest.raises(InvocationFailed) as caught:
        connect(field).result("a", timeout=1)
    assert len(str(caught.value)) < 140_000
    assert "1,000,000 characters" in str(caught.value)


@pytest.mark.parametrize("code", [525, 526, 527, 530])
def test_what_a_cdn_says_for_a_moment_is_waited_out(field: Field, connect: Connect, code: int) -> None:
    field.script["submit"] = [status(code)]
    assert connect(field).submit("gpu", b"e", id="a") == "a"


def test_a_stream_is_asked_for_again_after_a_500(field: Field, connect: Connect) -> None:
    field.script["stream"] = [status(500), stream(frame(1, 5), frame(2, None, FrameKind.END))]
    field.rows["a"] = {"state": "running"}
    assert [seq for seq, _ in connect(field).journal_read("a", timeout=3)] == [1, 2]


@pytest.mark.parametrize("media", ["", f"{FRAMES}, {FRAMES}", f"{FRAMES};v=1, text/plain"])
def test_a_stream_whose_media_type_is_missing_or_said_twice(
    field: Field, connect: Connect, media: str
) -> None:
    def answer(request: Request) -> None:
        request.reply(200, frame(1, 5) + frame(2, None, FrameKind.END), {"content-type": media})

    field.script["stream"] = [answer]
    field.rows["a"] = {"state": "running"}
    assert [seq for seq, _ in connect(field).journal_read("a", timeout=3)] == [1, 2]


def test_an_answer_whose_media_type_is_said_twice(field: Field, connect: Connect) -> None:
    twice = {"content-type": f"{MSGPACK}, {MSGPACK}"}
    field.script["submit"] = [lambda request: request.send({"invocation_id": "a"}, twice)]
    assert connect(field).submit("gpu", b"e", id="a") == "a"


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_a_retry_after_date_is_read_by_the_clock_that_it_came_from(skew: int) -> None:
    now = time.time() + skew
    there = {
        name: email.utils.formatdate(at, usegmt=True)
        for name, at in (("date", now), ("retry-after", now + 7))
    }
    assert 6 <= retry_after(there) <= 8


@pytest.mark.parametrize("id", ["", "../../x", "a b", "a" * 129])
def test_a_command_whose_id_none_can_have_is_not_run(
    field: Field, connect: Connect, id: str, caplog: pytest.LogCaptureFixture
) -> None:
    plane = connect(field)
    body = job(plane, field, "a")
    field.script["poll"] = [commands({**body, "invocation_id": id}, body)]
    assert work(plane, lambda: bool(field.posts("ack"))) == 1
    assert [each["invocation_id"] for each in field.posts("ack")] == ["a"]
    assert "invocation_id" in caplog.text
    field.script["poll"] = [commands({**body, "invocation_id": id})]
    with pytest.raises(DispatchError, match="not as a control plane does"):
        plane.claim("gpu", "w")


def test_what_is_kept_for_the_next_claim_is_not_lost_by_an_ending_that_claims(
    field: Field, connect: Connect
) -> None:
    plane = connect(field)
    field.script["poll"] = [commands(*(job(plane, field, id) for id in "abc"))]
    first = plane.claim("gpu", "w")
    assert first is not None
    plane._tries.ours = True  # as if it were one of ours that gives more than was asked for
    ids = [first.id]
    for _ in range(2):
        following = plane.ack(ids[-1], "w", result=msgpack.packb(1), fence=1, next=ClaimSpec("gpu"))
        assert following is not None
        ids.append(following.id)
    assert ids == ["a", "b", "c"]
    assert not any("next" in each for each in field.posts("ack"))
