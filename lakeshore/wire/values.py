"""`pack` and `unpack`: any wire value to bytes and back, exactly or not at all.

msgpack's C code does the work; Python walks a value only to prove it exact, and to say where it is not.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain, compress
from typing import Any

import msgpack
from msgpack import ExtType, unpackb

from lakeshore.errors import PackError, UnpackError
from lakeshore.wire import registry
from lakeshore.wire.codecs import Refused, plain_packb
from lakeshore.wire.sizes import outgrows, oversize

MAX_DEPTH = 512
_FAST_EXTS = 4  # ExtTypes one in the other before the walk takes over: each costs C stack
_TUPLE, _SET, _FROZENSET, _SLICE = 5, 15, 16, 23
_NESTING: dict[type, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET, slice: _SLICE}
_CONTAINERS = frozenset({list, dict, *_NESTING})
_SCALARS = frozenset({type(None), bool, float, bytes})
# msgpack writes these itself, without asking, and would bring them back as something else
_UNASKED = frozenset({bytearray, memoryview, ExtType, msgpack.Timestamp})
# ... which takes one of these bytes: bin and ext headers
_SUSPECT = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
_MAX_LENGTH = 2**32 - 1
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


class _Walk(Exception):
    """The fast path ends here: the walk decides."""


def pack(value: Any, *, limit: int | None = None, at: str = "") -> bytes:
    """Return the bytes of `value`.

    Parameters
    ----------
    value : object
        Any wire value: scalars, containers and the types of the ext table, nested up to 512 deep.
    limit : int or None
        The most bytes the result may have; None for no limit.
    at : str
        What to call `value` in a message, such as ``"args"``.

    Raises
    ------
    PackError
        When something in it has no exact form on the wire (the message has the path to it and the
        way out), when it is nested too deep or holds itself, or when it is over `limit`.
    """
    what = f"value{' at ' + at if at else ''}"
    if outgrows(value, limit or _MAX_LENGTH, depth=MAX_DEPTH):
        raise PackError(oversize(what, None, limit or _MAX_LENGTH))
    data = _pack_fast(value)
    if data is None:  # not within a handler: a refusal would show what stopped the fast path as its context
        data = _pack_walking(value, at)
    if limit is not None and len(data) > limit:
        raise PackError(oversize(what, len(data), limit))
    return data


def unpack(data: bytes) -> Any:
    """Return the value that `pack` made these bytes of.

    Raises
    ------
    UnpackError
        When the bytes are truncated, forged, nested too deep, or need a package that is not installed.
    """
    return decode(data, MAX_DEPTH)


# ---- packing


def _pack_fast(value: Any) -> bytes | None:
    """Return the bytes that msgpack's C code makes, or None where the walk has to decide."""
    try:
        data: bytes = _packers[0](value)
        if len(data) > MAX_DEPTH or _SUSPECT.search(data) is not None:
            _check(value, MAX_DEPTH, asked=True)
    except Exception:  # noqa: BLE001 - whatever stopped the fast path, the walk packs it or says why not
        return None
    return data


def _make_default(level: int) -> Callable[[Any], ExtType]:
    def default(value: Any) -> ExtType:
        kind = type(value)
        code = _NESTING.get(kind)
        if code is not None:
            if level == _FAST_EXTS:
                raise _Walk
            return ExtType(code, _packers[level + 1](_items(value)))
        found = registry.encoder(kind)
        if found is None:
            raise _Walk
        return ExtType(found[0], found[1](value))

    return default


_packers: list[Callable[[Any], bytes]] = [
    partial(plain_packb, default=_make_default(level)) for level in range(_FAST_EXTS + 1)
]


def _items(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step] if type(value) is slice else list(value)


