"""Whether a value came back as it went: type, value, bits and order, at every depth."""

import math
import struct

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from PIL import Image

from lakeshore.wire import pack, unpack


def assert_same(got, sent):
    assert type(got) is type(sent), f"{type(sent).__name__} came back as {type(got).__name__}"
    if isinstance(sent, np.ndarray | np.generic):
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        if sent.dtype.names is None:
            assert got.tobytes() == sent.tobytes()
        else:
            assert (got == sent).all()
    elif isinstance(sent, dict):
        assert_same(list(got), list(sent))
        assert_same(list(got.values()), list(sent.values()))
    elif isinstance(sent, list | tuple):
        assert len(got) == len(sent)
        for one, other in zip(got, sent, strict=True):
            assert_same(one, other)
    elif isinstance(sent, slice):
        assert_same((got.start, got.stop, got.step), (sent.start, sent.stop, sent.step))
    elif isinstance(sent, float):
        assert struct.pack("d", got) == struct.pack("d", sent)
    elif isinstance(sent, pd.DataFrame):
        pd.testing.assert_frame_equal(got, sent, check_exact=True, check_flags=True)
    elif isinstance(sent, pd.Series):
        pd.testing.assert_series_equal(got, sent, check_exact=True, check_flags=True)
    elif isinstance(sent, pd.Index):
        pd.testing.assert_index_equal(got, sent, exact=True)
    elif isinstance(sent, pa.Table | pl.DataFrame):
        assert got.equals(sent)
        assert got.schema == sent.schema
    elif isinstance(sent, Image.Image):
        assert (got.mode, got.size, got.format, got.tobytes()) == (
            sent.mode,
            sent.size,
            sent.format,
            sent.tobytes(),
        )
    elif isinstance(sent, set | frozenset):
        assert canonical(got) == canonical(sent)
    elif repr(sent) == repr(got):  # also of NaN, -0 and fold
        assert str(got) == str(sent)
    else:
        assert got == sent


def canonical(value):
    """A text that two sets of the same members share, NaN among them."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(map(canonical, value))}"
    return f"({','.join(map(canonical, value))})" if isinstance(value, tuple) else repr(value)


def round_trip(value):
    return unpack(pack(value))


def nested(depth, wrap):
    value = math.pi
    for _ in range(depth):
        value = wrap(value)
    return value
