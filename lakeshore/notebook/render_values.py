"""A yielded value or a display, as something a view may show: text, fields, a sanitised block or an image.

Values are hostile input. Text leaves here with its controls made visible (the caller escapes it),
HTML leaves sanitised through an allow-list, images leave as size-checked ``data:`` URIs. Nothing
here fetches, and no cost grows with the size of a value beyond a bound.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import accumulate, islice
from numbers import Integral
from typing import Any

import nh3

from lakeshore.notebook.render_balance import balanced
from lakeshore.notebook.render_images import (
    RASTER,
    Figure,
    as_bytes,
    decode,
    dimensions_ok,
    raster,
    refused,
    shrunk,
    svg,
)
from lakeshore.notebook.render_numerals import as_float, is_number, number, size
from lakeshore.notebook.render_terminal import visible

MAX_TEXT = 600
"""Characters kept of one value's text."""
MAX_FIELDS = 64
MAX_HTML_BYTES = 64 * 1024
"""Of a display as it came; sanitised it may have twice that."""

_TAGS = set(
    re.findall(
        r"\w+",
        "table thead tbody tfoot tr th td caption b i em strong code pre p br hr div span ul ol li dl dt dd "
        "h1 h2 h3 h4 h5 h6 small sub sup blockquote img details summary s u kbd samp var mark figure "
        "figcaption",
    )
)
_ATTRIBUTES = {
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan", "scope"},
    "img": {"src", "alt"},
    "details": {"open"},
    "*": {"title"},
}
_ATTRIBUTE_NAMES = frozenset().union(*_ATTRIBUTES.values())
_DROPPED_WITH_CONTENT = {
    "script",
    "style",
    "title",
    "textarea",
    "template",
    "noscript",
    "iframe",
    "object",
    "svg",
    "math",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One value in the tail.

    Attributes
    ----------
    text : str
        The value as bounded text, several lines at most for a str; controls made visible.
    fields : tuple of (str, object) or None
        For a flat dict of scalars: its items, numbers as they are and the rest as text.
    """

    text: str
    fields: tuple[tuple[str, Any], ...] | None = None


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple = 3, 8, 8, 8
        self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = 8
        self.maxstring, self.maxlong, self.maxother = 160, 40, 120

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out an int of thousands of digits.
        return super().repr_int(x, level) if x.bit_length() < 1024 else number(x)

    def repr_float(self, x: float, level: int) -> str:
        return number(x)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        # The base class sorts first, which costs by the dict's size and loses its order.
        if level <= 0 and x:
            return "{\u2026}"
        items = [
            f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}"
            for k, v in islice(x.items(), self.maxdict)
        ]
        return "{" + ", ".join([*items, *(["\u2026"] if len(x) > self.maxdict else [])]) + "}"

    def repr_set(self, x: Any, level: int) -> str:
        items = [self.repr1(v, level - 1) for v in islice(x, self.maxset)] if level > 0 else []
        inner = ", ".join([*items, *(["\u2026"] if len(x) > len(items) else [])])
        return ("{" + inner + "}" if x else "()") if type(x) is set else f"frozenset({{{inner}}})"

    repr_frozenset = repr_set

    def repr_instance(self, x: Any, level: int) -> str:
        return describe(x) or super().repr_instance(x, level)


_SHORT = _Short()


def show(value: Any) -> Shown:
    """Return what the tail shows of a value; its cost does not grow with the value's size."""
    if isinstance(value, str):
        return Shown(clip(value))
    if type(value) is dict and 0 < len(value) <= MAX_FIELDS and all(_is_scalar(v) for v in value.values()):
        fields = tuple((clip(_key(k), 60), _field(v)) for k, v in value.items())
        return Shown(clip("  ".join(f"{k}={_plain(v)}" for k, v in fields)), fields)
    return Shown(clip(one_line(value)))


def one_line(value: Any) -> str:
    """Return a bounded, single-line text for any value."""
    if isinstance(value, bytes | bytearray):
        return f"{type(value).__name__}, {size(len(value))}"
    if is_number(value):
        return number(value) if isinstance(value, Integral) else repr(as_float(value))
    described = describe(value)
    if described:
        return described
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception as error:  # noqa: BLE001 - a repr is the user's code and may raise anything
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}>"