def _check(value: Any, depth: int, *, asked: bool) -> None:
    """Raise `_Walk` where `value` is deeper than `depth`, or (`asked`) holds what msgpack writes unasked."""
    items: Collection[Any] = [value]
    for _ in range(depth + 1):
        kinds = set(map(type, items))
        if asked and not kinds.isdisjoint(_UNASKED):
            raise _Walk
        nested = kinds & _CONTAINERS
        if not nested:
            return
        level = list(items)
        if len(nested) < len(kinds):
            level = list(compress(items, map(_CONTAINERS.__contains__, map(type, items))))
        items = []
        if dict in nested:
            dicts = level if len(nested) == 1 else [c for c in level if type(c) is dict]
            items = list(chain.from_iterable(map(dict.values, dicts)))
            if set(map(type, chain.from_iterable(dicts))) != {str}:
                items += chain.from_iterable(dicts)
            level = [] if len(nested) == 1 else [c for c in level if type(c) is not dict]
        if slice in nested:
            level = [_items(c) if type(c) is slice else c for c in level]
        items = level[0] if len(level) == 1 and not items else [*items, *chain.from_iterable(level)]
    raise _Walk


def _pack_walking(value: Any, at: str) -> bytes:
    path: list[tuple[str, Any]] = []
    try:
        plain = _plain(value, path, set())
        return plain_packb(plain)
    except PackError:
        raise
    except Refused as e:
        reason = str(e)
    except RecursionError:
        reason = f"{_TOO_DEEP}, or deeper than Python's recursion limit leaves room for here. Flatten it"
    except MemoryError:
        raise
    except Exception as e:  # noqa: BLE001 - a value's own code ran: its length, its iteration, its class
        what = "it failed"
        if "recursion limit" in str(e):  # msgpack before 1.2 stops a level earlier
            what = f"{_TOO_DEEP}, or deeper than this msgpack allows"
        elif "changed" in str(e) and "iteration" in str(e):
            what = "it changed while it was packed"
        reason = f"{what} ({type(e).__name__}: {e})"
    where = (at + _where(path)).lstrip()
    raise PackError(f"cannot pack value{' at ' + where if where else ''}: {reason}")


def _plain(value: Any, path: list[tuple[str, Any]], above: set[int]) -> Any:
    """Return `value` in msgpack's own types and ExtTypes. On a refusal, `path` says where it happened."""
    kind = type(value)
    if kind in _SCALARS and (kind is not bytes or len(value) <= _MAX_LENGTH):
        return value
    if kind is int and -(2**63) <= value < 2**64:
        return value
    if kind is str:
        return _plain_text(value)
    if kind not in _CONTAINERS:
        return _plain_leaf(value)
    if id(value) in above:
        raise Refused("it contains itself, and would nest without end")
    if len(above) >= MAX_DEPTH:
        raise Refused(f"{_TOO_DEEP}. Flatten it")
    above.add(id(value))
    if kind is dict:
        table = {}
        for key, item in value.items():
            path.append(("key", key))
            plain_key = _plain(key, path, above)
            path[-1] = ("item", key)
            table[plain_key] = _plain(item, path, above)
            path.pop()
        above.discard(id(value))
        if len(table) != len(value):
            raise Refused("two of its keys look the same on the wire (is one a NaN?)")
        return table
    items = []
    for index, item in enumerate(_items(value)):
        path.append(("part" if kind is slice else "item", index))
        items.append(_plain(item, path, above))
        path.pop()
    above.discard(id(value))
    return items if kind is list else ExtType(_NESTING[kind], plain_packb(items))


def _plain_text(value: str) -> str:
    try:
        size = len(value.encode())
    except UnicodeEncodeError as e:
        raise Refused(
            f"the str holds a lone surrogate at index {e.start}, which UTF-8 cannot; "
            "send bytes: value.encode('utf-8', 'surrogateescape')"
        ) from None
    if size > _MAX_LENGTH:
        raise Refused("a str of 4 GiB or more does not fit; write it to a file with run.write(key)")
    return value


