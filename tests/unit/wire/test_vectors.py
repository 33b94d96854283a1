"""The bytes that peers in the field already send: fixed for ever."""

import pytest

from lakeshore.wire import Envelope, Frame, FrameKind, pack, unpack

ENVELOPE = (
    "89a17601a26964ba303141525a334e44454b54535634525246465136394735464156a2666e84a46b696e64a3726566a66d6f64756c65"
    "a16da87175616c6e616d65a166a87372635f68617368c0a461726773c4089201c70305920203a66b7761726773c40481a16101a6707265"
    "666978a170a36b6579c0a363666780a6706172656e74c0"
)


def test_envelope_bytes():
    envelope = Envelope(
        id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        fn={"kind": "ref", "module": "m", "qualname": "f", "src_hash": None},
        args=pack([1, (2, 3)]),
        kwargs=pack({"a": 1}),
        prefix="p",
    )
    assert envelope.to_bytes().hex() == ENVELOPE
    assert Envelope.from_bytes(bytes.fromhex(ENVELOPE)) == envelope


def test_frame_bytes():
    frame = Frame(FrameKind.VALUE, 0, {"x": 1})
    assert frame.to_bytes().hex() == "94000081a17801c0"
    assert Frame.from_bytes(frame.to_bytes()) == frame


@pytest.mark.parametrize(
    ("value", "hexed"),
    [
        ((2, 3), "c70305920203"),
        (2**64, "c714063138343436373434303733373039353531363136"),
        ([1, None, True, 1.5], "9401c0c3cb3ff8000000000000"),
    ],
)
def test_value_bytes(value, hexed):
    assert pack(value).hex() == hexed
    assert unpack(bytes.fromhex(hexed)) == value
