"""Values go round exactly, or are refused with the path and the way out."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import struct
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import uuid
import zoneinfo

import msgpack
import numpy as np
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same import assert_same, nested, round_trip
from samples import ALL

from lakeshore import wire
from lakeshore.errors import PackError, UnpackError
from lakeshore.wire import MAX_DEPTH, pack, unpack

ints = st.integers() | st.integers(-(2**80), 2**80)
floats = st.floats() | st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack("d", struct.pack("Q", bits))[0]
)
zones = st.sampled_from(["UTC", "Europe/Paris", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe"])
offsets = st.timedeltas(dt.timedelta(hours=-23, minutes=-59), dt.timedelta(hours=23, minutes=59))
tzinfos = st.none() | zones.map(zoneinfo.ZoneInfo) | offsets.map(dt.timezone) | st.just(dt.UTC)
datetimes = st.builds(
    lambda value, fold: value.replace(fold=fold), st.datetimes(timezones=tzinfos), st.integers(0, 1)
)
hashables = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), ints, floats, st.text(), st.binary(max_size=40), datetimes, st.dates()),
        *(st.times(timezones=tzinfos), st.timedeltas(), st.uuids(), st.complex_numbers(), st.fractions()),
        st.decimals(allow_nan=False),
        st.builds(range, ints, ints, ints.filter(bool)),
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))).map(
            lambda p: pathlib.PurePosixPath(*p)
        ),
    ),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=8,
)
values = st.recursive(
    hashables | st.binary(max_size=40).map(bytearray) | st.decimals(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(hashables, inner, max_size=5),
        st.sets(hashables, max_size=5),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
@given(values)
def test_any_value_goes_round(value):
    assert_same(round_trip(value), value)


@pytest.mark.parametrize("value", ALL, ids=lambda value: type(value).__name__)
def test_every_sample_goes_round_alone_and_nested(value):
    assert_same(round_trip(value), value)
    assert_same(round_trip({"k": [(value, 1)]}), {"k": [(value, 1)]})


def test_zone_names_and_folds_are_kept():
    got = round_trip(dt.datetime(2020, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Paris"), fold=1))
    assert got.tzinfo is zoneinfo.ZoneInfo("Europe/Paris")
    assert got.fold == 1
    assert round_trip(dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "X"))).tzname() == "X"


def test_a_concrete_path_comes_back_as_its_pure_kind():
    assert type(round_trip(pathlib.Path("/a"))) in (pathlib.PurePosixPath, pathlib.PureWindowsPath)


def test_timestamp_is_read_as_an_aware_datetime():
    got = unpack(msgpack.packb(dt.datetime(1960, 1, 1, tzinfo=dt.UTC), datetime=True))
    assert got == dt.datetime(1960, 1, 1, tzinfo=dt.UTC)
    assert got.tzinfo is dt.UTC


def test_order_of_keys_is_kept():
    value = dict.fromkeys((3, "b", 1, ("a",), b""))
    assert list(round_trip(value)) == list(value)


# ---- refusals


class Foo:
    pass


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


@dataclasses.dataclass
class Data:
    x: int


class Model(pydantic.BaseModel):
    x: int = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "name", "fix"),
    [
        (Foo(), "Foo", "register"),
        (Colour.RED, "Colour", ".value"),
        (Text("a"), "Text", "str(value)"),
        (Point(1, 2), "Point", "_asdict"),
        (Data(1), "Data", "asdict"),
        (Model(), "Model", "model_dump"),
        (collections.OrderedDict(a=1), "OrderedDict", "dict(value)"),
        (collections.defaultdict(int), "defaultdict", "dict(value)"),
        (collections.Counter("a"), "Counter", "dict(value)"),
        (collections.deque([1]), "deque", "list(value)"),
        (memoryview(b"a"), "memoryview", "bytes(value)"),
        (msgpack.ExtType(5, b"\x90"), "ExtType", "register"),
        (msgpack.ExtType(99, b"\x90"), "ExtType", "register"),
        (msgpack.Timestamp(1), "Timestamp", "to_datetime"),
        (ValueError("x"), "ValueError", "str(value)"),
        (len, "builtin_function_or_method", "thunk"),
        (int, "type", "thunk"),
        (iter([1]), "list_iterator", "list(value)"),
        (object(), "object", "register"),
        ("\ud800", "surrogate", "bytes"),
        (pathlib.PurePosixPath("\udc80"), "UTF-8", "fsencode"),
        (10**200_000, "digits", "to_bytes"),
        (dt.datetime(2020, 1, 1, tzinfo=type("Mine", (dt.tzinfo,), {})()), "Mine", "ZoneInfo"),
    ],
    ids=lambda v: v if type(v) is str and v.isprintable() else type(v).__name__,
)
@pytest.mark.parametrize("place", [lambda v: v, lambda v: [v], lambda v: {"k": (1, {"deep": v})}])
def test_refusal_names_the_value_and_the_fix(value, name, fix, place):
    with pytest.raises(PackError) as caught:
        pack(place(value))
    assert name in str(caught.value)
    assert fix in str(caught.value)


def test_refusal_names_the_path():
    with pytest.raises(
        PackError, match=r"^cannot pack value at args\[0\]\[\"model\"\]\[1\]: no codec for 'Foo'; "
    ):
        pack([{"model": (1, Foo())}], at="args")
    with pytest.raises(PackError, match=r"at \[0\]\[\(1, 2\)\]\.stop: no codec"):
        pack([{(1, 2): slice(0, Foo())}])
    with pytest.raises(PackError, match=r"at \[0\] key <.*Foo"):
        pack([{Foo(): 1}])
    with pytest.raises(PackError, match=r"^cannot pack value: no codec"):
        pack(Foo())


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: [{"k": (v,)}][0]]
)
def test_depth_is_bounded_both_ways(wrap):
    deepest = nested(MAX_DEPTH // (2 if wrap(0) == {"k": (0,)} else 1), wrap)
    assert repr(round_trip(deepest)) == repr(deepest)
    with pytest.raises(PackError, match="nested"):
        pack([deepest])
    with pytest.raises(PackError, match="nested"):
        pack(nested(5000, wrap))


def test_depth_of_sets_slices_and_keys():
    key = nested(MAX_DEPTH - 1, lambda v: (v,))
    assert repr(round_trip({key: 1})) == repr({key: 1})
    with pytest.raises(PackError, match="nested"):
        pack([{key: 1}])
    deep = nested(MAX_DEPTH, lambda v: frozenset([v]))
    assert round_trip(deep) == deep
    with pytest.raises(PackError, match="nested"):
        pack(slice(None, deep))


@pytest.mark.parametrize(
    "head",
    [b"\x91", b"\x81\x01", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"],
    ids=["list", "dict", "list16", "list32"],
)
def test_deep_bytes_are_refused(head):
    unpack(head * MAX_DEPTH + b"\xc0")
    for depth in (MAX_DEPTH + 1, 1000, 3000, 100_000):
        with pytest.raises(UnpackError, match="nested|deep"):
            unpack(head * depth + b"\xc0")


def test_deep_extensions_are_refused_on_a_small_stack():
    data = b"\x90"
    for _ in range(3000):
        data = msgpack.packb([msgpack.ExtType(5, data)])
    errors = []

    def decode():
        with pytest.raises(UnpackError, match="nested") as caught:
            unpack(data)
        errors.append(caught.value)

    size = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=decode)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert errors


def test_nesting_does_not_multiply_the_bytes():
    data = msgpack.packb(b"x" * (1 << 20))
    for _ in range(400):
        data = msgpack.packb([msgpack.ExtType(5, b"\x91" + data)])[1:]
    tracemalloc.start()
    unpack(data)
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_a_container_that_holds_itself_is_refused():
    loops = [[], {}, [{}]]
    loops[0] += [loops[0]] * 3
    loops[1]["k"] = (loops[1],)
    loops[2][0]["a"] = ({"b": loops[2]},)
    for loop in loops:
        with pytest.raises(PackError, match="contains itself"):
            pack(loop)
    shared = [1]
    assert round_trip([shared, (shared, shared)]) == [[1], ([1], [1])]


def test_limit():
    assert pack(b"x" * 10, limit=12)
    with pytest.raises(PackError, match=r"size.*13 bytes.*12 bytes.*run\.write"):
        pack(b"x" * 11, limit=12)
    with pytest.raises(PackError, match=r"3\.0 MiB"):
        pack(b"x" * (3 << 20), limit=2 << 20)


# ---- foreign and hostile bytes


def test_unknown_codes_come_back_as_they_are():
    for code in (0, 4, 26, 30, 63, 64, 127):
        assert unpack(msgpack.packb([msgpack.ExtType(code, b"xyz")])) == [msgpack.ExtType(code, b"xyz")]


def ext(code, body):
    return msgpack.packb(msgpack.ExtType(code, body))


def array_body(dtype, shape, raw):
    return msgpack.packb([dtype, shape, raw])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\xc7\x03\xfexyz",
        b"\x01\x01",
        b"\xa2\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
        b"\x81\x90\x01",
        b"\x81\x80\x01",
        ext(5, b"\x80"),
        ext(5, b""),
        ext(15, msgpack.packb([[1]])),
        ext(16, b"\x91"),
        ext(23, msgpack.packb([1, 2])),
        *(ext(6, body) for body in (b"", b"1_0", b"+1", b" 1", b"01", b"1e5", "١".encode(), b"9" * 200_000)),
        *(
            ext(7, b)
            for b in (b"", b"x", b"2020-13-01", b"2020-01-01[../etc/passwd]", b"2020-01-01[/etc/passwd]")
        ),
        *(
            ext(7, b)
            for b in (b"2020-01-01[No/Where]", b"2020-01-01T00:00[name=x]", b"\xff", b"2020-01-01[US]")
        ),
        *(ext(code, b"\xff") for code in (8, 9, 10, 11, 12, 13, 14, 18, 22, 25)),
        ext(10, msgpack.packb([10**12, 0, 0])),
        ext(11, b"1E+9999999999999999999"),
        ext(14, msgpack.packb([1, 0])),
        ext(18, b"a\0b"),
        ext(22, msgpack.packb([0, 1, 0])),
        *(
            ext(25, msgpack.packb(b))
            for b in (["(", 0], ["a", 128], ["a", 1 << 20], [1, 0], ["(" * 5000 + ")" * 5000, 0])
        ),
        *(
            ext(25, msgpack.packb(b))
            for b in (["a" * (1 << 20), 0], ["x{99999999999}", 0], [b"a", 32], ["a", 4])
        ),
        *(
            ext(1, array_body(dtype, [1], b"\0" * 8))
            for dtype in ("O", "|O8", "object", "O,O", "f8,f8", "", "T", 5, None)
        ),
        ext(1, array_body("<f8", [-1], b"")),
        ext(1, array_body("<f8", [2**62, 2**62], b"")),
        ext(1, array_body("<f8", [2**62, 0, 2**62], b"")),
        ext(1, array_body("<f8", [1] * 100, b"\0" * 8)),
        ext(1, array_body("<f8", [2], b"\0" * 8)),
        ext(1, array_body("<f8", [1.0], b"\0" * 8)),
        ext(1, array_body("V0", [2**40], b"")),
        ext(1, array_body("<U1", [1], b"\xff" * 4)),
        ext(1, array_body("|b1", [1], b"\2")),
        ext(1, array_body([["a", [["t", "<U1", [2]]]]], [1], b"\0" * 4 + b"\xff" * 4)),
        ext(1, array_body([["a", "O"]], [1], b"\0" * 8)),
        ext(1, array_body([["a", "<f8", [2**31, 2**31]]], [0], b"")),
        ext(1, array_body([["a", "<i4"], ["a", "<i4"]], [1], b"\0" * 8)),
        ext(1, array_body([[["a", "b", "c"], "<f8"]], [1], b"\0" * 8)),
        ext(17, array_body("<f8", [1], b"\0" * 8)),
        ext(3, msgpack.packb(["EPS", b"%!PS"])),
        ext(3, msgpack.packb(["PNG", b""])),
        *(ext(code, b"") for code in (3, 19, 20, 21)),
        *(ext(code, b"ARROW1\0\0" + b"\xff" * 64) for code in (19, 20, 21)),
    ],
    ids=lambda data: data[:16].hex(),
)
def test_hostile_bytes(data):
    for place in (data, b"\x91" + data, b"\x81\x01" + data):
        with pytest.raises(UnpackError) as caught:
            unpack(place)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("wrong", [None, "text", 5, [b"\xc0"]])
def test_what_is_no_bytes_is_refused(wrong):
    with pytest.raises(UnpackError, match="wants bytes"):
        unpack(wrong)


def test_every_one_byte_damage_is_survived():
    for value in ALL[::2]:
        data = pack(value)
        step = max(1, len(data) // 60)
        for at in range(0, len(data), step):
            for flip in (0x01, 0x55, 0x80, 0xFF):
                try:
                    unpack(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
                except UnpackError:
                    pass
            with pytest.raises(UnpackError):
                unpack(data[:at])
        with pytest.raises(UnpackError):
            unpack(data + b"\0")


def test_declared_lengths_cost_no_memory():
    code = """
        import resource, sys
        from lakeshore import wire
        import numpy, PIL.Image, struct, zlib
        size = 1 << 19
        head = b"\\xdd" + (size - 6000).to_bytes(4, "big")
        bomb = [head * 500 + b"\\xc0" * (size - 2600)]
        bomb.append(head * 500)
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 6, 0, 0, 0))
        png += chunk(b"IDAT", zlib.compress(b"\\0" * 1000)) + chunk(b"IEND", b"")
        import msgpack
        bomb.append(msgpack.packb(msgpack.ExtType(3, msgpack.packb(["PNG", png]))))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        used = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
        for data in bomb:
            try:
                wire.unpack(data)
            except wire.UnpackError if hasattr(wire, "UnpackError") else ValueError as e:
                assert "MemoryError" not in str(e), e
            else:
                print("decoded?")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print("ok" if grown < 30 else f"grew {grown} MiB")
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ok\n", done.stdout + done.stderr


