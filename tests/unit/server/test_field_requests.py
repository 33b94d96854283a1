"""The requests of clients in the field, as they send them: few fields, some of them unknown here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from unit.server.conftest import Served

from lakeshore import wire

NS = "/v1/namespaces/default"
FRAMES = "application/x-msgpack-stream"


class Client:
    """What such a client says to one control plane: nothing of leases, fences, namespaces or workers' ids."""

    def __init__(self, served: Served, tokens: dict[str, str | None]) -> None:
        self.served, self.tokens = served, tokens

    def post(self, role: str, path: str, **body: Any) -> Any:
        answer = self.served.post(path, body, token=self.tokens[role], user_agent="field/1")
        return answer.told if answer.status_code == 200 else answer.status_code  # type: ignore[attr-defined]

    def submit(self, id: str, **more: Any) -> Any:
        body = {
            "invocation_id": id,
            "queue": "gpu",
            "function": "train",
            "args_blob": b"opaque",
            "run_config": {"queue": "gpu", "priority": 0, "key": None, "host_key": "h", "gpus": 2},
            "code_context": {"remote": "r", "unknown": [1, None]},
            "trace_id": "t-1",
        }
        return self.post("producer", f"{NS}/producer/submit", **{**body, **more})

    def wait(self, id: str, role: str = "producer") -> Any:
        body = {"invocation_id": id, "timeout_s": 0, "accept_result_ref": False}
        return self.post(role, f"{NS}/producer/await", **body)

    def poll(self) -> list[dict[str, Any]]:
        told = self.post("worker", "/v1/daemon/poll", worker_id="w", timeout_s=0, queue="gpu", gpus=[])
        assert all(each["kind"] == "run" for each in told["commands"])
        return [each["body"] for each in told["commands"]]

    def chunk(
        self, id: str, seq: int, frame: wire.Frame, *, final: bool = False, role: str = "worker"
    ) -> Any:
        body = {"invocation_id": id, "seq": seq, "bytes": frame.to_bytes(), "final": final, "crc": 0}
        return self.post(role, "/v1/daemon/result-chunk", **body)

    def ack(self, id: str, state: str, **more: Any) -> Any:
        return self.post("worker", "/v1/daemon/ack", invocation_id=id, state=state, host="h", **more)

    def stream(self, id: str, since: int = -1) -> list[list[Any]]:
        path = f"{NS}/producer/invocations/{id}/result/stream?since={since}"
        answer = self.served.get(path, token=self.tokens["producer"], accept=FRAMES)
        assert answer.headers["content-type"].startswith(FRAMES)
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(answer.content)
        return list(unpacker)


@pytest.fixture(params=["no-auth", "roles", "admin"])
def client(request: pytest.FixtureRequest, serve: Callable[..., Served]) -> Iterator[Client]:
    served = serve(memory=True, auth=request.param != "no-auth")
    if request.param == "no-auth":
        tokens: dict[str, str | None] = dict.fromkeys(("producer", "worker"))
    elif request.param == "roles":
        tokens = {role: served.token(role) for role in ("producer", "worker")}
    else:
        tokens = dict.fromkeys(("producer", "worker"), served.token("admin"))
    yield Client(served, tokens)


def value(n: int) -> wire.Frame:
    return wire.Frame(wire.FrameKind.VALUE, n, n)


def test_a_job_from_submit_to_result(client: Client) -> None:
    assert client.submit("a") == {"invocation_id": "a"}
    assert client.wait("a")["state"] == "pending"
    (job,) = client.poll()
    assert (job["invocation_id"], job["args_blob"], job["attempt"]) == ("a", b"opaque", 1)
    assert job["function"] == "train"
    assert job["run_config"]["host_key"] == "h"
    assert job["code_context"] == {"remote": "r", "unknown": [1, None]}
    assert client.poll() == []
    assert client.wait("a", "worker")["state"] == "running"
    assert client.chunk("a", 0, value(0)) == {"seq": 0, "duplicate": False}
    assert client.chunk("a", 0, value(0)) == {"seq": 0, "duplicate": True}
    assert client.chunk("a", 1, value(1), final=True) == {"seq": 1, "duplicate": False}
    assert client.ack("a", "succeeded", result_blob=b"r")["ok"] is True
    ended = client.wait("a")
    assert (ended["state"], ended["result_blob"]) == ("succeeded", b"r")
    frames = client.stream("a")
    assert [wire.Frame.from_bytes(msgpack.packb(each)).seq for each in frames] == [0, 1]
    assert len(client.stream("a", since=0)) == 1