def _plain_leaf(value: Any) -> ExtType:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        found = registry.encoder(kind)
        if found is not None:
            return ExtType(found[0], found[1](value))
    except ImportError as e:
        raise Refused(f"{name} needs a package that is not there: {e}") from e
    except (MemoryError, RecursionError, Refused):
        raise
    except Exception as e:
        raise Refused(f"{name} cannot be encoded: {type(e).__name__}: {e}") from e
    try:
        codec = registry.user_encoder(value)
        body = codec and codec.encode(value)
    except (MemoryError, RecursionError):
        raise
    except Exception as e:
        raise Refused(f"a registered codec failed on {name}: {type(e).__name__}: {e}") from e
    if codec is None:
        raise Refused(f"no codec for {kind.__qualname__!r}; {advice(value)}")
    if type(body) is not bytes:
        raise Refused(
            f"encode of codec {codec.name!r} returned {type(body).__name__}, wants bytes; use wire.pack"
        )
    return ExtType(codec.code, body)


def _where(path: list[tuple[str, Any]]) -> str:
    texts = []
    for kind, step in path if len(path) <= 24 else (*path[:12], ("gap", None), *path[-12:]):
        if kind == "gap":
            texts.append(" ... ")
        elif kind == "part":
            texts.append(f".{('start', 'stop', 'step')[step]}")
        else:
            texts.append(f"[{_short(step)}]" if kind == "item" else f" key {_short(step)}")
    return "".join(texts)


def _short(key: Any) -> str:
    try:
        text = f'"{key}"' if type(key) is str and '"' not in key and key.isprintable() else repr(key)
    except Exception:  # noqa: BLE001 - a key's own repr may fail, and the refusal must not
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


_ADVICE: tuple[tuple[str, str], ...] = (
    ("memoryview", "send bytes(value)"),
    ("ExtType", "register a codec for the type it stands for"),
    ("Timestamp", "send value.to_datetime()"),
    ("ellipsis", "it means something to its own function only: send None, or a str"),
    ("NotImplementedType", "it means something to its own function only: send None, or a str"),
    ("OrderedDict", "send dict(value), which keeps the order, or list(value.items())"),
    ("deque", "send list(value)"),
)


def advice(value: object) -> str:
    """Return what to send in place of `value`, which has no codec."""
    kind = type(value)
    for known, text in _ADVICE:
        if kind.__name__ == known:
            return text
    if isinstance(value, enum.Enum):
        return "an Enum comes back as no Enum: send its .value, or register a codec"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "a dataclass: send dataclasses.asdict(value), or register a codec"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return "a namedtuple: send value._asdict() or tuple(value), or register a codec"
    if hasattr(kind, "model_dump"):
        return "a pydantic model: send value.model_dump(), or register a codec"
    if isinstance(value, BaseException):
        return "raise it, or send its text: str(value)"
    for base in (str, bytes, bytearray, int, float, complex, dict, list, tuple, set, frozenset):
        if isinstance(value, base):
            return f"a subclass of {base.__name__} comes back as {base.__name__}: send {base.__name__}(value)"
    if isinstance(value, type) or callable(value):
        return "code does not travel as a value: submit thunk(f, ...)"
    if isinstance(value, Iterable):
        return "send list(value), a dict of plain values, or register a codec with wire.register"
    return "return a dict of plain values, or register a codec with wire.register"


# ---- unpacking


def decode(data: bytes, depth: int) -> Any:
    """Return the value of these bytes, its containers nested at most `depth` deep. Raises `UnpackError`."""
    try:
        try:
            value = load(data, _hooks[0])
            if len(data) > depth:  # a level takes a byte at least
                _check(value, depth, asked=False)
        except _Walk:
            box = [load(data, ExtType)]
            _resolve(box, 0, depth)
            value = box[0]
    except UnpackError:
        raise
    except RecursionError as e:
        raise UnpackError("cannot unpack: nested too deep for Python's recursion limit here") from e
    except Exception as e:
        raise UnpackError(f"cannot unpack: {_reason(e, data)}") from e
    return value


def decode_plain(data: bytes, what: str) -> Any:
    """Return a value of msgpack's own types, ExtTypes as they are. Raises `UnpackError` that names `what`."""
    try:
        value = load(data, ExtType)
        if len(data) > MAX_DEPTH:
            _check(value, MAX_DEPTH, asked=False)
    except _Walk:
        raise UnpackError(f"cannot unpack {what}: {_TOO_DEEP}") from None
    except Exception as e:
        raise UnpackError(f"not an {what}: {_reason(e, data)}") from e
    return value


