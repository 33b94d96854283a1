"""numpy on the wire: arrays (1) and scalars (17), raw bytes in C order, a dtype bit for bit or refused.

What lies between the values (padding) is memory that nobody has written: it travels as zeros.

The body is packed [dtype, shape, raw bytes]. dtype is `dtype.str`, or for a structured array its `descr`:
a list of [name, dtype] or [name, dtype, shape], padding as an entry without a name, a titled field's name as
[title, name].
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from lakeshore.wire.codecs import MAX_FIELDS, Refused, fields, plain_packb

_KINDS = "biufcSUVmM"
_TEXT = re.compile(r"[<>=|]?[biufcSUVmM?][0-9]{0,10}(?:\[[0-9]{0,10}[A-Za-z]{1,7}\])?|[a-z]{3,11}[0-9]{0,3}")
_MAX_NESTED = 16


def encoder(kind: type) -> tuple[int, Callable[[Any], bytes]] | None:
    """Return the codec of exactly this type, or None. Raises `Refused` where it would lose something."""
    if kind is np.ndarray:
        return 1, encode_array
    if kind.__module__ == "numpy" and issubclass(kind, np.generic):
        if kind is np.record or kind is np.object_:
            raise Refused(f"a numpy.{kind.__name__} cannot travel exactly; send value.item()")
        return 17, encode_scalar
    if issubclass(kind, np.ma.MaskedArray):
        raise Refused("a MaskedArray would lose its mask; send (value.data, value.mask)")
    if issubclass(kind, np.recarray):
        raise Refused(
            "a recarray would come back as a plain array; send value.view(value.dtype.descr, numpy.ndarray)"
        )
    if issubclass(kind, np.ndarray):
        raise Refused(f"a {kind.__name__} would come back as a plain array; send np.array(value)")
    if issubclass(kind, np.dtype):
        raise Refused("a dtype is no value; send value.str, or value.descr of a structured one")
    return None


def encode_array(value: np.ndarray[Any, Any]) -> bytes:
    """Return the body of an array of any layout."""
    text = _dtype_text(value.dtype)
    return plain_packb([text, list(value.shape), _bare(value).tobytes()])


def decode_array(body: bytes) -> np.ndarray[Any, Any]:
    """Return the array of a body: writable, and its own memory."""
    text, shape, raw = fields(body, 3, "an array")
    dtype = _read_dtype(text)
    if type(shape) is not list or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array's shape wants ints of 0 or more")
    if type(raw) is not bytes or math.prod(shape) * dtype.itemsize != len(raw) or dtype.itemsize == 0:
        raise ValueError("an array's shape and dtype do not match its bytes")
    read = np.frombuffer(raw, dtype).reshape(shape)
    array = _bare(read)
    if array is read:
        array = read.copy()
    _check_values(array)
    return array


def _bare(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or where its dtype has padding, a copy in which that is zero."""
    if array.dtype.names is None and array.dtype.char not in "gG":
        return array
    bare = np.zeros(array.shape, array.dtype)
    _copy_values(bare, array)
    return bare


def _copy_values(to: np.ndarray[Any, Any], of: np.ndarray[Any, Any]) -> None:
    """Copy value by value: numpy may copy an array as a block of memory, padding and all."""
    if of.dtype.names is None and of.dtype.char in "gG" and np.finfo(np.longdouble).nmant == 63:
        parts = _x87_parts(of.dtype)
        to, of = to.view(parts), of.view(parts)
    if of.dtype.names is None:
        to[...] = of
    else:
        for name in of.dtype.names:
            _copy_values(to[name], of[name])


