"""A job's packed bytes as people read them: what it returned, and which call it is; pure and bounded."""

from __future__ import annotations

from lakeshore import wire
from lakeshore.errors import LakeshoreError
from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_numerals import size
from lakeshore.notebook.render_values import Shown, clip, figure, is_rich, one_line, show

RESULT_BYTES = 1024 * 1024
"""A larger result is told of by its size and never unpacked for a panel."""
CALL_BYTES = 4096
"""Packed arguments above this are shown as an ellipsis."""


def result_shown(data: bytes | None) -> Shown | Figure | None:
    """Return what a panel shows of a packed result; None for None and for what cannot be unpacked here."""
    if not data:
        return None
    if len(data) > RESULT_BYTES:
        return Shown(f"a result of {size(len(data))}, too large to show here")
    try:
        value = wire.unpack(data)
    except LakeshoreError:
        return None  # asking for the result raises it; a panel goes on without
    if value is None:
        return None
    return (figure(value) if is_rich(value) else None) or show(value)


def call_shown(data: bytes | None) -> str:
    """Return an envelope as the call it stands for, ``"train(0.1, rounds=40)"``; ``""`` for a payload.

    Arguments that travel with the function's own code are not there to be read; the name alone is left.
    """
    try:
        envelope = wire.Envelope.from_bytes(data or b"")
        name = str(envelope.cfg.get("name") or envelope.fn.get("qualname") or "").rpartition("<locals>.")[2]
        if len(envelope.args) + len(envelope.kwargs) > CALL_BYTES:
            return f"{name}(\u2026)"
        positional, named = wire.unpack(envelope.args), wire.unpack(envelope.kwargs)
    except LakeshoreError:
        return ""  # a plain payload is no call
    if not isinstance(positional, list) or not isinstance(named, dict):
        return name
    words = [_argument(value) for value in positional]
    words += [f"{clip(str(key), 40)}={_argument(value)}" for key, value in named.items()]
    return f"{name}({', '.join(words)})" if words else name


def _argument(value: object) -> str:
    text = one_line(value)
    return text if len(text) <= 40 else f"{text[:39]}\u2026"
