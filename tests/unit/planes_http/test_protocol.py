"""The protocol's own words: paths that cannot climb, bodies both ways, errors as statuses."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore import (
    ClaimLost,
    DispatchError,
    NotSupported,
    PlaneUnavailable,
    Submission,
    UnknownInvocation,
    wire,
)
from lakeshore.planes import protocol, protocol_commands
from lakeshore.planes.contract import Claimed, ClaimSpec

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60)


@given(NAMES)
def test_a_name_is_one_segment(name: str) -> None:
    if name in (".", ".."):
        with pytest.raises(ValueError, match="cannot be part of a URL"):
            protocol.STREAM.path(ns="n", id=name)
        return
    segments = protocol.STREAM.path(ns="n", id=name).split("/")
    assert segments[:6] == ["", "v1", "namespaces", "n", "producer", "invocations"]
    assert len(segments) == 9
    assert unquote(segments[6]) == name
    assert segments[6].isascii()


@given(
    st.binary(max_size=50),
    st.none() | NAMES,
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.just("p"),
    st.floats(0, 1e6),
)
def test_a_submission_both_ways(
    envelope: bytes, key: str | None, priority: float, parent: str | None, delay: float
) -> None:
    item = Submission(envelope=envelope, id="a", key=key, priority=priority, parent=parent, delay=delay)
    body = protocol.unpack(protocol.pack(protocol.submit_body("q", item)))
    assert protocol.read_submission(body) == ("q", item)


def test_a_submission_of_the_field() -> None:
    body = {"invocation_id": "a", "queue": "q", "args_blob": b"e", "run_config": {"host_key": "x"}, "new": 1}
    assert protocol.read_submission(body) == ("q", Submission(envelope=b"e", id="a"))
    for name in ("invocation_id", "args_blob", "queue"):
        with pytest.raises(ValueError, match=name):
            protocol.read_submission({**body, name: None})


def test_what_is_shown_of_a_job() -> None:
    fn = {"kind": "ref", "module": "m", "qualname": "train", "src_hash": None}
    nested = {"args": wire.pack([]), "kwargs": wire.pack({})}
    plain = wire.Envelope(id="a", fn=fn, **nested)
    named = wire.Envelope(id="a", fn=fn, cfg={"name": "epoch 1", "code": {"digest": "d"}}, **nested)
    shown = []
    for envelope in (plain, named):
        body = protocol.submit_body("q", Submission(envelope=envelope.to_bytes(), id="a"))
        shown.append((body["function"], body["code_context"]))
    assert shown == [("train", {}), ("epoch 1", {"digest": "d"})]


def test_a_command_both_ways() -> None:
    claimed = Claimed("a", b"e", 2, "q", 3, 12.5)
    assert protocol_commands.read_commands(
        {"commands": [protocol.command(claimed), {"kind": "other"}]}, "?"
    ) == [claimed]
    spec = ClaimSpec("q", "filo", 0.5, 9.0)
    assert protocol.read_spec(protocol.spec_body(spec), 30.0) == spec
    assert protocol.read_spec({"queue": "q"}, 60.0) == ClaimSpec("q", lease=60.0)
    for broken in ([1], [{"kind": "run"}], [{"kind": "run", "body": {"invocation_id": 1}}]):
        with pytest.raises(ValueError, match="commands|body|invocation_id"):
            protocol_commands.read_commands({"commands": broken}, "q")


@pytest.mark.parametrize(
    ("error", "status", "raised"),
    [
        (ValueError("queue: wants"), 400, DispatchError),
        (ClaimLost("gone"), 409, ClaimLost),
        (UnknownInvocation("who"), 404, UnknownInvocation),
        (DispatchError("taken"), 409, DispatchError),
        (PlaneUnavailable("locked"), 503, PlaneUnavailable),
        (NotSupported("old"), 404, NotSupported),
        (RuntimeError("bug"), 500, PlaneUnavailable),
    ],
)
def test_errors_as_statuses_and_back(error: Exception, status: int, raised: type[Exception]) -> None:
    code, body = protocol.error_answer(error)
    assert code == status
    assert body["error"]["message"] == str(error)
    assert protocol.error_class(code, body["error"]["code"]) is raised


def test_rows_as_plain_frames() -> None:
    value = wire.Frame(wire.FrameKind.VALUE, 0, {"k": 1}).to_bytes()
    assert wire.Frame.from_bytes(protocol.frame_item(9, value) or b"") == wire.Frame(
        wire.FrameKind.VALUE, 9, {"k": 1}
    )
    assert wire.Frame.from_bytes(protocol.frame_item(9, b"raw") or b"") == wire.Frame(
        wire.FrameKind.VALUE, 9, b"raw"
    )
    assert protocol.frame_item(9, wire.attempt_frame(0, 2)) is None
    begin = wire.Frame(wire.FrameKind.BEGIN, 0, None, {"total": 5}).to_bytes()
    assert wire.Frame.from_bytes(protocol.frame_item(9, begin) or b"").meta == {"total": 5}
