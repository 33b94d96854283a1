"""Pictures as ``<img src="data:...">`` of a known size, checked before they are shown; pure.

A picture is hostile input like any value. Its size stands in the element, so that nothing jumps while the
browser decodes it.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from html import escape
from typing import Any

from lakeshore.notebook.render_numerals import size

MAX_IMAGE_BYTES = 1024 * 1024
MAX_PIXELS = 25_000_000
MAX_SIDE = 1024
"""Pixels on the longer side that a PIL image is shrunk to before it is sent."""
SHOWN_WIDTH, SHOWN_HEIGHT = 900, 420
"""CSS pixels that a picture is scaled down to fit."""
RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")
_SVG_TAG = re.compile(rb"<svg\b[^>]{0,4096}")
_SVG_SIDE = re.compile(rb"""\s(width|height)\s*=\s*["']\s*([0-9]{1,6}(?:\.[0-9]{0,6})?)\s*(px|pt)?\s*["']""")


@dataclass(frozen=True, slots=True)
class Figure:
    """A rich thing that a job showed.

    Attributes
    ----------
    html : str
        Safe HTML: an ``<img src="data:...">``, a sanitised block, or a note why it is not shown.
    text : str
        One line for places without HTML.
    """

    html: str
    text: str


def shrunk(value: Any) -> Any:
    """Return a PIL image with at most `MAX_SIDE` pixels a side; anything else as it is."""
    dims = getattr(value, "size", None)
    if not (
        callable(getattr(value, "thumbnail", None))
        and isinstance(dims, tuple)
        and max(dims, default=0) > MAX_SIDE
    ):
        return value
    copy = value.copy()
    copy.thumbnail((MAX_SIDE, MAX_SIDE))
    return copy


def raster(mime: str, raw: bytes | None, text: str) -> Figure:
    """Return a raster image as a figure, or why it is not shown."""
    if raw is None:
        return refused(text, f"its {mime} is not base64")
    if len(raw) > MAX_IMAGE_BYTES:
        return refused(
            text, f"its image has {size(len(raw))}, over the {size(MAX_IMAGE_BYTES)} a panel shows"
        )
    if not dimensions_ok(raw):
        return refused(text, f"its {mime} is broken, or over {MAX_PIXELS:,} pixels")
    return _picture(mime, raw, text, dimensions(raw))


def svg(raw: bytes | None, text: str) -> Figure:
    """Return an SVG as a figure, or why it is not shown."""
    if raw is None or len(raw) > MAX_IMAGE_BYTES // 4 or b"<!ENTITY" in raw:
        return refused(text, f"its SVG is broken, declares entities, or is over {size(MAX_IMAGE_BYTES // 4)}")
    # An SVG in an <img> runs no script and fetches nothing; the same SVG inline would.
    tag = _SVG_TAG.search(raw)
    found = _SVG_SIDE.findall(tag[0]) if tag else []
    sides = {side: float(n) * (4 / 3 if unit == b"pt" else 1) for side, n, unit in found}
    dims = (sides[b"width"], sides[b"height"]) if len(sides) == 2 else None
    return _picture("image/svg+xml", raw, text, dims)


def _picture(mime: str, raw: bytes, text: str, dims: tuple[float, float] | None) -> Figure:
    data, place = base64.b64encode(raw).decode("ascii"), ""
    if dims and min(dims) > 0:
        scale = min(1.0, SHOWN_WIDTH / dims[0], SHOWN_HEIGHT / dims[1])
        width, height = (max(1, round(side * scale)) for side in dims)
        place = f' width="{width}" height="{height}"'
    return Figure(f'<img alt="{escape(text[:120])}"{place} src="data:{mime};base64,{data}">', text)


def refused(text: str, why: str) -> Figure:
    """Return a figure that says why something is not shown."""
    note = f"{text}: not shown, {why}"
    return Figure(f'<p class="lk-mute">{escape(note)}</p>', note)


def as_bytes(data: Any, *, encoded: bool = True) -> bytes | None:
    """Return a display's data as bytes, or None when it is neither bytes nor base64."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, str):
        return None
    return decode(data) if encoded else data.encode("utf-8", "replace")


def decode(text: str) -> bytes | None:
    """Return base64 as bytes, or None when it is none."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def dimensions_ok(raw: bytes) -> bool:
    """Tell whether a raster image says its size, and is not too large."""
    dims = dimensions(raw)
    return dims is not None and 0 < dims[0] * dims[1] <= MAX_PIXELS


def dimensions(raw: bytes) -> tuple[int, int] | None:
    """Return the (width, height) that a PNG, GIF, WebP or JPEG declares, or None when it is none of them."""

    def big(at: int, n: int) -> int:
        return int.from_bytes(raw[at : at + n], "big")

    def little(at: int, n: int) -> int:
        return int.from_bytes(raw[at : at + n], "little")

    if raw[:8] == b"\x89PNG\r\n\x1a\n" and raw[12:16] == b"IHDR":
        return big(16, 4), big(20, 4)
    if raw[:6] in (b"GIF87a", b"GIF89a"):
        return little(6, 2), little(8, 2)
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        if raw[12:16] == b"VP8X":
            return little(24, 3) + 1, little(27, 3) + 1
        if raw[12:16] == b"VP8L":
            bits = little(21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        return little(26, 2) & 0x3FFF, little(28, 2) & 0x3FFF
    if raw[:2] == b"\xff\xd8":
        at = 2
        while at + 9 < len(raw) and raw[at] == 0xFF:
            marker = raw[at + 1]
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                return big(at + 7, 2), big(at + 5, 2)
            at += 2 + max(2, big(at + 2, 2))
    return None
