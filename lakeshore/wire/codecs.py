"""The standard library's types on the wire: one encoder and one decoder each, bodies as the table says.

A decoder meets hostile bytes: it raises whatever it likes, `unpack` makes an UnpackError of it, but it must
neither hang nor allocate more than its body justifies.

====  ==================  =====================================================================
code  type                body
====  ==================  =====================================================================
5     tuple               packed list
6     int beyond 64 bit   ASCII decimal, at most 100,000 digits
7     datetime            ISO 8601, offset unless naive; then ``[Europe/Paris]`` for a ZoneInfo,
                          ``[fold=1]`` where fold is set, ``[name=CET]`` for a named timezone
8     date                ISO 8601
9     time                as 7
10    timedelta           packed [days, seconds, microseconds], normalised as Python does
11    Decimal             ASCII text, as ``str(value)``
12    UUID                16 bytes, big-endian
13    complex             real and imaginary part, IEEE double, big-endian
14    Fraction            packed [numerator, denominator], each an int or, beyond 64 bit, ASCII decimal
15    set                 packed list
16    frozenset           packed list
18    PurePath            UTF-8 POSIX text; a Windows path has a NUL before it
22    range               packed [start, stop, step], ints as in 14
23    slice               packed [start, stop, step]
24    bytearray           the bytes
25    re.Pattern          packed [pattern, flags], at most 64 KiB of pattern
====  ==================  =====================================================================

5, 15, 16 and 23 hold any wire value and are the business of `values`.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
import warnings
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

from msgpack import packb, unpackb

MAX_DIGITS = 100_000
MAX_PATTERN = 64 * 1024
MAX_FIELDS = 1024
_MAX_BITS = int(MAX_DIGITS / 0.30103)

_INT = re.compile(rb"-?[1-9][0-9]*|0")
_DECIMAL = re.compile(rb"-?(?:[0-9]+(?:\.[0-9]+)?(?:E[+-]?[0-9]{1,19})?|Infinity|s?NaN[0-9]*)")
_TAGS = re.compile(
    r"(?:\[(?P<zone>[A-Za-z0-9_+\-/]{1,64})\])?(?P<fold>\[fold=1\])?(?:\[name=(?P<name>.*)\])?", re.DOTALL
)
_FLAGS = int(re.ASCII | re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.UNICODE)


# with a small buffer to begin with, which grows: msgpack's 256 KiB cost a system call each time
plain_packb: Callable[..., bytes] = partial(packb, strict_types=True, buf_size=1024)


class Refused(Exception):
    """An encoder cannot carry this value exactly; the message says why and what to send instead."""


def fields(body: bytes, count: int, what: str) -> list[Any]:
    """Return a body's packed list of plain values, or raise `ValueError`."""
    items = unpackb(body, max_array_len=MAX_FIELDS, max_map_len=0, max_ext_len=0)
    if type(items) is not list or len(items) != count:
        raise ValueError(f"{what} wants a list of {count}")
    return items


def _encode_int(value: int) -> bytes:
    if value.bit_length() > _MAX_BITS:
        raise Refused(
            f"an int of {value.bit_length()} bits is over {MAX_DIGITS} digits; "
            "send value.to_bytes(n, 'big', signed=True)"
        )
    return str(Decimal(value)).encode()  # str(int) stops at 4300 digits


def _decode_int(body: bytes) -> int:
    if len(body) > MAX_DIGITS + 1 or _INT.fullmatch(body) is None:
        raise ValueError(f"an int wants at most {MAX_DIGITS} decimal digits")
    return int(Decimal(body.decode()))  # not int(str): see above


def _small(value: int) -> int | bytes:
    return value if -(2**63) <= value < 2**64 else _encode_int(value)


def _from_small(item: Any) -> int:
    if type(item) is int:
        return item
    if type(item) is bytes:
        return _decode_int(item)
    raise ValueError(f"wants an int, got {type(item).__name__}")


def _tags(value: dt.datetime | dt.time) -> str:
    text = ""
    zone = value.tzinfo
    name = None
    if type(zone) is zoneinfo.ZoneInfo:
        if zone.key is None or _TAGS.fullmatch(f"[{zone.key}]") is None:
            raise Refused("its ZoneInfo has no name; use zoneinfo.ZoneInfo('Area/City')")
        text = f"[{zone.key}]"
    elif type(zone) is dt.timezone:
        name = zone.tzname(None)
        if name == dt.timezone(zone.utcoffset(None)).tzname(None):
            name = None
    elif zone is not None:
        raise Refused(
            f"its tzinfo is a {type(zone).__module__}.{type(zone).__qualname__}, which cannot travel; "
            "use zoneinfo.ZoneInfo or datetime.timezone"
        )
    if value.fold:
        text += "[fold=1]"
    return text if name is None else f"{text}[name={name}]"


def _encode_datetime(value: dt.datetime | dt.time) -> bytes:
    tags = _tags(value)  # first: it knows which tzinfo can be asked
    return (value.isoformat() + tags).encode()


def _split_tags(body: bytes) -> tuple[str, zoneinfo.ZoneInfo | None, bool, str | None]:
    text, bracket, rest = body.decode().partition("[")
    tags = _TAGS.fullmatch(bracket + rest)
    if tags is None:
        raise ValueError("wants ISO 8601 and our tags")
    zone = tags["zone"] and zoneinfo.ZoneInfo(tags["zone"])
    return text, zone or None, tags["fold"] is not None, tags["name"]


