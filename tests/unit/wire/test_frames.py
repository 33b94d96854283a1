"""Frames, their reader and the assembler: cut anywhere, chunked, damaged."""

import random
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same import nested, round_trip

from lakeshore.errors import PackError, UnpackError
from lakeshore.wire import (
    CHUNK_SIZE,
    MAX_DEPTH,
    Assembler,
    Event,
    Frame,
    FrameKind,
    FrameReader,
    attempt_frame,
    end_frame,
    error_frame,
    pack,
    reseq,
    value_frames,
)

VALUE, CHUNK, BEGIN, END, ERROR = FrameKind
BIG = bytes(range(256)) * (10 * 1024)  # 2.5 MiB: three chunks


def raw(*parts):
    return msgpack.packb(list(parts))


def test_kinds_and_which_are_terminal():
    assert [int(kind) for kind in FrameKind] == [0, 1, 2, 3, 4]
    assert [kind for kind in FrameKind if kind.terminal] == [END, ERROR]


@given(
    st.sampled_from(FrameKind),
    st.integers(0, 2**63 - 1),
    st.none() | st.dictionaries(st.text(), st.integers(-9, 9)),
)
def test_goes_round(kind, seq, meta):
    frame = Frame(kind, seq, ("body", 1), meta)
    assert Frame.from_bytes(frame.to_bytes()) == frame


def test_ready_made_frames():
    assert Frame.from_bytes(attempt_frame(7, 2)) == Frame(BEGIN, 7, None, {"attempt": 2})
    assert Frame.from_bytes(end_frame(8)) == Frame(END, 8, None, {"state": "succeeded"})
    meta = {"type": "ValueError", "message": "no", "traceback": None}
    assert Frame.from_bytes(error_frame(9, type="ValueError", message="no")) == Frame(ERROR, 9, None, meta)
    assert Frame.from_bytes(error_frame(0, type="E", message="\udc80", traceback="t")).meta["message"] == "?"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        raw(),
        raw(0, 0, None),
        raw(0, 0, None, None, None),
        raw(5, 0, None, None),
        raw(-1, 0, None, None),
        raw(True, 0, None, None),
        raw("0", 0, None, None),
        raw(0, -1, None, None),
        raw(0, 2**63, None, None),
        raw(0, None, None, None),
        raw(0, 0, None, []),
        raw(0, 0, None, None) + b"\0",
        raw(0, 0, msgpack.ExtType(1, b""), None),
    ],
    ids=lambda data: data.hex(),
)
def test_what_is_no_frame(data):
    with pytest.raises(UnpackError):
        Frame.from_bytes(data)


@pytest.mark.parametrize(
    "frame", [Frame(VALUE, -1), Frame(VALUE, 2**63), Frame(VALUE, True), Frame(VALUE, 0, None, [])]
)
def test_what_cannot_be_a_frame(frame):
    with pytest.raises(PackError):
        frame.to_bytes()


def test_a_body_may_be_as_deep_as_a_value():
    deepest = nested(MAX_DEPTH, lambda v: [v])
    assert Frame.from_bytes(value_frames(deepest)[0]).body == round_trip(deepest)


def test_repr_is_short():
    assert repr(Frame(CHUNK, 3, b"x" * 10**6)) == "Frame(CHUNK, 3, <1000000 bytes>)"
    assert len(repr(Frame(VALUE, 3, ["x" * 10**6] * 10**4, {"a": "y" * 10**6}))) < 2000


def test_reseq_changes_the_header_alone():
    for frame in (*value_frames({"a": np.arange(3)}, 300), end_frame(2**40)):
        for seq in (0, 127, 128, 2**33, 2**63 - 1):
            assert (
                reseq(frame, seq)
                == Frame(Frame.from_bytes(frame).kind, seq).to_bytes()[:2]
                + msgpack.packb(seq)
                + (frame[2 + len(msgpack.packb(Frame.from_bytes(frame).seq)) :])
            )
    for wrong in (b"", b"\x93\0\0\0", b"\x94\x09\0\0\0", b"\x94\0", b"xyz"):
        with pytest.raises(UnpackError):
            reseq(wrong, 1)


# ---- FrameReader


STREAM = [*value_frames({"a": (1, 2)}), attempt_frame(1, 2), *value_frames("é" * 1000, 2), end_frame(3)]


def test_reader_takes_any_cut():
    data, frames = b"".join(STREAM), [Frame.from_bytes(frame) for frame in STREAM]
    for size in (1, 2, 3, 7, 100, len(data)):
        reader = FrameReader()
        got = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
        assert got == frames


@given(st.randoms(use_true_random=False))
def test_reader_takes_random_cuts(dice):
    data = b"".join(STREAM) * 2
    cuts = sorted({0, len(data), *(dice.randrange(len(data)) for _ in range(9))})
    reader = FrameReader()
    got = [frame for a, b in zip(cuts, cuts[1:]) for frame in reader.feed(memoryview(data)[a:b])]
    assert got == [Frame.from_bytes(frame) for frame in STREAM] * 2


def test_pending_tells_of_a_cut():
    reader = FrameReader()
    reader.feed(STREAM[0] + STREAM[1][:3])
    assert reader.pending == 3
    reader.feed(STREAM[1][3:])
    assert reader.pending == 0


