"""Uploads under a claim: a worker that lost its job cannot write over what the next one wrote."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakeshore import ClaimLost, HttpDispatch, SyncQueue, run, run_worker, thunk
from lakeshore.planes import files
from lakeshore.planes.protocol_files import digest_header
from lakeshore.server.filing import Filing
from lakeshore.worker.keeper import Keeper

PRESIGN = "/v1/namespaces/default/storages/files/presign"


@pytest.fixture
def plane(served: Any) -> Iterator[HttpDispatch]:
    with closing(HttpDispatch(served.url)) as made:
        yield made


def put(plane: HttpDispatch, data: bytes, claim: tuple[str, int] | None, key: str = "k") -> None:
    plane.put_file("files", key, io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest(), claim=claim)


def got(plane: HttpDispatch, key: str = "k", storage: str = "files") -> bytes | None:
    into = io.BytesIO()
    return None if plane.get_file(storage, key, into) is None else into.getvalue()


def url_for(served: Any, token: str | None = None, **more: Any) -> str:
    body = {"key": "k", "operation": "put", "expiresIn": 60, **more}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = served.http.post(PRESIGN, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["url"])


def test_a_worker_that_lost_its_job_writes_over_nothing(plane: HttpDispatch) -> None:
    plane.submit("gpu", b"e", id="a")
    first = plane.claim("gpu", "w1", lease=0)
    put(plane, b"of a lapsed lease that nobody took", ("a", first.fence))
    second = plane.claim("gpu", "w2")
    put(plane, b"of attempt 2", ("a", second.fence))
    with pytest.raises(ClaimLost, match="'a' is not held under fence 1"):
        put(plane, b"of attempt 1", ("a", first.fence))
    assert got(plane) == b"of attempt 2"
    plane.ack("a", "w2", fence=second.fence)
    for stale in (first.fence, second.fence, 99):  # nor when the job has ended
        with pytest.raises(ClaimLost):
            put(plane, b"late", ("a", stale))
    with pytest.raises(ClaimLost, match="gone"):
        put(plane, b"late", ("no-such", 1))
    assert got(plane) == b"of attempt 2"


@pytest.mark.parametrize("loss", ["taken", "cancelled", "pruned", "requeued"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "parts"])
def test_a_url_is_good_while_its_claim_is(served: Any, plane: HttpDispatch, loss: str, whole: bool) -> None:
    plane.submit("gpu", b"e", id="a")
    claimed = plane.claim("gpu", "w1", lease=0)
    url = url_for(served, invocation_id="a", fence=claimed.fence, worker_id="w1")
    data = b"of attempt 1"
    headers = {"Repr-Digest": digest_header(hashlib.sha256(data).hexdigest())}
    if not whole:  # the first half has arrived
        half = {**headers, "Content-Range": f"bytes 0-5/{len(data)}"}
        assert served.http.put(url, content=data[:6], headers=half).status_code == 202
        headers["Content-Range"], data = f"bytes 6-{len(data) - 1}/{len(data)}", data[6:]
    if loss == "taken":
        plane.claim("gpu", "w2")
    elif loss == "pruned":
        plane.ack("a", "w1", fence=1)
        plane.prune(older_than=0)
    else:
        plane.cancel("a")
        if loss == "requeued":
            plane.requeue("a")
            plane.claim("gpu", "w1")
    put(plane, b"newer", None)
    answer = served.http.put(url, content=data, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "claim_lost")
    assert got(plane) == b"newer"


def test_a_content_that_is_there_is_not_given_to_a_lost_claim_s_key(plane: HttpDispatch) -> None:
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w1", lease=0)
    put(plane, b"same bytes", None, key="elsewhere")
    plane.claim("gpu", "w2")
    with pytest.raises(ClaimLost):
        put(plane, b"same bytes", ("a", 1))
    assert got(plane) is None


def test_the_claim_is_looked_at_last(served: Any, plane: HttpDispatch, monkeypatch: Any) -> None:
    """It is lost while the bytes are on their way."""
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w1", lease=0)
    publish = Filing.publish

    def late(*args: Any) -> Any:
        served.plane.claim("gpu", "w2")
        return publish(*args)

    monkeypatch.setattr(Filing, "publish", late)
    with pytest.raises(ClaimLost):
        put(plane, b"of attempt 1", ("a", 1))
    assert got(plane) is None


def test_a_claim_is_its_maker_s(guarded: Any) -> None:
    mine, other = guarded.token("worker"), guarded.token("worker")
    guarded.submit("a", token=guarded.token("producer"))
    (job,) = guarded.poll("w", token=mine)
    told = {"invocation_id": "a", "fence": job["fence"]}
    assert url_for(guarded, mine, **told)
    body = {"key": "k", "operation": "put", "expiresIn": 60, **told}
    for token, more, status in [
        (other, {}, 409),
        (mine, {"worker_id": "someone"}, 409),
        (mine, {"fence": 7}, 409),
        (mine, {"fence": "x"}, 400),
        (mine, {"fence": None}, 400),
        (mine, {"invocation_id": "no good"}, 400),
        (mine, {"invocation_id": 3}, 400),
    ]:
        headers = {"Authorization": f"Bearer {token}"}
        answer = guarded.http.post(PRESIGN, json={**body, **more}, headers=headers)
        assert answer.status_code == status, (more, answer.text)
    # a client in the field says nothing of claims, and writes as ever
    assert url_for(guarded, other)


def test_what_a_job_wrote_is_written_under_its_claim_alone(guarded: Any) -> None:
    jobs = PRESIGN.replace("/files/", "/jobs/")
    mine, other, producer = guarded.token("worker"), guarded.token("worker"), guarded.token("producer")
    admin = guarded.token("admin")

    def asked(token: str, key: str, **more: Any) -> Any:
        body = {"key": key, "operation": "put", "expiresIn": 60, **more}
        headers = {"Authorization": f"Bearer {token}"}
        return guarded.http.post(jobs, json=body, headers=headers)

    for id in ("a", "b"):
        guarded.submit(id, token=producer)
    assert asked(mine, "a/out").status_code == 409  # nobody runs it
    (job,) = guarded.poll("w", token=mine)
    assert job["invocation_id"] == "a"
    claim = {"invocation_id": "a", "fence": job["fence"]}
    for token, key, more, status in [
        (producer, "a/out", {}, 409),
        (producer, "a/out", claim, 409),
        (other, "a/out", {}, 409),
        (other, "a/out", claim, 409),
        (mine, "b/out", {}, 409),
        (mine, "b/out", claim, 403),
        (mine, "x/../b/out", claim, 403),
        (mine, "ab/out", claim, 403),
        (mine, "no-such/out", {}, 403),
        (mine, "id-1/out", {}, 403),
        (mine, "a/out", {}, 200),  # a client in the field, by the claim that its token made
        (mine, "a/out", claim, 200),
        (mine, "x/../a/out", claim, 200),
        (admin, "a/out", {}, 200),
        (admin, "no-such/out", {}, 200),
    ]:
        answer = asked(token, key, **more)
        assert answer.status_code == status, (key, more, answer.text)
    url = asked(mine, "a/out").json()["url"]
    assert guarded.http.put(url, content=b"of the job").status_code == 200
    guarded.post("/v1/daemon/ack", {"invocation_id": "a", "state": "succeeded"}, token=mine)
    assert guarded.http.put(url, content=b"late").status_code == 409
    body = {"key": "a/out", "operation": "get"}
    read = guarded.http.post(jobs, json=body, headers={"Authorization": f"Bearer {producer}"}).json()["url"]
    assert guarded.http.get(read).content == b"of the job"


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_body_that_lost_its_job_stores_nothing(
    served: Any, plane: HttpDispatch, tmp_path: Path, isolation: Any, monkeypatch: Any
) -> None:
    q = SyncQueue("gpu", dispatch=plane)
    url = served.url

    def body() -> str:
        import contextlib
        import hashlib
        import io

        from lakeshore import HttpDispatch

        with contextlib.closing(HttpDispatch(url)) as other:
            id = run.invocation_id
            other.cancel(id)
            other.requeue(id)
            fence = other.claim("gpu", "w2").fence
            data = b"of the next"
            found = hashlib.sha256(data).hexdigest()
            other.put_file("files", "k", io.BytesIO(data), len(data), found, claim=(id, fence))
        run.write("k").write_bytes(b"of the one that lost it")
        return "k"

    monkeypatch.setattr(Keeper, "_look", lambda self, job, left: 1.0)  # nobody tells it to stop
    id = q.submit(thunk(body).with_options(transport="pickle"))
    assert run_worker(q, once=True, root=tmp_path, allow_pickled=True, isolation=isolation) == 1
    assert got(plane) == b"of the next"
    assert got(plane, files.job_key(id, "k"), "jobs") is None
    row = plane.get(id)
    assert row is not None
    assert (row["state"], row["worker_id"], row["fence"]) == ("running", "w2", 2)


def test_the_next_attempt_s_files_stay_in_both_places(plane: HttpDispatch, tmp_path: Path) -> None:
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w1", lease=0)
    plane.claim("gpu", "w2")
    files.publish(plane, "a", 2, _written(tmp_path, "second"), ["k"])
    with pytest.raises(ClaimLost):
        files.publish(plane, "a", 1, _written(tmp_path, "first"), ["k"])
    assert got(plane) == got(plane, files.job_key("a", "k"), "jobs") == b"second"


def _written(folder: Path, text: str) -> Path:
    (folder / text).mkdir()
    (folder / text / "k").write_text(text)
    return folder / text
