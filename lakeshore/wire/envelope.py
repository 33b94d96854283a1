"""The envelope: one remote invocation as bytes, its arguments nested so that nobody on the way reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lakeshore.errors import PackError, UnpackError
from lakeshore.wire.codecs import plain_packb
from lakeshore.wire.sizes import oversize
from lakeshore.wire.values import decode_plain, pack

WIRE_VERSION = 1


@dataclass(slots=True, repr=False)
class Envelope:
    """What a worker needs to run one invocation.

    Attributes
    ----------
    id : str
        The invocation.
    fn : dict
        ``{"kind": "ref", ...}`` or ``{"kind": "pickle", ...}``.
    args, kwargs : bytes
        ``wire.pack`` of the list of positional and the dict of keyword arguments.
    prefix : str
        The scope that relative keys are written under; ``""`` is the root.
    key : str or None
        The idempotency key it was submitted with.
    cfg : dict
        ``retries``, ``backoff``, ``timeout``, ``code``, ``name``, ``log``; all optional.
    parent : str or None
        The invocation that submitted this one.
    v : int
        The wire version.
    """

    id: str
    fn: dict[str, Any]
    args: bytes
    kwargs: bytes
    prefix: str = ""
    key: str | None = None
    cfg: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    v: int = WIRE_VERSION

    def to_bytes(self, *, limit: int | None = None) -> bytes:
        """Return the envelope's bytes.

        Parameters
        ----------
        limit : int or None
            The most bytes it may have; None for no limit.

        Raises
        ------
        PackError
            When a field has the wrong type or holds what cannot travel, or the whole is over `limit`.
        """
        table = {
            "v": self.v,
            "id": self.id,
            "fn": self.fn,
            "args": self.args,
            "kwargs": self.kwargs,
            "prefix": self.prefix,
            "key": self.key,
            "cfg": self.cfg,
            "parent": self.parent,
        }
        wrong = _wrong_field(table)
        if wrong:
            raise PackError(f"cannot pack envelope {self.id!r}: {wrong}")
        data = _packed(table)
        if data is None:
            pack(table, at="envelope")  # it knows the reason and names the path
            raise PackError(
                f"cannot pack envelope {self.id!r}: fn and cfg take plain values only, no tuples and such"
            )
        if limit is not None and len(data) > limit:
            raise PackError(oversize(f"envelope {self.id!r}", len(data), limit))
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read an envelope; keys that this version does not know are left out.

        Raises
        ------
        UnpackError
            When the bytes are no envelope, are damaged, or of a newer wire version.
        """
        table = decode_plain(data, "envelope")
        v = table.get("v") if type(table) is dict else None
        if type(v) is not int or v < 1:
            raise UnpackError("not an envelope: these bytes are no map with a version `v` of 1 or more")
        if v > WIRE_VERSION:
            raise UnpackError(
                f"envelope of wire version {v}, this lakeshore reads version {WIRE_VERSION}. "
                "Upgrade it here: pip install -U jupyter-lakeshore"
            )
        known: dict[str, Any] = {**_DEFAULTS, **{name: table[name] for name in _TYPES if name in table}}
        known["cfg"] = {} if known["cfg"] is None else known["cfg"]
        known["prefix"] = "" if known["prefix"] is None else known["prefix"]
        wrong = _wrong_field(known)
        if wrong:
            raise UnpackError(f"damaged envelope: {wrong}")
        return cls(**known)

    def __repr__(self) -> str:
        label = self.fn.get("qualname") if type(self.fn) is dict else None
        kind = self.fn.get("kind") if type(self.fn) is dict else None
        sizes = f"{len(self.args)} B args, {len(self.kwargs)} B kwargs"
        key = "" if self.key is None else f", key={self.key!r}"
        return f"<Envelope {self.id} {kind} {label}, {sizes}{key}>"


_TYPES: dict[str, tuple[type, ...]] = {
    "v": (int,),
    "id": (str,),
    "fn": (dict,),
    "args": (bytes,),
    "kwargs": (bytes,),
    "prefix": (str,),
    "key": (str, type(None)),
    "cfg": (dict,),
    "parent": (str, type(None)),
}
_DEFAULTS: dict[str, Any] = {"prefix": "", "key": None, "cfg": None, "parent": None}


def _packed(table: dict[str, Any]) -> bytes | None:
    try:
        data: bytes = plain_packb(table)
    except Exception:  # noqa: BLE001 - the caller asks `pack` why, away from this handler
        return None
    return data


def _wrong_field(table: dict[str, Any]) -> str | None:
    for name, kinds in _TYPES.items():
        if name not in table:
            return f"{name!r} is missing"
        if type(table[name]) not in kinds:
            wants = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            return f"{name!r} wants {wants}, got {type(table[name]).__name__}"
    return None
