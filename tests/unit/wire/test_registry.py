"""The user's own codecs: codes, matches, failures."""

import dataclasses

import pytest

from lakeshore.errors import PackError, UnpackError, WireError
from lakeshore.wire import Codec, CodecError, pack, register, registry, unpack


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Node:
    def __init__(self, *children):
        self.children = children


POINT = Codec(64, "point", Point, lambda p: pack([p.x, p.y]), lambda body: Point(*unpack(body)))
NODE = Codec(65, "node", Node, lambda n: pack(n.children), lambda body: Node(*unpack(body)))


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(registry, "_user", {})


def test_goes_round_within_containers():
    register(POINT)
    value = {"a": [(Point(1, 2), {"b": Point(3, 4)})], 1: Point(0, 2**70)}
    assert unpack(pack(value)) == value


def test_match_may_be_a_predicate():
    register(
        Codec(127, "any", lambda v: hasattr(v, "x"), lambda p: pack([p.x, p.y]), lambda b: Point(*unpack(b)))
    )
    assert unpack(pack((Point(1, 2),))) == (Point(1, 2),)


def test_a_type_matches_itself_and_not_its_subclasses():
    register(POINT)
    with pytest.raises(PackError, match="Sub"):
        pack(type("Sub", (Point,), {})(1, 2))


def test_without_the_codec_it_stays_an_exttype():
    register(POINT)
    data = pack([Point(1, 2)])
    registry._user = {}
    assert unpack(data)[0].code == 64


@pytest.mark.parametrize("code", [-1, 0, 1, 5, 29, 30, 63, 128, True, "64", None])
def test_reserved_codes_are_refused(code):
    with pytest.raises(CodecError, match="64-127"):
        register(dataclasses.replace(POINT, code=code))
    assert issubclass(CodecError, WireError)


def test_a_taken_code_is_refused_and_the_same_name_replaces():
    register(POINT)
    with pytest.raises(CodecError, match="'point'"):
        register(dataclasses.replace(POINT, name="other"))
    register(dataclasses.replace(POINT, decode=lambda body: "again"))
    assert unpack(pack(Point(1, 2))) == "again"


def test_parts_must_be_callable():
    with pytest.raises(CodecError, match="callable"):
        register(dataclasses.replace(POINT, decode=None))


@pytest.mark.parametrize("part", ["match", "encode"])
def test_failures_while_packing_are_named_with_the_path(part):
    register(dataclasses.replace(POINT, **{part: lambda v: 1 / 0}))
    with pytest.raises(PackError, match=r"\[\"k\"\].*Point.*ZeroDivisionError"):
        pack({"k": Point(1, 2)})


def test_encode_must_return_bytes():
    register(dataclasses.replace(POINT, encode=lambda p: [p.x]))
    with pytest.raises(PackError, match="returned list, wants bytes"):
        pack(Point(1, 2))


def test_failures_while_unpacking_are_unpack_errors():
    register(POINT)
    data = pack(Point(1, 2))
    register(dataclasses.replace(POINT, decode=lambda body: 1 / 0))
    with pytest.raises(UnpackError, match="'point'.*ZeroDivisionError"):
        unpack(data)


def test_a_recursive_type():
    register(NODE)
    tree = Node()
    for _ in range(60):
        tree = Node(tree)
    got, depth = unpack(pack(tree)), 0
    while got.children:
        got, depth = got.children[0], depth + 1
    assert depth == 60
    for _ in range(3000):
        tree = Node(tree)
    with pytest.raises(PackError):
        pack(tree)


def test_a_built_in_type_cannot_be_taken_over():
    register(Codec(70, "ints", lambda v: True, lambda v: b"", lambda b: "wrong"))
    assert unpack(pack([1, (2,), 2**70])) == [1, (2,), 2**70]
