"""What a client may send: sizes, times, names, and what an answer says of a body that cannot be."""

from __future__ import annotations

import time

import msgpack
import pytest

from lakeshore.planes.protocol import MSGPACK

NS = "/v1/namespaces/default"
JOB = {"invocation_id": "a", "queue": "gpu", "args_blob": b"e", "run_config": {"queue": "gpu"}}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"{NS}/producer/submit", {**JOB, "invocation_id": None}, "invocation_id"),
        (f"{NS}/producer/submit", {**JOB, "invocation_id": "a b"}, "id"),
        (f"{NS}/producer/submit", {**JOB, "invocation_id": "x" * 129}, "id"),
        (f"{NS}/producer/submit", {**JOB, "args_blob": "text"}, "args_blob"),
        (f"{NS}/producer/submit", {**JOB, "queue": "é" * 128}, "queue"),
        (f"{NS}/producer/submit", {**JOB, "queue": 7}, "queue"),
        (f"{NS}/producer/submit", {**JOB, "run_config": {"queue": "gpu", "key": "k" * 256}}, "key"),
        (f"{NS}/producer/submit", {**JOB, "run_config": {"priority": "high"}}, "priority"),
        (f"{NS}/producer/submit", {**JOB, "run_config": {"priority": float("nan")}}, "priority"),
        (f"{NS}/producer/submit", {**JOB, "run_config": []}, "run_config"),
        (f"{NS}/producer/submit", {**JOB, "delay": -1}, "delay"),
        (f"{NS}/producer/submit", {**JOB, "delay": 1e300}, "delay"),
        (f"{NS}/producer/submit", {**JOB, "delay": float("inf")}, "delay"),
        (f"{NS}/producer/submit", {**JOB, "parent_invocation_id": "no id"}, "parent"),
        (
            f"{NS}/producer/submit-many",
            {"queue": "gpu", "items": [JOB, {**JOB, "args_blob": 1}]},
            "items[1].args_blob",
        ),
        (f"{NS}/producer/await", {"invocation_id": "a", "timeout_s": "1"}, "timeout_s"),
        (f"{NS}/producer/await", {"invocation_id": "a", "timeout_s": -1}, "timeout_s"),
        (f"{NS}/producer/await", {}, "invocation_id"),
        (f"{NS}/prune", {"older_than": -1}, "older_than"),
        (f"{NS}/prune", {"older_than": 1, "states": ["queued"]}, "states"),
        ("/v1/daemon/poll", {"worker_id": "w"}, "queue"),
        ("/v1/daemon/poll", {"queue": "gpu"}, "worker_id"),
        ("/v1/daemon/poll", {"worker_id": "w", "queue": "gpu", "kind": "lifo"}, "kind"),
        ("/v1/daemon/poll", {"worker_id": "w", "queue": "gpu", "lease": -1}, "lease"),
        ("/v1/daemon/poll", {"worker_id": "w", "queue": "gpu", "lease": 1e300}, "lease"),
        ("/v1/daemon/heartbeat", {"invocation_id": "a", "lease": 1e300}, "lease"),
        ("/v1/daemon/poll", {"worker_id": "w", "queue": "gpu", "capacity": 0}, "capacity"),
        ("/v1/daemon/ack", {"invocation_id": "a", "state": "running"}, "state"),
        ("/v1/daemon/ack", {"state": "succeeded"}, "invocation_id"),
        ("/v1/daemon/result-chunk", {"invocation_id": "t", "seq": -1, "bytes": b""}, "seq"),
        ("/v1/daemon/result-chunk", {"invocation_id": "t", "seq": True, "bytes": b""}, "seq"),
        ("/v1/daemon/result-chunk", {"invocation_id": "t", "seq": 0}, "bytes"),
        ("/v1/daemon/result-chunk", {"invocation_id": "t" * 256, "seq": 0, "bytes": b""}, "invocation_id"),
        ("/v1/daemon/result-chunk", {"invocation_id": "t", "frames": [[0, b""]]}, "frames[0]"),
        ("/v1/daemon/result-chunk", {"invocation_id": "t", "frames": []}, "frames"),
    ],
)
def test_400_names_the_field(shared, path, body, field):
    answer = shared.post(path, body)
    assert (answer.status_code, answer.told["error"]["code"]) == (400, "bad_request"), answer.text
    assert field in answer.told["error"]["message"]
    assert shared.plane.queues() == {}


