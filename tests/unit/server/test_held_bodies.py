"""Bodies on their way: what they may hold of the server's memory together, and how long they may be still."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lakeshore.planes.protocol_files import digest_header
from lakeshore.server import Options, serving

SUBMIT = "/v1/namespaces/default/producer/submit"
LARGE = 90_000


def begin(served: Any, token: str, *, path: str = SUBMIT, size: int = LARGE, sent: int = LARGE // 2) -> Any:
    """Send half a body; returns the line."""
    line = served.line()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    line.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + b"\x81" * sent)
    return line


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def job(served: Any, token: str, id: str, size: int) -> Any:
    body = {"invocation_id": id, "queue": "gpu", "args_blob": b"e" * size, "run_config": {"queue": "gpu"}}
    return served.post(SUBMIT, body, token=token)


def test_what_bodies_hold_is_bounded_of_a_token_and_of_all(serve: Any) -> None:
    served = serve(auth=True, body_limit=100_000, held_bytes=400_000)
    bodies = served.app.serving.bodies
    greedy, others = served.token("producer"), [served.token("producer") for _ in range(3)]
    with contextlib.ExitStack() as lines:
        lines.enter_context(begin(served, greedy))
        until(lambda: bodies.held == LARGE)
        again = lines.enter_context(begin(served, greedy))
        told = again.recv(4096)
        while b"}}" not in told:
            told += again.recv(4096)
        assert b" 429 " in told
        assert b"retry-after: 1" in told.lower()
        assert b"may hold 100,000" in told
        assert bodies.held == LARGE
        # of another token, and without a payload, a request is taken
        assert job(served, others[0], "a", LARGE - 200).status_code == 200
        worker = served.token("worker")
        assert served.poll(token=worker)[0]["invocation_id"] == "a"
        for n, token in enumerate(others):
            lines.enter_context(begin(served, token))
            until(lambda n=n: bodies.held == (n + 2) * LARGE)
        late = lines.enter_context(begin(served, served.token("producer")))
        told = late.recv(4096)
        assert b" 503 " in told
        assert b"retry-after: 1" in told.lower()
        beat = {"invocation_id": "a", "worker_id": "w", "lease": 30}
        assert served.post("/v1/daemon/heartbeat", beat, token=worker).status_code == 200
    until(lambda: bodies.held == 0)  # the senders are gone
    assert job(served, greedy, "b", LARGE - 200).status_code == 200
    assert bodies.held == 0
    assert not bodies._of


def test_a_body_without_a_length_counts_as_it_comes(serve: Any) -> None:
    served = serve(auth=True, body_limit=100_000, held_bytes=100_000)
    token = served.token("producer")
    with begin(served, token), served.line() as second:
        until(lambda: served.app.serving.bodies.held == LARGE)
        head = f"POST {SUBMIT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        part = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
        second.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + 2 * part)
        assert b" 429 " in second.recv(4096)


def test_a_body_that_waits_for_the_store_counts_until_it_is_answered(serve: Any, monkeypatch: Any) -> None:
    served = serve(auth=True, body_limit=100_000, held_bytes=100_000)
    token, go_on = served.token("producer"), threading.Event()
    plain = serving.Serving.write

    async def slow(self: Any, verb: Any, *args: Any, **kwargs: Any) -> Any:
        def wait() -> Any:
            assert go_on.wait(10)
            return verb(*args, **kwargs)

        return await plain(self, wait)

    served.submit("warm", token=token)  # its use is noted
    monkeypatch.setattr(serving.Serving, "write", slow)
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(job(served, token, "a", LARGE)))
    first.start()
    try:
        until(lambda: served.app.serving.bodies.held > LARGE)
        assert job(served, token, "b", LARGE).status_code == 429
    finally:
        go_on.set()
        first.join(10)
    assert [each.status_code for each in answers] == [200]
    assert served.app.serving.bodies.held == 0


def test_a_body_that_brings_nothing_is_ended_and_one_that_trickles_goes_on(serve: Any) -> None:
    served = serve(auth=True, body_seconds=0.5)
    token = served.token("producer")
    with begin(served, token, size=5_000_000, sent=2_000_000) as silent:  # by its bytes it had half an hour
        began = time.monotonic()
        assert b" 408 " in silent.recv(4096)
        assert time.monotonic() - began < 5
    until(lambda: served.app.serving.bodies.held == 0)
    with begin(served, token, size=8_000, sent=0) as steady:
        for _ in range(8):
            time.sleep(0.15)
            steady.sendall(b"\x81" * 1000)
        assert b" 400 " in steady.recv(4096)  # all of it was read


def test_uploads_to_a_file_count_what_they_hold_and_end_when_silent(serve: Any, tmp_path: Any) -> None:
    served = serve(auth=True, body_limit=300_000, held_bytes=300_000, body_seconds=0.5, storage=str(tmp_path))
    token = served.token("producer")
    headers = {"Authorization": f"Bearer {token}"}
    presign = "/v1/namespaces/default/storages/files/presign"
    asked = served.http.post(presign, json={"key": "k", "operation": "put"}, headers=headers)
    url = asked.json()["url"]
    path = url.partition(served.url)[2]
    with served.line() as silent:
        silent.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n".encode())
        silent.sendall(b"x" * 300_000)
        until(lambda: served.app.serving.bodies.held > 0)
        assert served.http.put(url, content=b"y").status_code == 429
        assert b" 408 " in silent.recv(4096)
    until(lambda: served.app.serving.bodies.held == 0)
    data = b"z" * 1_000_000  # a file may be larger than what is held
    told = {"Repr-Digest": digest_header(hashlib.sha256(data).hexdigest())}
    assert served.http.put(url, content=data, headers=told).status_code == 200


@pytest.mark.parametrize(
    ("options", "all_bytes", "token_bytes"),
    [
        ({}, 512 << 20, 128 << 20),
        ({"body_limit": 1000}, 8000, 2000),
        ({"body_limit": 1000, "held_bytes": 2000}, 2000, 1000),
        ({"body_limit": 1000, "held_bytes": 1}, 1000, 1000),
    ],
)
def test_one_body_always_fits(options: dict[str, int], all_bytes: int, token_bytes: int) -> None:
    made = Options(**options)  # type: ignore[arg-type]
    assert (made.all_bytes, made.token_bytes) == (all_bytes, token_bytes)