def _x87_parts(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return which bytes of a long double of the x87 are its value: 10 of 12 or 16, of each half."""
    halves = 1 if dtype.kind == "f" else 2
    size = dtype.itemsize // halves
    first = 0 if dtype.isnative == (sys.byteorder == "little") else size - 10
    offsets = [first + size * half for half in range(halves)]
    table: Any = {"names": ["a", "b"][:halves], "formats": ["V10"] * halves, "offsets": offsets}
    table["itemsize"] = dtype.itemsize
    parts: np.dtype[Any] = np.dtype(table)
    return parts


def _check_values(array: np.ndarray[Any, Any]) -> None:
    """Raise `ValueError` for text and bools that numpy itself could not have made, and trips over."""
    if array.dtype.names is not None:
        for name in array.dtype.names:
            _check_values(array[name])
    elif array.size and array.dtype.kind in "Ub":
        text = array.dtype.kind == "U"
        cells = np.ascontiguousarray(array).reshape(-1).view(f"{array.dtype.byteorder}u4" if text else "u1")
        if cells.max() > (0x10FFFF if text else 1):
            raise ValueError(f"an array of {array.dtype} holds what is no {'character' if text else 'bool'}")


def encode_scalar(value: Any) -> bytes:
    """Return the body of a numpy scalar: its 0-d array's."""
    array = np.asarray(value)
    if type(array[()]) is not type(value) or (array.dtype.kind in "SU" and array[()] != value):
        raise Refused(f"this numpy.{type(value).__name__} would not come back the same; send value.item()")
    return encode_array(array)


def decode_scalar(body: bytes) -> Any:
    """Return the numpy scalar of a body."""
    array = decode_array(body)
    if array.shape != ():
        raise ValueError("a numpy scalar wants the shape ()")
    return array[()]


def _dtype_text(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise Refused(
            f"an array of dtype {dtype} holds Python objects, which would need pickle; "
            "send value.tolist(), or give it a dtype: value.astype(float), value.astype(str)"
        )
    try:
        text = dtype.str if dtype.names is None else _lists(dtype.descr)
        exact = dtype.kind in _KINDS and dtype.itemsize > 0
        back = _read_dtype(text) if exact else None
    except (ValueError, TypeError):
        back = None
    if back is None or back != dtype or type(back) is not type(dtype) or dtype.type is np.record:
        raise Refused(
            f"an array of dtype {dtype} has no exact form; convert it with value.astype(...), "
            "a structured one with numpy.lib.recfunctions.repack_fields(value)"
        )
    return text


def _lists(descr: Any) -> Any:
    return [_lists(part) for part in descr] if isinstance(descr, (list, tuple)) else descr


def _read_dtype(text: Any, level: int = 0) -> np.dtype[Any]:
    if type(text) is str:
        if _TEXT.fullmatch(text) is None:
            raise ValueError(f"unknown dtype {text[:40]!r}")
        dtype = np.dtype(text)
    elif type(text) is list and level < _MAX_NESTED:
        dtype = _read_struct(text, level)
    else:
        raise ValueError("a dtype wants text, or a list of fields")
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise ValueError(f"an array of dtype {dtype} cannot be decoded: it would hold Python objects")
    return dtype


def _read_struct(descr: list[Any], level: int) -> np.dtype[Any]:
    names, formats, offsets, titles, size = [], [], [], [], 0
    for field in descr:
        if type(field) is not list or not 2 <= len(field) <= 3:
            raise ValueError("a dtype's field wants [name, dtype] or [name, dtype, shape]")
        name, inner, shape = field if len(field) == 3 else (*field, ())
        title, name = name if type(name) is list and len(name) == 2 else (None, name)
        if type(name) is not str or not (title is None or type(title) is str):
            raise ValueError("a dtype's field wants a text for its name")
        if not isinstance(shape, (list, tuple)) or not all(type(n) is int and 0 < n < 2**31 for n in shape):
            raise ValueError("a dtype's field wants positive ints for its shape")
        one = _read_dtype(inner, level + 1)
        bytes_each = one.itemsize * math.prod(shape)
        if size + bytes_each >= 2**31:
            raise ValueError("a dtype of 2 GiB or more")
        if name:
            names.append(name)
            formats.append(np.dtype((one, tuple(shape))) if shape else one)
            offsets.append(size)
            titles.append(title)
        size += bytes_each
    if len(names) > MAX_FIELDS:
        raise ValueError(f"a dtype of more than {MAX_FIELDS} fields")
    table: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    if any(title is not None for title in titles):
        table["titles"] = titles
    dtype: np.dtype[Any] = np.dtype(table)
    return dtype
