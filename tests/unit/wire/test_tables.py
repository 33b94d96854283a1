"""pandas, polars, Arrow and Pillow: exact, or refused by name with the fix; forged streams stay harmless."""

import datetime as dt
import io
import struct
import zlib
from decimal import Decimal

import msgpack
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from same import assert_same, round_trip

from lakeshore.errors import PackError, UnpackError
from lakeshore.wire import pack, unpack

DATES = pd.date_range("2020-01-01", periods=3, freq="h")
FRAMES = {
    "empty": pd.DataFrame(),
    "no rows": pd.DataFrame(columns=["a", "b"]),
    "index only": pd.DataFrame(index=[1, 2]),
    "no columns": pd.DataFrame(index=pd.RangeIndex(3)),
    "default labels": pd.DataFrame(np.zeros((2, 3))),
    "duplicate labels": pd.DataFrame([[1, 2.5]], columns=["a", "a"]),
    "mixed labels": pd.DataFrame([[1, 2]], columns=["a", 1]),
    "named labels": pd.DataFrame([[1, 2]], columns=pd.Index(["a", "b"], name="c")),
    "tuple labels": pd.DataFrame(
        [[1, 2]], columns=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["p", None])
    ),
    "date labels": pd.DataFrame([[1, 2, 3]], columns=DATES),
    "a label like an index": pd.DataFrame({"index:0": [1]}, index=["r"]),
    "objects": pd.DataFrame(
        {"a": [1, "x", None, (1, {2}), Decimal("1.0"), dt.date(2020, 1, 1), float("nan")]}
    ),
    "object text": pd.DataFrame({"a": ["x", None]}, dtype=object),
    "object ints": pd.DataFrame({"a": [1, 2]}, dtype=object),
    "object bools": pd.DataFrame({"a": [True, None]}),
    "lists": pd.DataFrame({"a": [[1, 2], [3]]}),
    "arrays": pd.DataFrame({"a": [np.arange(2), np.arange(3)]}),
    "text": pd.DataFrame({"a": ["x", None]}),
    "small floats": pd.DataFrame({"a": np.array([1, np.nan, -0.0], "f4"), "b": np.array([1, 2, 3], "f2")}),
    "small ints": pd.DataFrame({"a": np.array([1], "i1"), "b": np.array([1], "u8")}),
    "times": pd.DataFrame({"a": np.array(["2020", "NaT"], "M8[s]"), "b": np.array([1, 2], "m8[ms]")}),
    "zone": pd.DataFrame({"a": DATES.tz_localize("Europe/Paris")}),
    "offset": pd.DataFrame({"a": pd.to_datetime(["2020-01-01T00:00+02:00"])}),
    "categories": pd.DataFrame({"a": pd.Categorical(["x", None], categories=["y", "x", "z"], ordered=True)}),
    "nullable": pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": pd.array([True, None], "boolean")}),
    "nullable float": pd.DataFrame({"a": pd.array([1.5, None], "Float64")}),
    "arrow": pd.DataFrame({"a": pd.array([1, None], "int64[pyarrow]")}),
    "period": pd.DataFrame({"a": pd.period_range("2020", periods=3, freq="M")}),
    "interval": pd.DataFrame({"a": pd.interval_range(0, 3)}),
    "frequency": pd.DataFrame({"a": [1, 2, 3]}, index=DATES.rename("t")),
    "business days": pd.DataFrame({"a": [1, 2, 3]}, index=pd.bdate_range("2020", periods=3)),
    "levels": pd.DataFrame(
        {"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", DATES[0]), ("y", DATES[1])])
    ),
    "one level": pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([("x",)], names=["n"])),
    "nulls": pd.DataFrame({"a": [None] * 3}),
}
INDEXES = {
    "int": pd.Index([1, 2], name="z"),
    "small int": pd.Index(np.array([1, 2], "i1")),
    "float": pd.Index([1.5, np.nan]),
    "text": pd.Index(["a", "b"]),
    "object": pd.Index(["a", 1, (2, 3)], tupleize_cols=False),
    "range": pd.RangeIndex(10**12, name=("n", 1)),
    "zone": pd.date_range("2020", periods=3, tz="UTC"),
    "periods": pd.period_range("2020", periods=3, freq="M"),
    "deltas": pd.timedelta_range("1h", periods=2, freq="h"),
    "categories": pd.CategoricalIndex(["a", "b"]),
    "intervals": pd.interval_range(0, 3),
    "levels": pd.MultiIndex.from_product([[1, 2], ["a"]], names=["u", "v"]),
    "empty": pd.Index([]),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_frames(frame):
    assert_same(round_trip(frame), frame)
    assert_same(round_trip([{"f": frame}])[0]["f"], frame)


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_indexes(index):
    got = round_trip(index)
    assert_same(got, index)
    assert getattr(got, "freq", None) == getattr(index, "freq", None)
    if len(index) < 100:
        series = pd.Series(range(len(index)), index=index, name=index.name)
        assert_same(round_trip(series), series)


def test_attrs_flags_and_names():
    frame = pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False)
    frame.attrs = {"units": ("m", 1), "when": dt.date(2020, 1, 1), "inner": pd.DataFrame({"b": [2]})}
    got = round_trip(frame.copy())
    assert_same(got.attrs["units"], ("m", 1))
    assert got.flags.allows_duplicate_labels is False
    series = pd.Series([1.0], name=("a", 1))
    series.attrs = {"k": 1}
    assert round_trip(series).attrs == {"k": 1}
    assert round_trip(series).name == ("a", 1)


