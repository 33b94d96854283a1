"""Reading a journal through cuts, keep-alives, silence and garbage: each frame once, in order, to the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import msgpack
import pytest
from unit.planes_http.field import Field, frame
from unit.planes_http.loopback import Request, Step, drop, status, stream
from unit.planes_http.ours import OURS, Ours

from lakeshore import (
    DispatchError,
    HttpDispatch,
    InvocationFailed,
    PlaneUnavailable,
    SyncQueue,
    WaitTimeout,
    wire,
)
from lakeshore.planes.protocol import FRAMES, KEEPALIVE, ROWS, row_item

Connect = Callable[..., HttpDispatch]
VALUES = [None, "v", 7, {"k": b"\x94\x00"}]
PLAIN = [frame(i, value) for i, value in enumerate(VALUES)] + [wire.end_frame(len(VALUES))]


def serve(parts: list[bytes], encode: Callable[[int, bytes], bytes], media: str, cut_at: int | None) -> Step:
    """Answer with what comes after `since`, one chunk a row, cut at that byte of the body."""

    def step(request: Request) -> None:
        since = int(request.query["since"])
        body = b"".join(encode(seq, data) for seq, data in enumerate(parts) if seq > since)
        request.start(media)
        if cut_at is None or cut_at >= len(body):
            request.chunk(body)
            request.finish()
        else:
            request.chunk(body[:cut_at])
            request.cut()

    return step


@pytest.mark.parametrize("media", [FRAMES, ROWS])
def test_a_cut_at_every_byte(field: Field, connect: Connect, media: str) -> None:
    encode = row_item if media == ROWS else (lambda seq, data: data)
    length = sum(len(encode(seq, data)) for seq, data in enumerate(PLAIN))
    plane = connect(field)
    field.rows["a"] = {"state": "running"}
    for offset in range(length):
        field.script["stream"] = [serve(PLAIN, encode, media, offset), serve(PLAIN, encode, media, None)]
        assert list(plane.journal_read("a", timeout=10)) == list(enumerate(PLAIN)), offset


@pytest.mark.parametrize("media", [FRAMES, ROWS])
def test_a_cut_after_every_row_again_and_again(field: Field, connect: Connect, media: str) -> None:
    encode = row_item if media == ROWS else (lambda seq, data: data)
    first = len(encode(0, PLAIN[0]))
    field.rows["a"] = {"state": "running"}
    field.script["stream"] = [serve(PLAIN, encode, media, first + 1) for _ in PLAIN] + [
        serve(PLAIN, encode, media, None)
    ]
    assert list(connect(field).journal_read("a", timeout=10)) == list(enumerate(PLAIN))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_chunks_of_any_size(field: Field, connect: Connect, size: int) -> None:
    body = b"".join(PLAIN)
    field.script["stream"] = [stream(*(body[i : i + size] for i in range(0, len(body), size)))]
    assert list(connect(field).journal_read("a")) == list(enumerate(PLAIN))


def test_frames_that_were_seen_are_not_seen_again(field: Field, connect: Connect) -> None:
    """A server that ignores the cursor."""
    field.script["stream"] = [stream(*PLAIN[:3], cut=True), stream(*PLAIN)]
    assert list(connect(field).journal_read("a")) == list(enumerate(PLAIN))


def test_the_seq_in_the_header_is_the_row_s(field: Field, connect: Connect) -> None:
    field.script["stream"] = [stream(wire.reseq(PLAIN[0], 70_000), wire.reseq(PLAIN[-1], 2**40))]
    assert [seq for seq, _ in connect(field).journal_read("a")] == [70_000, 2**40]


def test_gateway_errors_before_and_between(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "running"}
    field.script["stream"] = [
        status(503),
        drop,
        stream(PLAIN[0], cut=True),
        status(502, b"<html>"),
        status(429),
        stream(),
        stream(*PLAIN[1:]),
    ]
    assert list(connect(field).journal_read("a", timeout=20)) == list(enumerate(PLAIN))


def test_a_plain_body_s_stream_ends_with_its_row(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "running"}

    def last(request: Request) -> None:
        field.rows["a"] = {"state": "killed"}
        request.start()
        request.finish()

    field.script["stream"] = [stream(PLAIN[0]), last, stream(PLAIN[1]), stream()]
    assert list(connect(field).journal_read("a", timeout=20)) == list(enumerate(PLAIN[:2]))


def test_an_error_frame_is_raised_after_the_values(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "failed", "error": {"type": "KeyError", "message": "x"}}
    field.script["stream"] = [stream(PLAIN[0], wire.error_frame(1, type="KeyError", message="x"))]
    values = SyncQueue("gpu", dispatch=connect(field)).stream("a")
    assert next(values) is None
    with pytest.raises(InvocationFailed, match="KeyError: x"):
        next(values)


def test_a_frame_restarts_the_clock_and_a_keepalive_does_not(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)

    def post() -> None:
        for n in range(4):
            time.sleep(0.25)
            ours.plane.journal_append("t", n, b"x")

    thread = threading.Thread(target=post)
    thread.start()
    began, seen = time.monotonic(), []
    with pytest.raises(WaitTimeout, match=r"no frame of 't' within 0.5 s.*since=3"):
        for seq, _ in plane.journal_read("t", timeout=0.5):
            seen.append(seq)
    thread.join()
    assert seen == [0, 1, 2, 3]
    assert 1.4 < time.monotonic() - began < 2.2


def test_a_slow_frame_is_awaited_while_its_bytes_come(field: Field, connect: Connect) -> None:
    large = frame(0, b"x" * 1000)

    def slowly(request: Request) -> None:
        request.start()
        for i in range(0, len(large), 100):
            request.chunk(large[i : i + 100])
            time.sleep(0.06)
        request.chunk(wire.end_frame(1))
        request.finish()

    field.script["stream"] = [slowly]
    assert [seq for seq, _ in connect(field).journal_read("a", timeout=0.3)] == [0, 1]


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "frames"])
def test_timeout_0_yields_what_is_there(ours: Ours, connect: Connect, rows: bool) -> None:
    plane, ours.rows = connect(ours), rows
    for n in range(3):
        ours.plane.journal_append("t", None, frame(n, n))
    read, seen = plane.journal_read("t", timeout=0), []
    began = time.monotonic()
    with pytest.raises(WaitTimeout):
        for seq, _ in read:
            seen.append(seq)
    assert seen == [0, 1, 2]
    assert time.monotonic() - began < 0.5
    ours.plane.journal_append("t", None, b"raw and final", final=True)
    assert [seq for seq, _ in plane.journal_read("t", since=1, timeout=0)] == [2, 3]
    assert list(plane.journal_read("t", since=3, timeout=0)) == []


def test_timeout_0_of_a_finished_row(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    plane.submit("gpu", b"e", id="a")
    with pytest.raises(WaitTimeout):
        list(plane.journal_read("a", timeout=0))
    plane.cancel("a")
    assert list(plane.journal_read("a", timeout=0)) == []
    assert list(plane.journal_read("a.log", timeout=5)) == []


def test_timeout_0_of_a_server_that_holds(field: Field, connect: Connect) -> None:
    def hold(request: Request) -> None:
        request.start()
        request.chunk(PLAIN[0])
        field.stopping.wait(10)

    field.script["stream"] = [hold]
    seen = []
    with pytest.raises(WaitTimeout):
        for seq, _ in connect(field).journal_read("a", timeout=0):
            seen.append(seq)
    assert seen == [0]


def test_timeout_0_of_a_server_that_is_away(connect: Connect) -> None:
    with Field() as server:
        pass
    with pytest.raises(PlaneUnavailable, match="does not answer"):
        list(connect(server, timeout=0.3).journal_read("a", timeout=0))


def test_frames_end_a_topic_whatever_they_are(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    ours.plane.journal_append("t", None, b"one")
    threading.Timer(0.2, lambda: ours.plane.journal_append("t", None, b"two", final=True)).start()
    assert list(plane.journal_read("t", timeout=5)) == [(0, b"one"), (1, b"two")]


def test_an_unknown_id_waits_as_a_topic_does(field: Field, connect: Connect) -> None:
    field.script["stream"] = [status(404, b"unknown")] * 50
    with pytest.raises(WaitTimeout):
        list(connect(field).journal_read("a", timeout=0.4))
    assert len(field.gets("/stream")) < 12


@pytest.mark.parametrize(
    "answer",
    [
        stream(b"\xc1\xc1\xc1"),
        stream(b"\x93\x00\x00\x00"),
        stream(b"<html>it was fine a minute ago"),
        stream(b"\xc1", media=ROWS),
        stream(msgpack.packb([1, 2, 3]), media=ROWS),
        stream(msgpack.packb(["0", b""]), media=ROWS),
        stream(msgpack.packb([0, "text"]), media=ROWS),
        stream(b"\xa2\xff\xff", media=ROWS),
        stream(msgpack.packb([0, b""]), media="text/html"),
        status(200, b"hello", content_type="text/plain"),
        status(404, b"<html>default backend</html>", content_type="text/html"),
    ],
)
def test_garbage_is_no_stream(field: Field, connect: Connect, answer: Callable[[Request], None]) -> None:
    field.script["stream"] = [answer]
    with pytest.raises(PlaneUnavailable, match="is no control plane, or something stands before it"):
        list(connect(field).journal_read("a", timeout=2))


def test_garbage_after_frames_is_a_cut(field: Field, connect: Connect) -> None:
    field.script["stream"] = [stream(PLAIN[0], b"<html>upstream timed out</html>"), stream(*PLAIN[1:])]
    assert list(connect(field).journal_read("a", timeout=5)) == list(enumerate(PLAIN))


def test_401_and_403_are_told(field: Field, connect: Connect) -> None:
    field.script["stream"] = [status(403, b"not yours")]
    with pytest.raises(DispatchError, match="403, .*: not yours"):
        list(connect(field).journal_read("a", timeout=2))


def test_keepalives_are_no_rows(field: Field, connect: Connect) -> None:
    rows = [KEEPALIVE + row_item(seq, data) + KEEPALIVE for seq, data in enumerate(PLAIN)]
    field.script["stream"] = [stream(*rows, media=ROWS)]
    assert list(connect(field).journal_read("a")) == list(enumerate(PLAIN))


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "frames"])
def test_cut_at_a_hundred_offsets(ours: Ours, connect: Connect, rows: bool) -> None:
    """The real server's stream of a job with a retry, cut anywhere: each frame once, in order."""
    plane, ours.rows, chance = connect(ours, timeout=30), rows, random.Random(7)
    ours.plane.submit("gpu", b"e", id="a")
    for attempt in (1, 2):
        ours.plane.claim("gpu", "w")
        values = [b"x" * chance.choice((0, 10, 100, 300)) for _ in range(600)]
        ours.plane.journal_extend(
            "a", [wire.Frame(wire.FrameKind.VALUE, 0, each).to_bytes() for each in values]
        )
        if attempt == 1:
            ours.plane.nack("a", "w", error="E")
    ours.plane.ack("a", "w", frame=wire.end_frame(0))
    want = list(ours.plane.journal_read("a", since=0))
    if not rows:  # as to a client in the field: the row's seq in each header, no boundary of attempts
        want = [(seq, wire.reseq(data, seq)) for seq, data in want if seq != 600]
    ours.cuts = [chance.choice((7, *[chance.randrange(1, 2000)] * 9)) for _ in range(100)]
    assert list(plane.journal_read("a", since=0, timeout=30)) == want
    assert ours.cuts == []