def describe(value: Any) -> str | None:
    """Return one line for arrays, tensors, tables and images by their shape; None for anything else."""
    kind = type(value).__name__
    try:
        shape = getattr(value, "shape", None)
        dtype = getattr(value, "dtype", None)
        if isinstance(shape, tuple) and all(isinstance(n, Integral) for n in shape):
            if shape == () or (math.prod(shape) <= 8 and len(shape) == 1 and dtype is not None):
                return " ".join(repr(value)[:MAX_TEXT].split())
            named = f" {str(dtype).replace('torch.', '')}" if dtype is not None else ""
            return f"{kind}{named} {' × '.join(str(n) for n in shape)}"
        dims, mode = getattr(value, "size", None), getattr(value, "mode", None)
        if isinstance(mode, str) and isinstance(dims, tuple) and len(dims) == 2:
            return f"{kind} {mode} {dims[0]} × {dims[1]}"
    except Exception as error:  # noqa: BLE001 - attributes of a foreign class may raise anything
        return f"<{kind}: {type(error).__name__}>"
    return None


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Return at most `limit` characters for `text`, controls made visible, the rest counted."""
    shown = visible(text[:limit])
    kept = min(limit, len(text))
    if len(shown) > limit:  # a mark is longer than what it stands for
        lengths = accumulate(len(visible(char)) for char in text[:limit])
        kept = sum(length <= limit for length in lengths)
        shown = visible(text[:kept])
    over = len(text) - kept
    return f"{shown}\u2026 +{over:,} characters" if over > 0 else shown


def is_rich(value: Any) -> bool:
    """Tell whether `figure` could show more of a value than text."""
    kind = type(value)
    return any(
        callable(getattr(kind, name, None))
        for name in ("_repr_png_", "_repr_jpeg_", "_repr_svg_", "_repr_html_", "_repr_mimebundle_")
    )


def figure(value: Any) -> Figure | None:
    """Return a rich value as a figure, or None when it shows nothing but text.

    A value may run code of its own class to show itself; what that raises is shown in its place.
    """
    try:
        return bundle_figure(_bundle(value), fallback=one_line(value))
    except Exception as error:  # noqa: BLE001 - a _repr_*_ method is the user's code and may raise anything
        note = f"{type(value).__name__}: showing it raised {type(error).__name__}: {error}"
        return Figure(f"<p>{escape(clip(note))}</p>", clip(note))


def bundle_figure(data: Mapping[str, Any], fallback: str = "display") -> Figure | None:
    """Return a mime bundle (a body's ``display()``) as a figure, or None when it holds only plain text."""
    plain = data.get("text/plain")
    text = clip(plain if isinstance(plain, str) and plain else fallback)
    for mime in RASTER:
        if mime in data:
            return raster(mime, as_bytes(data[mime]), text)
    if "image/svg+xml" in data:
        return svg(as_bytes(data["image/svg+xml"], encoded=False), text)
    html = data.get("text/html")
    if isinstance(html, str):
        if len(html) > MAX_HTML_BYTES:
            return refused(
                text, f"its HTML has {size(len(html))}, over the {size(MAX_HTML_BYTES)} a panel shows"
            )
        clean = sanitise(html)
        if len(clean.encode()) > 2 * MAX_HTML_BYTES:
            return refused(
                text, f"its HTML has {size(len(clean))} when made safe, over {size(2 * MAX_HTML_BYTES)}"
            )
        return Figure(f'<div class="lk-html">{clean}</div>', text)
    return None


def is_rich_bundle(data: Mapping[str, Any]) -> bool:
    """Tell whether `bundle_figure` makes a figure of a mime bundle."""
    return any(mime in data for mime in (*RASTER, "image/svg+xml")) or isinstance(data.get("text/html"), str)


def bundle_text(data: Mapping[str, Any]) -> str:
    """Return the plain text of a mime bundle, bounded."""
    plain = data.get("text/plain")
    return clip(plain) if isinstance(plain, str) else clip(", ".join(str(mime) for mime in islice(data, 4)))


def sanitise(html: str) -> str:
    """Return HTML with all but harmless tags and attributes removed, and balanced.

    No script, handler, style, class, id, link, form, frame or remote address survives; an image
    only with a raster ``data:`` address of an allowed size. Nesting is bounded, so time and size grow
    with the length of the input only.
    """
    nested = balanced(
        visible(html), tags=_TAGS, attributes=_ATTRIBUTE_NAMES, without_content=_DROPPED_WITH_CONTENT
    )
    clean = nh3.clean(
        nested,
        tags=_TAGS,
        clean_content_tags=_DROPPED_WITH_CONTENT,
        attributes=_ATTRIBUTES,
        attribute_filter=_attribute,
        url_schemes={"data"},
        link_rel=None,
    )
    return visible(clean)  # once more: a reference such as &#x202e; is a character only now


def _attribute(tag: str, name: str, value: str) -> str | None:
    if name in ("colspan", "rowspan"):
        return value if value.isascii() and value.isdigit() and len(value) < 4 else None
    if name == "src":
        head, _, body = value.partition(";base64,")
        mime = head.removeprefix("data:")
        raw = decode(body) if mime in RASTER and len(body) <= MAX_HTML_BYTES else None
        return value if raw is not None and dimensions_ok(raw) else None
    return value[:200]


def _bundle(value: Any) -> dict[str, Any]:
    bundle = getattr(value, "_repr_mimebundle_", None)
    if callable(bundle):
        data = bundle(include=None, exclude=None)
        data = data[0] if isinstance(data, tuple) else data
        if isinstance(data, dict) and data:
            return data
    value = shrunk(value)
    for name, mime in (
        ("_repr_png_", "image/png"),
        ("_repr_jpeg_", "image/jpeg"),
        ("_repr_svg_", "image/svg+xml"),
        ("_repr_html_", "text/html"),
    ):
        method = getattr(value, name, None)
        data = method() if callable(method) else None
        data = data[0] if isinstance(data, tuple) else data
        if data:
            return {mime: data}
    return {}


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else one_line(key)


def _field(value: Any) -> Any:
    if is_number(value):
        return value
    return clip(value, 120).replace("\n", "\u23ce") if isinstance(value, str) else str(value)


def _plain(value: Any) -> str:
    return number(value) if is_number(value) else value