def test_reader_is_linear_in_small_pieces():
    big = value_frames(b"x" * (CHUNK_SIZE - 10))[0]
    reader = FrameReader()
    got = [frame for at in range(0, len(big), 64) for frame in reader.feed(big[at : at + 64])]
    assert [frame.body for frame in got] == [b"x" * (CHUNK_SIZE - 10)]


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"hello", b"\xc1", b"\x94\xc1", b"\x94\x09\0\xc0\xc0", b"\x94" * 3000, b"\x94\0\0\xa1\xff\xc0"],
)
def test_reader_refuses_what_is_no_stream_and_stays_refused(data):
    reader = FrameReader()
    with pytest.raises(UnpackError):
        reader.feed(data)
    with pytest.raises(UnpackError):
        reader.feed(end_frame(0))


def test_reader_gives_the_whole_frames_before_the_damage():
    reader = FrameReader()
    assert len(reader.feed(b"".join(STREAM) + b"\x00")) == len(STREAM)
    with pytest.raises(UnpackError):
        reader.feed(b"")


def test_reader_bounds_memory_on_lengths_that_lie():
    for head in (
        b"\x94\0\0\xdd\xff\xff\xff\xff",
        b"\x94\0\0\xc6\xff\xff\xff\xff",
        b"\x94\0\0\xdf\xff\xff\xff\xff",
    ):
        reader = FrameReader(max_frame_bytes=1 << 16)
        tracemalloc.start()
        assert reader.feed(head) == []
        with pytest.raises(UnpackError, match="limit"):
            for _ in range(100):
                reader.feed(b"\0" * 4096)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
        tracemalloc.stop()


# ---- values in chunks


def assemble(frames):
    assembler = Assembler()
    return [event for frame in frames if (event := assembler.feed(frame)) is not None]


def test_a_small_value_is_one_frame():
    assert value_frames({"x": 1}, 5) == [Frame(VALUE, 5, {"x": 1}).to_bytes()]
    assert len(value_frames(b"x" * (CHUNK_SIZE - 5))) == 1


def test_a_big_value_travels_in_chunks():
    frames = value_frames(BIG, 10)
    parts = [Frame.from_bytes(frame) for frame in frames]
    assert [part.kind for part in parts] == [BEGIN, CHUNK, CHUNK, CHUNK]
    assert [part.seq for part in parts] == [10, 11, 12, 13]
    assert parts[0].meta == {"total": len(pack(BIG))}
    assert max(len(part.body) for part in parts[1:]) == CHUNK_SIZE
    assert assemble(frames) == [Event("value", BIG)]


def test_open_tells_of_an_unfinished_run():
    assembler = Assembler()
    opened = []
    for frame in value_frames(BIG):
        assembler.feed(frame)
        opened.append(assembler.open)
    assert opened == [True, True, True, False]


def test_limit():
    with pytest.raises(PackError, match=r"run\.write"):
        value_frames(BIG, limit=CHUNK_SIZE)


def test_a_whole_journal():
    frames = [
        *value_frames(1),
        *value_frames(BIG, 1),
        attempt_frame(5, 2),
        *value_frames(None, 6),
        end_frame(7),
    ]
    events = assemble(frames)
    assert [event.kind for event in events] == ["value", "value", "attempt", "value", "end"]
    assert [event.value for event in events] == [1, BIG, None, None, None]
    assert events[2].meta == {"attempt": 2}
    assert assemble([error_frame(0, type="E", message="m")])[0].meta["message"] == "m"


@pytest.mark.parametrize(
    "cut", [end_frame(2), error_frame(2, type="E", message=""), *value_frames(1, 2), value_frames(BIG)[0]]
)
def test_a_run_cut_short_is_an_error(cut):
    assembler = Assembler()
    for frame in value_frames(BIG)[:2]:
        assembler.feed(frame)
    with pytest.raises(UnpackError, match="cut"):
        assembler.feed(cut)
    assert not assembler.open


def test_a_run_cut_by_another_attempt_is_dropped():
    frames = [*value_frames(BIG)[:2], attempt_frame(2, 2), *value_frames(BIG, 3)]
    assert [event.kind for event in assemble(frames)] == ["attempt", "value"]


@pytest.mark.parametrize(
    "frames",
    [
        [raw(CHUNK, 0, b"x", None)],
        [raw(BEGIN, 0, None, {"total": 3}), raw(CHUNK, 1, b"xxxx", None)],
        [raw(BEGIN, 0, None, {"total": 3}), raw(CHUNK, 1, b"", None)],
        [raw(BEGIN, 0, None, {"total": 3}), raw(CHUNK, 1, "x", None)],
        [raw(BEGIN, 0, None, {"total": 2}), raw(CHUNK, 1, b"\xc1\xc1", None)],
        *([raw(BEGIN, 0, None, {"total": total})] for total in (0, -1, 1.5, None, "3", True)),
    ],
)
def test_damaged_runs(frames):
    with pytest.raises(UnpackError):
        assemble(frames)


def test_after_a_gap_the_rest_of_a_run_is_passed_over():
    assembler = Assembler()
    assembler.gap()
    frames = [*value_frames(BIG)[2:], *value_frames(1), *value_frames(BIG)]
    assert [event.value for frame in frames if (event := assembler.feed(frame))] == [1, BIG]
    with pytest.raises(UnpackError):
        assembler.feed(value_frames(BIG)[2])


def test_damaged_frames_of_every_kind():
    dice = random.Random(1)
    frames = [*STREAM, value_frames(BIG)[0], error_frame(1, type="E", message="m", traceback="t")]
    for _ in range(3000):
        data = bytearray(dice.choice(frames))
        data[dice.randrange(min(len(data), 40))] = dice.randrange(256)
        for decode in (Assembler().feed, FrameReader().feed):
            try:
                decode(bytes(data))
            except UnpackError:
                pass
