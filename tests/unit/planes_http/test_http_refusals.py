"""What a worker does where a control plane, or what stands before it, refuses or repeats itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import Request, status

from lakeshore import DispatchError, HttpDispatch, SyncQueue, run_worker, thunk
from lakeshore.planes.contract import ClaimSpec

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