def test_nan_keeps_its_bits_in_a_frame():
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000], "u8").view("f8")
    got = round_trip(pd.DataFrame({"a": bits}))
    assert got["a"].to_numpy().tobytes() == bits.tobytes()


def test_frames_come_back_writable():
    got = round_trip(pd.DataFrame({"a": [1.5, 2.5]}))
    got.loc[0, "a"] = 9.0
    got["a"].to_numpy(copy=True)[0] = 1
    assert got["a"].tolist() == [9.0, 2.5]


def test_arrow_reads_our_frames():
    body = msgpack.unpackb(pack(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}))).data
    assert pa.ipc.open_stream(body).read_all().to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


def test_a_plain_arrow_stream_is_read_as_a_frame():
    sink = io.BytesIO()
    table = pa.Table.from_pandas(pd.DataFrame({"a": [1, 2]}, index=["r", "s"]))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    got = unpack(msgpack.packb(msgpack.ExtType(19, sink.getvalue())))
    assert got.to_dict() == {"a": {"r": 1, "s": 2}}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(st.characters(codec="utf-8"), max_size=3) | st.integers(-3, 3),
            st.sampled_from(
                ["i1", "i8", "f4", "f8", "M8[ns]", "m8[s]", "bool", "object", "str", "Int8", "category"]
            ),
        ),
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_any_frame_goes_round_or_is_refused(columns, rows):
    data = {n: pd.Series(list(range(rows))).astype(kind) for n, (_, kind) in enumerate(columns)}
    frame = pd.DataFrame(data)
    frame.columns = pd.Index([label for label, _ in columns])
    assert_same(round_trip(frame), frame)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pd.Timestamp("2020"), "to_pydatetime"),
        (pd.Timedelta(1), "to_pytimedelta"),
        (pd.NaT, "None"),
        (pd.NA, "None"),
        (pd.array([1], "Int64"), "Series"),
        (pd.DataFrame({"a": [pd.Timestamp("2020")]}, dtype=object), "Timestamp"),
        (pd.DataFrame({"a": [object()]}), "object"),
        (pd.Series(pd.arrays.SparseArray([0, 1])), "Sparse"),
        (pd.DataFrame({"a": [1j]}), "complex"),
        (pd.Series(["\ud800"], dtype=object), "surrogate|utf-8"),
        (type("Mine", (pd.DataFrame,), {})({"a": [1]}), "Mine"),
        (pl.Series([1]), "to_frame"),
        (pl.DataFrame({"a": [1]}).lazy(), "collect"),
        (pl.DataFrame({"a": [object()]}), "cast"),
        (pa.array([1]), "pyarrow.table"),
        (pa.RecordBatch.from_pydict({"a": [1]}), "from_batches"),
        (Image.new("HSV", (1, 1)), "convert"),
        (Image.new("RGB", (0, 1)), "size"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_refusals(value, reason):
    with pytest.raises(PackError, match=reason) as caught:
        pack({"k": [value]})
    assert '["k"][0]' in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"a": [1, None], "b": ["x", "y"]}),
        pa.table({"a": pa.array(["x", "y"]).dictionary_encode()}),
        pa.table({"a": pa.nulls(3)}),
        pa.table({"a": pa.chunked_array([[1], [2]])}),
        pa.table({"a": [[1], None], "s": [{"x": 1}, None]}),
        pa.table({"a": [1, 2, 3]}).slice(1, 1),
        pa.table({"a": [1]}).replace_schema_metadata({"k": "v"}),
        pl.DataFrame(),
        pl.DataFrame({"a": [1, None], "b": [float("nan"), 1.0], "c": [[1], [2, 3]], "d": [{"x": 1}, None]}),
        pl.DataFrame({"a": ["x", "y"]}, schema={"a": pl.Enum(["x", "y"])}),
        pl.DataFrame({"a": ["x", "y"]}, schema={"a": pl.Categorical}),
        pl.DataFrame({"a": [Decimal("1.20")], "t": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]}),
    ],
    ids=lambda table: f"{type(table).__module__.partition('.')[0]} {table.schema}"[:40].replace("\n", " "),
)
def test_tables(table):
    got = round_trip((table,))[0]
    assert_same(got, table)
    if isinstance(table, pa.Table):
        assert got.schema.metadata == table.schema.metadata