def _reason(error: Exception, data: bytes) -> str:
    if type(data) is not bytes and not isinstance(data, (bytearray, memoryview)):
        return f"wants bytes, got {type(data).__name__}"
    if isinstance(error, ImportError):
        return f"it needs a package that is not there ({error}). Install it here: pip install {error.name}"
    if isinstance(error, msgpack.exceptions.StackError):
        return _TOO_DEEP
    if isinstance(error, msgpack.exceptions.ExtraData):
        return f"{len(error.extra)} bytes are left over after the value"
    return f"the bytes are damaged or not ours ({type(error).__name__}: {error})"


def load(data: bytes, ext_hook: Callable[[int, bytes], Any]) -> Any:
    """Return msgpack's reading of `data`, after proving that no declared length is a lie."""
    if len(data) > MAX_DEPTH:
        # the decoder allocates a list at its declared length; skipping allocates nothing
        scan = msgpack.Unpacker(max_buffer_size=len(data))
        scan.feed(data)
        scan.skip()
    return unpackb(data, ext_hook=ext_hook, strict_map_key=False, timestamp=3)


def _build(code: int, items: Any) -> Any:
    if type(items) is not list:
        raise UnpackError(f"cannot unpack: ext {code} wants a list, got {type(items).__name__}")
    if code == _TUPLE:
        return tuple(items)
    if code == _SLICE:
        if len(items) != 3:
            raise UnpackError(f"cannot unpack: a slice wants 3 items, got {len(items)}")
        return slice(*items)
    return set(items) if code == _SET else frozenset(items)


def _make_hook(level: int) -> Callable[[int, bytes], Any]:
    def hook(code: int, data: bytes) -> Any:
        if code in _NESTING_CODES:
            if level == _FAST_EXTS:
                raise _Walk
            return _build(code, load(data, _hooks[level + 1]))
        found = registry.decoder(code)
        if found is not None:
            return found(data)
        if registry.user_decoder(code) is not None:
            raise _Walk
        return ExtType(code, data)

    return hook


_NESTING_CODES = frozenset(_NESTING.values())
_hooks: list[Callable[[int, bytes], Any]] = [_make_hook(level) for level in range(_FAST_EXTS + 1)]


def _resolve(box: list[Any], at: int, room: int) -> None:
    """Decode the ExtTypes of ``box[at]`` in place: one Python frame a level, none of C's stack.

    The box lets go of the encoded bytes before the next level's are made, so nesting does not multiply them.
    """
    value, code = box[at], None
    if type(value) is ExtType:
        code, data = value
        box[at] = value = None
        if code not in _NESTING_CODES:
            box[at] = _decode_leaf(code, data)
            return
        value = load(data, ExtType)
        del data
        if type(value) is not list:
            _build(code, value)  # raises
    elif type(value) is not list and type(value) is not dict:
        return
    if room <= 0:
        raise UnpackError(f"cannot unpack: {_TOO_DEEP}")
    is_map = type(value) is dict
    items = [*value.keys(), *value.values()] if is_map else value
    box[at] = value = None
    for index in range(len(items)):
        _resolve(items, index, room - 1)
    if is_map:
        half = len(items) // 2
        box[at] = dict(zip(items[:half], items[half:], strict=True))
    else:
        box[at] = items if code is None else _build(code, items)


def _decode_leaf(code: int, data: bytes) -> Any:
    found = registry.decoder(code)
    if found is not None:
        return found(data)
    codec = registry.user_decoder(code)
    if codec is None:
        return ExtType(code, data)
    try:
        return codec.decode(data)
    except (UnpackError, RecursionError):
        raise
    except Exception as e:
        raise UnpackError(
            f"cannot unpack: codec {codec.name!r} (ext {code}) failed: {type(e).__name__}: {e}"
        ) from e