def test_the_two_readings_agree_on_a_real_job(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    plane.submit("gpu", b"e", id="a")
    assert plane.claim("gpu", "w", lease=0)
    plane.journal_append("a", None, frame(0, "first"), worker_id="w", fence=1)
    assert plane.claim("gpu", "w")
    plane.journal_append("a", None, frame(0, "second"), worker_id="w", fence=2)
    plane.ack("a", "w", fence=2, frame=wire.end_frame(1))
    whole = list(plane.journal_read("a", since=0))
    assert [wire.Frame.from_bytes(data).kind.name for _, data in whole] == ["BEGIN", "VALUE", "END"]
    ours.rows = False
    plain = list(plane.journal_read("a", since=0))
    assert [seq for seq, _ in plain] == [seq for seq, _ in whole][1:]
    assert [wire.Frame.from_bytes(data).seq for _, data in plain] == [2, 3]
    assert list(SyncQueue("gpu", dispatch=plane).stream("a")) == ["second"]


def test_a_reader_that_stops_early_gives_its_connection_up(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    for n in range(3):
        ours.plane.journal_append("t", None, frame(n, n))
    for _ in range(5):
        read = plane.journal_read("t", timeout=5)
        assert next(read)[0] == 0
        read.close()  # type: ignore[attr-defined]
    assert plane.count("gpu") == 0


def test_a_large_frame_passes(ours: Ours, connect: Connect) -> None:
    plane, data = connect(ours), b"x" * 5_000_000
    plane.journal_append("t", None, data, final=True)
    assert list(plane.journal_read("t")) == [(0, data)]


def test_a_protocol_literal_server_without_the_finished_header(ours: Ours, connect: Connect) -> None:
    """The page's rules alone: the row's state ends the read."""
    plane = connect(ours)
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w")
    plane.journal_append("a", None, frame(0, "v"), worker_id="w", fence=1)
    plane.ack("a", "w")

    def literal(request: Request) -> None:
        request.start(ROWS, OURS)
        for seq, data in ours.plane.journal_read("a", since=int(request.query["since"])):
            request.chunk(row_item(seq, data))
        request.finish()

    ours.script["stream"] = [literal] * 3
    assert [seq for seq, _ in plane.journal_read("a", timeout=5)] == [0]
    assert len(ours.gets("/stream")) == 2