def stream(table, **options):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_streams_that_stand_for_more_than_their_bytes_are_refused():
    bombs = [
        stream(pa.table({"a": np.zeros(10**6)}), compression="zstd"),
        stream(pa.table({"a": np.zeros(10**6)}), compression="lz4"),
        stream(pa.table({"a": pa.nulls(10**9)})),
        stream(pa.table({"a": pa.array([None], pa.list_(pa.null()))})) + b"\0",
    ]
    for bomb in bombs:
        for code in (19, 20, 21):
            with pytest.raises(UnpackError):
                unpack(msgpack.packb(msgpack.ExtType(code, bomb)))
    runs = stream(pa.table({"a": pa.RunEndEncodedArray.from_arrays([10**9], [1])}))
    views = stream(pa.table({"a": pa.array(["x" * 100] * 3, pa.string_view())}))
    for bomb in (runs, views):
        with pytest.raises(UnpackError):
            unpack(msgpack.packb(msgpack.ExtType(19, bomb)))


# ---- images


def test_images_keep_mode_pixels_and_origin():
    plain = Image.radial_gradient("L").resize((20, 10))
    file = io.BytesIO()
    plain.convert("RGB").save(file, "JPEG")
    for image in (plain, plain.convert("RGBA"), Image.open(file)):
        got = round_trip(image)
        assert (got.mode, got.size, got.tobytes()) == (image.mode, image.size, image.tobytes())
    assert type(round_trip(plain)) is Image.Image
    file = io.BytesIO()
    plain.save(file, "BMP")
    opened = round_trip(Image.open(file))
    assert opened.format == "BMP"
    assert opened == Image.open(file)


def test_an_animation_is_refused():
    file = io.BytesIO()
    Image.new("L", (2, 2)).save(file, "GIF", save_all=True, append_images=[Image.new("L", (2, 2), 255)])
    with pytest.raises(PackError, match="frames"):
        pack(Image.open(file))


def test_images_come_back_writable():
    got = round_trip(Image.new("L", (2, 2)))
    got.putpixel((0, 0), 7)
    assert got.getpixel((0, 0)) == 7


def test_a_bomb_is_refused():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for side in (3000, 30_000, 2**31 - 1):
        png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
        png += chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
        with pytest.raises(UnpackError, match="bomb|pixels"):
            unpack(msgpack.packb(msgpack.ExtType(3, msgpack.packb(["PNG", png]))))


def test_a_uniform_image_can_be_read_back():
    image = Image.new("1", (8000, 8000))
    assert round_trip(image).size == (8000, 8000)
