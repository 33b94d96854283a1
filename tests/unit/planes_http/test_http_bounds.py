"""What a client takes of an answer: not more bytes, not longer, and nothing that grows when it is read."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import Request

from lakeshore import DispatchError, HttpDispatch, PlaneUnavailable
from lakeshore.planes import http_reading
from lakeshore.planes.http_follow import Frames, Rows
from lakeshore.planes.protocol import MSGPACK, ROWS

Connect = Callable[..., HttpDispatch]
LIMIT = 100_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESHORE_MAX_PAYLOAD", str(LIMIT))
    monkeypatch.setattr(http_reading, "_SLACK", 1000)


def endless(sent: list[int]) -> Callable[[Request], None]:
    def answer(request: Request) -> None:
        request.start(MSGPACK)
        for _ in range(500):
            request.chunk(b"\0" * LIMIT)
            sent.append(LIMIT)

    return answer


@pytest.mark.parametrize("awaited", [False, True])
def test_an_endless_answer_is_given_up(field: Field, connect: Connect, awaited: bool) -> None:
    sent: list[int] = []
    field.script["await"] = [endless(sent)] * 3
    plane = connect(field)
    with pytest.raises(PlaneUnavailable, match=r"more than 101,000 bytes: see LAKESHORE_MAX_PAYLOAD"):
        wait(plane, awaited)
    assert len(field.posts("await")) == 1
    assert sum(sent) < 400 * LIMIT


def wait(plane: HttpDispatch, awaited: bool) -> None:
    if not awaited:
        plane.result("a", timeout=5)
        return
    import asyncio

    asyncio.run(plane.native_async.result("a", timeout=5))


def test_an_answer_to_a_claim_of_many_may_have_many_payloads(field: Field, connect: Connect) -> None:
    body = {"invocation_id": "a", "args_blob": b"x" * (LIMIT - 100)}
    commands = [{"kind": "run", "body": {**body, "invocation_id": id}} for id in "abc"]
    field.script["poll"] = [lambda request: request.send({"commands": commands})] * 2
    plane = connect(field)
    assert len(plane.claim_many("gpu", "w", 3)) == 3
    with pytest.raises(PlaneUnavailable, match="more than 101,000 bytes"):
        plane.claim("gpu", "w")


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "gzip, gzip"])
def test_a_compressed_answer_is_not_inflated(
    field: Field, connect: Connect, awaited: bool, coding: str
) -> None:
    bomb = gzip.compress(msgpack.packb({"state": "succeeded", "result_blob": bytes(50_000_000)}))

    def answer(request: Request) -> None:
        assert request.headers["accept-encoding"] == "identity"
        request.reply(200, bomb, {"content-encoding": coding})

    field.script["await"] = [answer]
    with pytest.raises(PlaneUnavailable, match=rf"compressed \({coding}\), which was not asked for"):
        wait(connect(field), awaited)


@contextmanager
def dripping(lines: Iterator[bytes]) -> Iterator[str]:
    """Serve headers that come one after another and never end."""
    stop = threading.Event()

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.recv(65536)
                    for line in lines:
                        peer.sendall(line)
                        if stop.wait(0.05):
                            return
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def headers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for n in range(10_000):
        yield b"X-%d: y\r\n" % n


@pytest.mark.parametrize(
    "ask",
    [
        lambda plane: plane.get("a"),
        lambda plane: plane.submit("gpu", b"e", id="a"),
        lambda plane: list(plane.journal_read("a", timeout=0.5)),
    ],
)
def test_headers_that_drip_are_given_up(connect: Connect, ask: Callable[[HttpDispatch], Any]) -> None:
    with dripping(headers()) as url:
        began = time.monotonic()
        with pytest.raises(Exception, match="too slowly|timed out|no frame of"):
            ask(connect(url, timeout=0.5))
        assert time.monotonic() - began < 4


def rows(*items: object) -> bytes:
    return b"".join(msgpack.packb(item) for item in items)


def test_rows_are_read_as_they_come() -> None:
    reader, data = Rows(), rows([0, b"a"], None, [1, b"x" * LIMIT], [2**40, b""])
    parts = [data[start : start + 7] for start in range(0, len(data), 7)]
    assert [row for part in parts for row in reader.feed(part)] == [
        (0, b"a"),
        (1, b"x" * LIMIT),
        (2**40, b""),
    ]
    assert not reader.partial


@pytest.mark.parametrize(
    "data",
    [
        rows([0, [b"a", b"b"]]),
        rows([0, "text"]),
        rows([0, {}]) + b"\x80" * 100,
        rows([0, {"a": 1}]),
        rows(["0", b""]),
        rows([b"a"]),
        rows([1, 2, 3]),
        rows(7),
        rows({}),
        rows(""),
        b"\x92" * 2000,
        b"\x92\x00" * 2000,
        b"\xdd\xff\xff\xff\xff" + b"\x80" * 1000,
        b"\x92\x00\xdd\xff\xff\xff\xff" + b"\x80" * 1000,
        b"\xdf\xff\xff\xff\xff" + b"\x80" * 1000,
        b"\xc7\xff\x01" + b"x" * 255,
        b"\xc1",
    ],
)
def test_what_are_no_rows_is_refused_before_it_is_built(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(Rows().feed(data))


@pytest.mark.parametrize("reader", [Rows, Frames])
def test_a_row_that_does_not_end_is_given_up(reader: Callable[[], Rows | Frames]) -> None:
    one = reader()
    head = (b"\x92\x00" if reader is Rows else b"\x94\x00\x00") + b"\xc6\x7f\xff\xff\xff"
    with pytest.raises(ValueError, match="more bytes than LAKESHORE_MAX_PAYLOAD"):
        for _ in range(400):
            assert not list(one.feed(head + b"\0" * LIMIT))
            head = b""


@pytest.mark.parametrize("code", [200, 400, 403, 409])
def test_control_characters_of_an_answer_are_shown(field: Field, connect: Connect, code: int) -> None:
    body = msgpack.packb({"error": {"message": "see \x1b]0;evil\x07 \u202egpj é"}})
    field.script["submit"] = [lambda request: request.reply(code, body, {"content-type": "text/plain"})]
    with pytest.raises(DispatchError, match=r"see \\+x1b]0;evil\\+x07 \\+u202egpj é") as caught:
        connect(field).submit("gpu", b"e", id="a")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("row", [{"state": ["x"]}, {"id": "a", "state": 5}, {"id": "b", "state": "queued"}])
def test_a_row_that_is_none_is_said(field: Field, connect: Connect, row: dict[str, Any]) -> None:
    plane, ours = connect(field), {"lakeshore-protocol": "1"}
    field.script["await"] = [lambda request: request.send({"state": "queued"}, ours)]
    assert plane._is_ours("get")
    field.script["a"] = [lambda request: request.send(row, ours)]
    with pytest.raises(PlaneUnavailable, match="not as a control plane does"):
        plane.get("a")


def test_a_stream_of_something_else_is_said(field: Field, connect: Connect) -> None:
    def answer(request: Request) -> None:
        request.start(ROWS)
        request.chunk(b"\x92\x00\xdd\x00\xff\xff\xff" + b"\x80" * 1000)
        request.finish()

    field.script["stream"] = [answer]
    with pytest.raises(PlaneUnavailable, match="max_array_len"):
        list(connect(field).journal_read("a", timeout=2))


def test_a_large_answer_that_is_none_is_shown_by_its_beginning(field: Field, connect: Connect) -> None:
    secret = "lsk_not_to_be_seen_anywhere"
    spaces = 64 * 1024 - len("<html>") - len(secret) // 2
    page = b"<html>" + b" " * spaces + secret.encode() + b"\0" * 20_000
    field.script["await"] = [lambda request: request.reply(200, page, {"content-type": "text/html"})]
    with pytest.raises(PlaneUnavailable, match="text/html.*<html>") as told:
        connect(field, token=secret).result("a", timeout=5)
    assert "lsk_" not in str(told.value)
    assert len(str(told.value)) < 1000