# ---- packages stay out


def test_no_package_is_imported_by_packing():
    code = """
        import sys, datetime, decimal, pathlib, re
        from lakeshore import wire
        for value in ({"a": (1, {2}, 2**70)}, datetime.datetime.now(), decimal.Decimal(1), pathlib.Path()):
            wire.unpack(wire.pack(value))
        class Foreign: pass
        Foreign.__module__ = "torch.nn"
        try: wire.pack(Foreign())
        except TypeError: pass
        print(*{"numpy", "torch", "PIL", "pandas", "polars", "pyarrow"} & {*sys.modules})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "\n", done.stdout + done.stderr


def test_a_missing_package_is_named():
    code = """
        import sys
        for name in ("numpy", "PIL", "pandas", "polars", "pyarrow", "torch"): sys.modules[name] = None
        from lakeshore import wire
        import msgpack
        for code in (1, 2, 3, 17, 19, 20, 21):
            try: wire.unpack(msgpack.packb([msgpack.ExtType(code, b"")]))
            except ValueError as e: print(str(e).rsplit("pip install ")[-1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["numpy", "torch", "pillow", "numpy", "pandas", "polars", "pyarrow"], (
        done.stderr
    )


def test_threads_pack_and_unpack_at_once():
    value = {"a": [(n, {n}, 2**70) for n in range(50)], "b": np.arange(100), "c": nested(20, lambda v: (v,))}
    errors = []

    def work():
        for _ in range(50):
            got = round_trip(value)
            if got["a"] != value["a"] or got["c"] != value["c"] or (got["b"] != value["b"]).any():
                errors.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_dict_that_changes_while_it_is_packed():
    class Growing:
        def __init__(self, table):
            self.table = table

    table: dict = {}
    codec = wire.Codec(
        120, "growing", Growing, lambda v: v.table.update({len(v.table): 1}) or b"", lambda b: None
    )
    wire.register(codec)
    table["g"] = Growing(table)
    with pytest.raises(PackError, match="changed while"):
        pack(table)


def test_two_keys_that_look_alike_are_not_lost():
    nans = {decimal.Decimal("NaN"): 1, decimal.Decimal("NaN"): 2}
    assert list(round_trip(nans).values()) == [1, 2]
    with pytest.raises(PackError, match="keys"):
        pack([nans, bytearray(b"walked")])


def test_a_value_that_fails_when_asked_is_refused():
    class Proxy:
        @property
        def __class__(self):
            raise LookupError("no object")

    with pytest.raises(PackError, match=r"\[0\].*LookupError: no object"):
        pack([Proxy()])


def test_numbers_keep_their_kind():
    got = round_trip(
        [1, 1.0, True, np.float64(1), np.True_, decimal.Decimal(1), fractions.Fraction(1), 1 + 0j]
    )
    assert [type(x) for x in got] == [
        int,
        float,
        bool,
        np.float64,
        np.bool_,
        decimal.Decimal,
        fractions.Fraction,
        complex,
    ]
    assert math.copysign(1, round_trip(-0.0)) == -1
    assert round_trip(uuid.UUID(int=1)) == uuid.UUID(int=1)


class _Opaque:
    pass


@pytest.mark.parametrize(
    "value",
    [
        _Opaque(),
        {"a": [(_Opaque(),)]},
        "\udc80",
        10**200_000,
        [[[[[[(((((1, {2: _Opaque()}),),),),)]]]]]],
        bytearray,
        np.array([None]),
    ],
    ids=["leaf", "nested", "surrogate", "huge int", "deep", "class", "object array"],
)
def test_a_refusal_shows_nothing_of_how_packing_works(value):
    with pytest.raises(PackError) as refused:
        pack(value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


def test_a_cycle_is_refused_without_internals():
    loop = []
    loop.append(loop)
    with pytest.raises(PackError, match="contains itself") as refused:
        pack(loop)
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    ("value", "way"),
    [
        (msgpack.ExtType(5, b""), "register a codec for the type"),
        (msgpack.Timestamp(1), "to_datetime"),
        (..., "send None"),
        (NotImplemented, "send None"),
        (memoryview(b"x"), "bytes"),
        (collections.OrderedDict(a=1), "dict"),
        (collections.deque([1]), "list"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_refusal_says_the_way_that_fits_the_type(value, way):
    with pytest.raises(PackError, match=way):
        pack(value)
