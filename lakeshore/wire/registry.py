"""Which codec takes a type, and which reads a code: the built-in table, the packages' and the user's.

A package (numpy, torch, ...) is looked at only where it is loaded, and imported when its bytes are met.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lakeshore.errors import CodecError, UnpackError
from lakeshore.wire import codecs

USER_CODES = range(64, 128)
_Encoder = tuple[int, Callable[[Any], bytes]]

# The package that a type's `__module__` begins with -> the module of ours that knows it.
_PACKAGES = {
    "numpy": "lakeshore.wire.codecs_arrays",
    "torch": "lakeshore.wire.codecs_tensors",
    "PIL": "lakeshore.wire.codecs_images",
    "pandas": "lakeshore.wire.codecs_pandas",
    "polars": "lakeshore.wire.codecs_tables",
    "pyarrow": "lakeshore.wire.codecs_tables",
}
# code -> (package, module of ours, the decoder's name there)
_PACKAGE_CODES = {
    1: ("numpy", "lakeshore.wire.codecs_arrays", "decode_array"),
    2: ("torch", "lakeshore.wire.codecs_tensors", "decode_tensor"),
    3: ("PIL", "lakeshore.wire.codecs_images", "decode_image"),
    17: ("numpy", "lakeshore.wire.codecs_arrays", "decode_scalar"),
    19: ("pandas", "lakeshore.wire.codecs_pandas", "decode_pandas"),
    20: ("polars", "lakeshore.wire.codecs_tables", "decode_polars"),
    21: ("pyarrow", "lakeshore.wire.codecs_tables", "decode_arrow"),
}
_INSTALL = {"PIL": "pillow"}


@dataclass(frozen=True)
class Codec:
    """How one of the user's types travels.

    Attributes
    ----------
    code : int
        64 to 127; it is the wire, so both sides need the same, and it never changes its meaning.
    name : str
        Shown in messages. Registering a code again needs the same name (a cell that is run again).
    match : type or callable
        A type (that type exactly, not its subclasses), or ``match(value) -> bool``.
    encode : callable
        ``encode(value) -> bytes``; `pack` may be used within.
    decode : callable
        ``decode(bytes) -> value``; it will meet hostile bytes and may raise what it likes.
    """

    code: int
    name: str
    match: type | Callable[[Any], bool]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_user: dict[int, Codec] = {}
_encoders: dict[type, _Encoder] = dict(codecs.ENCODERS)
_decoders: dict[int, Callable[[bytes], Any]] = dict(codecs.DECODERS)
_lock = threading.Lock()


def register(codec: Codec) -> None:
    """Add a codec for values that the wire does not know.

    Parameters
    ----------
    codec : Codec
        Built-in types cannot be taken over. The last registered codec that matches wins.

    Raises
    ------
    CodecError
        When the code is not in 64 to 127, or is taken by a codec of another name.
    """
    code = codec.code
    if type(code) is not int or code not in USER_CODES:
        raise CodecError(f"register: code {code!r} of codec {codec.name!r} is reserved; take one of 64-127")
    if not (callable(codec.match) and callable(codec.encode) and callable(codec.decode)):
        raise CodecError(f"register: match, encode and decode of codec {codec.name!r} must be callable")
    with _lock:
        known = _user.get(code)
        if known is not None and known.name != codec.name:
            raise CodecError(
                f"register: code {code} of codec {codec.name!r} is {known.name!r}'s; take another of 64-127"
            )
        rest = {c: k for c, k in _user.items() if c != code}
        _replace_user({code: codec, **rest})


def _replace_user(table: dict[int, Codec]) -> None:
    global _user
    _user = table  # swapped whole: readers iterate over it without the lock


def encoder(kind: type) -> _Encoder | None:
    """Return ``(code, encode)`` of the built-in or package codec for exactly this type, or None."""
    found = _encoders.get(kind)
    if found is not None:
        return found
    package = getattr(kind, "__module__", "")
    package = package.partition(".")[0] if isinstance(package, str) else ""
    if package not in _PACKAGES or package not in sys.modules:
        return None
    find: Callable[[type], _Encoder | None] = import_module(_PACKAGES[package]).encoder
    found = find(kind)
    if found is not None:
        _encoders[kind] = found
    return found


def user_encoder(value: object) -> Codec | None:
    """Return the user's codec that takes this value, or None. What its `match` raises comes through."""
    for codec in _user.values():
        match = codec.match
        if type(value) is match if isinstance(match, type) else match(value):
            return codec
    return None


def user_decoder(code: int) -> Codec | None:
    """Return the user's codec of this code, or None."""
    return _user.get(code)


def decoder(code: int) -> Callable[[bytes], Any] | None:
    """Return the built-in or package decoder of this code, importing the package; None for an unknown code.

    Raises
    ------
    UnpackError
        When the package is not installed.
    """
    found = _decoders.get(code)
    if found is not None or code not in _PACKAGE_CODES:
        return found
    package, home, name = _PACKAGE_CODES[code]
    try:
        decode: Callable[[bytes], Any] = getattr(import_module(home), name)
    except ImportError as e:
        pip = _INSTALL.get(package, package)
        raise UnpackError(
            f"cannot unpack a {package} value: no {package} here ({e}). Install it: pip install {pip}"
        ) from e
    _decoders[code] = decode
    return decode