def _decode_datetime(body: bytes) -> dt.datetime:
    text, zone, fold, name = _split_tags(body)
    value = dt.datetime.fromisoformat(text).replace(fold=int(fold))
    if name is not None:
        return value.replace(tzinfo=_named(value.utcoffset(), name))
    if zone is None:
        return value
    here = value.replace(tzinfo=zone)
    if value.tzinfo is None or here.utcoffset() == value.utcoffset():
        return here
    return value.astimezone(zone)  # this machine's rules for the zone differ: the instant is the truth


def _decode_time(body: bytes) -> dt.time:
    text, zone, fold, name = _split_tags(body)
    value = dt.time.fromisoformat(text).replace(fold=int(fold))
    if name is not None:
        return value.replace(tzinfo=_named(value.utcoffset(), name))
    return value if zone is None else value.replace(tzinfo=zone)


def _named(offset: dt.timedelta | None, name: str) -> dt.timezone:
    if offset is None:
        raise ValueError("a named timezone wants an offset")
    return dt.timezone(offset, name)


def _decode_date(body: bytes) -> dt.date:
    return dt.date.fromisoformat(body.decode())


def _encode_timedelta(value: dt.timedelta) -> bytes:
    return plain_packb([value.days, value.seconds, value.microseconds])


def _decode_timedelta(body: bytes) -> dt.timedelta:
    days, seconds, microseconds = map(_from_small, fields(body, 3, "a timedelta"))
    return dt.timedelta(days, seconds, microseconds)


def _decode_decimal(body: bytes) -> Decimal:
    if _DECIMAL.fullmatch(body) is None:
        raise ValueError("no decimal number")
    value = Decimal(body.decode())
    if str(value).encode() != body:
        raise ValueError("a decimal number beyond this machine's range")
    return value


def _decode_uuid(body: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=body)


def _encode_complex(value: complex) -> bytes:
    return struct.pack(">dd", value.real, value.imag)


def _decode_complex(body: bytes) -> complex:
    return complex(*struct.unpack(">dd", body))


def _encode_fraction(value: Fraction) -> bytes:
    return plain_packb([_small(value.numerator), _small(value.denominator)])


def _decode_fraction(body: bytes) -> Fraction:
    numerator, denominator = map(_from_small, fields(body, 2, "a Fraction"))
    return Fraction(numerator, denominator)


def _encode_path(value: PurePath) -> bytes:
    text = value.as_posix()
    if "\0" in text:
        raise Refused("a path with a NUL character cannot exist; send str(path)")
    try:
        body = text.encode()
    except UnicodeEncodeError:
        raise Refused("the path is not UTF-8; send os.fsencode(path)") from None
    return b"\0" + body if isinstance(value, PureWindowsPath) else body


def _decode_path(body: bytes) -> PurePath:
    if body[:1] == b"\0":
        return PureWindowsPath(_path_text(body[1:]))
    return PurePosixPath(_path_text(body))


def _path_text(body: bytes) -> str:
    if b"\0" in body:
        raise ValueError("a path with a NUL character")
    return body.decode()


def _encode_range(value: range) -> bytes:
    return plain_packb([_small(value.start), _small(value.stop), _small(value.step)])


def _decode_range(body: bytes) -> range:
    return range(*map(_from_small, fields(body, 3, "a range")))


def _encode_pattern(value: re.Pattern[Any]) -> bytes:
    if value.flags & ~_FLAGS:
        raise Refused(f"its flags {re.RegexFlag(value.flags)!r} cannot travel; compile it without re.DEBUG")
    if len(value.pattern) > MAX_PATTERN:
        raise Refused(f"a pattern of {len(value.pattern)} characters is over {MAX_PATTERN}; send its text")
    return plain_packb([value.pattern, value.flags])


def _decode_pattern(body: bytes) -> re.Pattern[Any]:
    pattern, flags = fields(body, 2, "a pattern")
    if type(pattern) not in (str, bytes) or type(flags) is not int or flags & ~_FLAGS:
        raise ValueError("a pattern wants a str or bytes, and known flags")
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern of more than {MAX_PATTERN} characters")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whoever wrote the pattern saw them
        return re.compile(pattern, flags)


ENCODERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (6, _encode_int),
    dt.datetime: (7, _encode_datetime),
    dt.date: (8, lambda value: value.isoformat().encode()),
    dt.time: (9, _encode_datetime),
    dt.timedelta: (10, _encode_timedelta),
    Decimal: (11, lambda value: str(value).encode()),
    uuid.UUID: (12, lambda value: value.bytes),
    complex: (13, _encode_complex),
    Fraction: (14, _encode_fraction),
    **dict.fromkeys((PurePosixPath, PureWindowsPath, PosixPath, WindowsPath), (18, _encode_path)),
    range: (22, _encode_range),
    bytearray: (24, bytes),
    re.Pattern: (25, _encode_pattern),
}
DECODERS: dict[int, Callable[[bytes], Any]] = {
    6: _decode_int,
    7: _decode_datetime,
    8: _decode_date,
    9: _decode_time,
    10: _decode_timedelta,
    11: _decode_decimal,
    12: _decode_uuid,
    13: _decode_complex,
    14: _decode_fraction,
    18: _decode_path,
    22: _decode_range,
    24: bytearray,
    25: _decode_pattern,
}
