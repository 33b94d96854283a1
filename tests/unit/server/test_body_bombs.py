"""Bodies whose few bytes stand for many objects: refused before they are built, wherever they are read."""

from __future__ import annotations

import json
import tracemalloc

import msgpack
import pytest

from lakeshore.planes import protocol
from lakeshore.planes.protocol_values import SMALL_LIMIT

NS = "/v1/namespaces/default"
MANY = 3_000_000


def _maps(n: int) -> bytes:
    """A list of n empty maps, in about n bytes."""
    return b"\xdd" + n.to_bytes(4, "big") + b"\x80" * n


def _nested(n: int) -> bytes:
    """Lists of 100 empty maps each, so that none of them is long."""
    return b"\xdd" + (n // 100).to_bytes(4, "big") + (b"\xdc\x00\x64" + b"\x80" * 100) * (n // 100)


@pytest.mark.parametrize("bomb", [_maps(MANY), _nested(2 * MANY)], ids=["long", "nested"])
def test_a_body_of_too_many_values_is_refused(bomb):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="values"):
            protocol.unpack(b"\x81\xa1x" + bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000_000


def test_as_many_values_as_a_body_may_have_are_read():
    rows = [{"id": str(n), "state": "queued", "key": None} for n in range(100_000)]
    assert protocol.unpack(msgpack.packb({"rows": rows}))["rows"] == rows


@pytest.mark.parametrize(
    "path",
    [
        f"{NS}/producer/await",
        f"{NS}/invocations/x/cancel",
        f"{NS}/invocations/x/requeue",
        f"{NS}/journals/x/trim",
        f"{NS}/prune",
        "/v1/daemon/poll",
        "/v1/daemon/heartbeat",
        "/v1/daemon/release",
        f"{NS}/storages/s/presign",
    ],
)
def test_a_call_without_payload_takes_a_small_body(shared, path):
    body = b"\x81\xa1x" + _maps(SMALL_LIMIT)
    if path.endswith("presign"):
        body = json.dumps({"key": [{}] * (2 * SMALL_LIMIT)}).encode()
    answer = shared.ask("POST", path, body)
    assert (answer.status_code, answer.told["error"]["code"]) == (413, "too_large"), path
    assert "carries no payload" in answer.told["error"]["message"]


@pytest.mark.parametrize("path", [f"{NS}/producer/submit", f"{NS}/producer/submit-many", "/v1/daemon/ack"])
def test_a_call_with_payload_refuses_a_bomb(shared, path):
    answer = shared.ask("POST", path, b"\x81\xa1x" + _maps(MANY))
    assert (answer.status_code, answer.told["error"]["code"]) == (400, "bad_request")
    assert "values" in answer.told["error"]["message"]


def test_an_envelope_that_is_a_bomb_is_handed_on_as_it_is(served):
    envelope = b"\x81\xa1x" + _maps(MANY)
    body = {"invocation_id": "a", "queue": "gpu", "args_blob": envelope, "run_config": {"queue": "gpu"}}
    assert served.post(f"{NS}/producer/submit", body).status_code == 200
    (job,) = served.poll()
    assert (job["args_blob"], job["function"]) == (envelope, "payload")
