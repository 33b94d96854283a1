"""The envelope: versions, defaults, unknown keys, and what is not one."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore.errors import PackError, UnpackError
from lakeshore.wire import WIRE_VERSION, Envelope, pack

REF = {"kind": "ref", "module": "m", "qualname": "f", "src_hash": None}


def envelope(**changes):
    return Envelope(**{"id": "i", "fn": REF, "args": pack([]), "kwargs": pack({}), **changes})


def table(**changes):
    return {**msgpack.unpackb(envelope().to_bytes()), **changes}


@given(
    st.text(),
    st.none() | st.text(),
    st.dictionaries(st.text(), st.none() | st.integers(0, 9) | st.floats(allow_nan=False)),
    st.binary(),
)
def test_goes_round(prefix, key, cfg, blob):
    sent = envelope(
        prefix=prefix, key=key, cfg=cfg, parent=key, args=blob, fn={"kind": "pickle", "blob": blob}
    )
    assert Envelope.from_bytes(sent.to_bytes()) == sent


def test_keys_stand_in_the_order_of_the_contract():
    assert list(table()) == ["v", "id", "fn", "args", "kwargs", "prefix", "key", "cfg", "parent"]
    assert table()["v"] == WIRE_VERSION == 1


def test_unknown_keys_are_left_out_and_missing_ones_take_defaults():
    raw = table(novelty=msgpack.ExtType(1, b"not an array"), v=1)
    for name in ("prefix", "key", "cfg", "parent"):
        del raw[name]
    assert Envelope.from_bytes(msgpack.packb(raw)) == envelope()
    assert Envelope.from_bytes(msgpack.packb(table(prefix=None, cfg=None))) == envelope()


@pytest.mark.parametrize("v", [0, -1, None, "1", True, 1.0])
def test_what_is_no_version_is_no_envelope(v):
    with pytest.raises(UnpackError, match="not an envelope"):
        Envelope.from_bytes(msgpack.packb(table(v=v)))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc0", b"\x90", b"\x80", b"\x81\xa1v", b"\xff\xff", pack({"a": 1}), pack((1,))]
)
def test_other_bytes_are_no_envelope(raw):
    with pytest.raises(UnpackError, match="not an envelope"):
        Envelope.from_bytes(raw)


def test_a_newer_version_names_both_and_the_way():
    with pytest.raises(UnpackError, match=r"version 7.*version 1.*[Uu]pgrade"):
        Envelope.from_bytes(msgpack.packb({"v": 7, "whatever": 1}))


@pytest.mark.parametrize("name", ["id", "fn", "args", "kwargs"])
def test_required_fields(name):
    raw = table()
    del raw[name]
    with pytest.raises(UnpackError, match=name):
        Envelope.from_bytes(msgpack.packb(raw))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("id", 1),
        ("id", b"x"),
        ("fn", []),
        ("args", "x"),
        ("kwargs", {}),
        ("prefix", 1),
        ("key", 1),
        ("cfg", []),
        ("parent", 1),
    ],
)
def test_wrong_types_are_refused_both_ways(name, wrong):
    with pytest.raises(UnpackError, match=name):
        Envelope.from_bytes(msgpack.packb(table(**{name: wrong})))
    with pytest.raises(PackError, match=name):
        envelope(**{name: wrong}).to_bytes()


def test_fn_and_cfg_hold_plain_values():
    with pytest.raises(PackError, match=r"envelope\[\"cfg\"\]\[\"x\"\]: no codec for 'object'"):
        envelope(cfg={"x": object()}).to_bytes()
    with pytest.raises(PackError, match="plain values"):
        envelope(cfg={"x": (1,)}).to_bytes()


def test_limit():
    size = len(envelope().to_bytes())
    assert envelope().to_bytes(limit=size)
    with pytest.raises(PackError, match=rf"{size} bytes.*{size - 1} bytes.*run\.write"):
        envelope().to_bytes(limit=size - 1)


def test_trailing_and_truncated_bytes():
    data = envelope().to_bytes()
    for broken in (data + b"\0", data[:-1], data[:20]):
        with pytest.raises(UnpackError):
            Envelope.from_bytes(broken)


def test_repr_is_short():
    big = envelope(args=b"x" * 10**6, fn={"kind": "pickle", "blob": b"y" * 10**6, "qualname": "f"}, key="k")
    assert repr(big) == "<Envelope i pickle f, 1000000 B args, 1 B kwargs, key='k'>"