@pytest.mark.parametrize("query", ["since=x", "since=-2", "since=99999999999999999999", "since=٣"])
def test_400_names_the_query(shared, query):
    answer = shared.get(f"{NS}/producer/invocations/a/result/stream?{query}")
    assert answer.status_code == 400
    assert "since" in answer.told["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"\xc1", b"{}", b"[]", msgpack.packb([1]), b"\x81" * 5000, b"\xdf\xff\xff\xff\xff"]
)
def test_what_is_no_msgpack_map_is_400(shared, body):
    answer = shared.post(f"{NS}/producer/submit", body)
    assert answer.status_code == 400
    assert "msgpack" in answer.told["error"]["message"] or "invocation_id" in answer.told["error"]["message"]


def test_errors_are_json_or_msgpack_by_accept(shared):
    for accept, media in (
        (MSGPACK, MSGPACK),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
    ):
        answer = shared.post(f"{NS}/producer/await", {}, accept=accept)
        assert answer.headers["content-type"] == media
        assert answer.headers["lakeshore-protocol"] == "1"
        assert answer.told["error"]["code"] == "bad_request"


def test_statuses(served):
    assert served.submit("a").status_code == 200
    assert served.submit("a").status_code == 200
    other = served.post(f"{NS}/producer/submit", {**JOB, "args_blob": b"other"})
    assert (other.status_code, other.told["error"]["code"]) == (409, "dispatch")
    lost = served.post("/v1/daemon/ack", {"invocation_id": "a", "state": "succeeded"})
    assert (lost.status_code, lost.told["error"]["code"]) == (409, "claim_lost")
    for path in (f"{NS}/invocations/none", f"{NS}/invocations/none/envelope", "/nothing", "/v1"):
        assert served.get(path).status_code == 404, path
    wrong = served.get(f"{NS}/producer/submit")
    assert (wrong.status_code, wrong.headers["allow"], wrong.told["error"]["code"]) == (
        405,
        "POST",
        "wrong_method",
    )
    assert served.post(f"{NS}/producer/await", {"invocation_id": "none"}).told == {"state": None}


def test_413_says_the_limit_and_takes_nothing_in(serve):
    served = serve(body_limit=100_000)
    large = {**JOB, "args_blob": b"x" * 200_000}
    answer = served.post(f"{NS}/producer/submit", large)
    assert answer.status_code == 413
    assert "100,000 bytes" in answer.told["error"]["message"]
    content = msgpack.packb(large)

    def parts():
        for start in range(0, len(content), 10_000):
            yield content[start : start + 10_000]

    answer = served.http.post(f"{NS}/producer/submit", content=parts())
    assert answer.status_code == 413
    assert served.post(f"{NS}/producer/submit", {**JOB, "args_blob": b"x" * 90_000}).status_code == 200


def test_slow_headers_and_bodies_are_given_up_and_others_served(serve):
    served = serve(header_seconds=0.4, body_seconds=0.4)
    with served.line() as silent, served.line() as drip, served.line() as body:
        body.sendall(b"POST /v1/daemon/poll HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n\x81")
        end = time.monotonic() + 5
        closed = False
        while time.monotonic() < end and not closed:
            try:
                drip.sendall(b"G")
                time.sleep(0.05)
            except OSError:
                closed = True
        assert closed
        assert silent.recv(100) == b""
        assert b" 408 " in body.recv(4096)
        assert served.get("/healthz").status_code == 200


def test_large_headers_are_refused(serve):
    served = serve(header_bytes=4096)
    with served.line() as line:
        try:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
            assert b" 400 " in line.recv(4096)
        except ConnectionError:
            pass  # cut off before it was read
    assert served.get("/healthz", x="y" * 1000).status_code == 200


def test_a_client_that_takes_nothing_is_cut_off(serve):
    served = serve(stall_seconds=0.5)
    for _ in range(40):
        served.plane.journal_append("big", None, b"x" * 1_000_000)
    with served.line() as line:
        line.sendall(
            b"GET /v1/namespaces/default/producer/invocations/big/result/stream?since=-1 HTTP/1.1\r\n"
            b"Host: localhost\r\n\r\n"
        )
        end = time.monotonic() + 10
        while served.app.serving.streams == 0 and time.monotonic() < end:
            time.sleep(0.01)
        while served.app.serving.streams and time.monotonic() < end:
            time.sleep(0.02)
        assert served.app.serving.streams == 0