def test_a_retry_takes_its_error_back_and_counts_from_0(client: Client) -> None:
    client.submit("a")
    client.poll()
    client.chunk("a", 0, value(7))
    error = wire.Frame(wire.FrameKind.ERROR, 1, {"type": "ValueError", "message": "once"})
    client.chunk("a", 1, error, final=True)
    told = {"type": "ValueError", "message": "once", "traceback": None, "retry": True}
    assert client.ack("a", "failed", error=told)["ok"] is True
    (again,) = client.poll()
    assert again["attempt"] == 2
    assert client.chunk("a", 0, value(8), final=True)["duplicate"] is False
    assert client.ack("a", "succeeded", result_blob=b"r")["ok"] is True
    assert [each[1] for each in client.stream("a")].count(wire.FrameKind.ERROR) == 0


def test_a_failure_for_good(client: Client) -> None:
    client.submit("a")
    client.poll()
    assert (
        client.ack("a", "failed", error={"type": "KeyError", "message": "'k'", "retry": False})["ok"] is True
    )
    ended = client.wait("a")
    assert ended["state"] == "failed"
    assert (ended["error"]["type"], ended["error"]["message"]) == ("KeyError", "'k'")
    assert client.ack("a", "succeeded", result_blob=b"late") == 409


def test_what_is_absent_takes_its_default(client: Client) -> None:
    body = {"invocation_id": "a", "args_blob": b"", "run_config": {"queue": "gpu"}}
    assert client.post("producer", f"{NS}/producer/submit", **body) == {"invocation_id": "a"}
    (job,) = client.poll()
    assert job["args_blob"] == b""
    assert client.ack("a", "succeeded")["ok"] is True
    assert client.wait("a")["result_blob"] == b""
    assert client.wait("nobody") in ({"state": None}, 404)
    assert client.ack("nobody", "succeeded") in (404, 409)


def test_topics_by_the_same_two_routes(client: Client) -> None:
    for n, role in enumerate(("producer", "worker")):
        assert client.chunk("news", n, value(n), role=role)["seq"] == n
    client.chunk("news", 2, value(2), final=True, role="producer")
    assert len(client.stream("news")) == 3
    assert client.submit("b")
    assert client.chunk("b", 0, value(0)) == 409, "an id that has a row wants its claim"


def test_a_producer_may_not_claim_nor_a_worker_submit(serve: Callable[..., Served]) -> None:
    served = serve(memory=True, auth=True)
    swapped = Client(served, {"producer": served.token("worker"), "worker": served.token("producer")})
    assert swapped.submit("a") == 403
    assert swapped.post("worker", "/v1/daemon/poll", worker_id="w", timeout_s=0, queue="gpu") == 403
    assert swapped.ack("a", "succeeded") == 403


def test_a_report_under_another_token_is_no_report(serve: Callable[..., Served]) -> None:
    served = serve(memory=True, auth=True)
    tokens: dict[str, str | None] = {role: served.token(role) for role in ("producer", "worker")}
    client = Client(served, tokens)
    client.submit("a")
    client.poll()
    other = Client(served, {**tokens, "worker": served.token("worker")})
    assert other.chunk("a", 0, value(0)) == 409
    assert other.ack("a", "succeeded", result_blob=b"stolen") == 409
    assert client.ack("a", "succeeded", result_blob=b"r")["ok"] is True
