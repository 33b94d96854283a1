"""Values of every code in the table, for the tests that damage their bytes or send them round."""

import datetime as dt
import io
import re
import uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from PIL import Image

PARIS = ZoneInfo("Europe/Paris")


def opened(format: str) -> Image.Image:
    """An image that came from a file of this format."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((3, 2)).convert("RGB").save(file, format)
    return Image.open(file)


SCALARS = [
    *(None, True, False, 0, -1, 2**64 - 1, -(2**63), 0.0, -0.0, 1e308, "", "é\0😀", b"", b"\0\xff"),
    *(2**64, -(2**63) - 1, 10**40),
    dt.datetime(2020, 1, 2, 3, 4, 5, 6),
    dt.datetime(1901, 5, 6, tzinfo=dt.timezone(dt.timedelta(hours=-3, seconds=7))),
    dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2020, 10, 25, 2, 30, tzinfo=PARIS, fold=1),
    dt.datetime(2020, 10, 25, 2, 30, fold=1),
    dt.datetime(2020, 3, 29, 2, 30, tzinfo=PARIS),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "C]E[T")),
    *(dt.date(1, 1, 1), dt.time(1, 2, 3, 4), dt.time(1, tzinfo=PARIS), dt.time(1, tzinfo=dt.UTC, fold=1)),
    *(dt.timedelta(days=-1, microseconds=1), dt.timedelta.max, dt.timedelta.min),
    *map(Decimal, ("-0.00", "1E+999999", "Infinity", "NaN12", "0.1000", "123456789012345678901234567890.5")),
    *(uuid.UUID(int=5), 1 - 2j, complex(-0.0, float("inf")), Fraction(-3, 10**30)),
    *(PurePosixPath("a/../b"), PurePosixPath(), PureWindowsPath("C:/a b"), PureWindowsPath("//host/share/x")),
    *(range(5), range(0, 10**30, -7), re.compile("a(?P<x>b)+", re.IGNORECASE | re.VERBOSE)),
    re.compile(b"\xff?", re.DOTALL),
    *(slice(None), slice(1, (2, 3), "x")),
]
CONTAINERS = [
    *([], {}, (), set(), frozenset(), bytearray(b"ab"), [1, [2, [3]]], {"a": {"b": (1, (2, {3}))}}),
    *({1: "a", None: 0, 0.5: 1, b"k": 2, True + 1: 3}, {(0, 1): "x", ("a", ("b", 2)): 1, frozenset({1}): 2}),
    {dt.date(2020, 1, 1): 1, Decimal("1.5"): 2, 2**70: 3},
]
ARRAYS = [
    np.arange(3),
    np.array(3.5),
    np.zeros((0, 3)),
    np.arange(6, dtype=">i2").reshape(2, 3).T,
    np.arange(10)[::-3],
    np.array(["a", "bé"]),
    np.array([b"x", b"yy"]),
    np.array([True, False]),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", ">f8")]),
    np.zeros(2, dtype=[("a", "i1", (2, 3)), ("n", [("x", "f4"), ("y", "U3")])]),
    np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    np.zeros(2, dtype=[(("title", "a"), "i4")]),
    np.array(["2020-01-01", "NaT"], "M8[D]"),
    np.array([1, -5], "m8[25s]"),
    np.arange(6).astype(">M8[s]").reshape(2, 3).T,
    np.zeros(2, "V5"),
    np.array([1.5, np.nan], "f2"),
    np.array([1 + 2j], "c8"),
]
NUMPY_SCALARS = [
    *(np.float64(1.5), np.float32(2), np.int8(3), np.uint64(2**64 - 1), np.bool_(True), np.complex64(1j)),
    *(np.str_("ab"), np.str_(""), np.bytes_(b"a"), np.datetime64("2020-01-01T00:00"), np.timedelta64(3, "h")),
]
IMAGES = [
    *(Image.new(mode, (3, 2), 1) for mode in ("1", "L", "I", "F", "I;16")),
    *(Image.new(mode, (3, 2)) for mode in ("RGB", "RGBA", "LA", "CMYK", "YCbCr")),
    Image.linear_gradient("L").resize((9, 9)).convert("RGB").quantize(7),
    *map(opened, ("PNG", "BMP", "TIFF", "PPM")),
]
FRAMES = [
    pd.DataFrame({"a": [1, 2], "b": [1.5, np.nan], "c": ["x", "y"], "d": pd.Categorical(["u", "v"])}),
    pd.DataFrame(np.zeros((2, 3))),
    pd.DataFrame([[1, 2]], columns=["a", "a"]),
    pd.DataFrame({"a": [1, "x", None, (1, 2)]}),
    pd.Series([1, None], dtype="Int64", name=("n", 1)),
    pd.Series([1, 2, 3], index=pd.date_range("2020", periods=3, freq="h", tz="Europe/Paris", name="t")),
    pd.MultiIndex.from_product([[1, 2], ["a"]], names=["u", None]),
    pd.RangeIndex(3, 9, 2, name="r"),
]
TABLES = [
    pa.table({"a": [1, None], "b": ["x", "y"], "c": pa.array(["u", "v"]).dictionary_encode()}),
    pl.DataFrame({"a": [1, None], "b": ["x", "y"], "c": [[1], [2, 3]]}),
]
ALL = [*SCALARS, *CONTAINERS, *ARRAYS, *NUMPY_SCALARS, *IMAGES, *FRAMES, *TABLES]
