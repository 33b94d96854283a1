"""A terminal's colours and weights as HTML that reads on white and on black, trusted or not; pure.

JupyterLab takes every ``<style>`` from a notebook that it does not trust and GitHub every inline one too. So
weights are elements and colours stand inline; without them the text is left as it is.
"""

from __future__ import annotations

from html import escape
from typing import Final

from lakeshore.notebook.render_terminal import PLAIN, Line, Pen

PALETTE: Final = 2 * ["#767676", "#d13a40", "#23863a", "#94700a", "#3b74d8", "#a951c0", "#137f88", "#767676"]
"""The sixteen, each of a luminance that has about 4.5 : 1 against white and against black."""
_DARKEST, _LIGHTEST = 0.13, 0.22
"""Luminance that text without a background of its own is brought to."""


def line_html(line: Line) -> str:
    """Return a line as escaped HTML: colours inline, weights as elements."""
    return "".join(_run_html(text, pen) for text, pen in line)


def _run_html(text: str, pen: Pen) -> str:
    body = escape(text, quote=False)
    if pen == PLAIN:
        return body
    for tag, on in (("u", pen.underline), ("i", pen.italic), ("b", pen.bold)):
        if on:
            body = f"<{tag}>{body}</{tag}>"
    style = _style(pen)
    return f'<span style="{style}">{body}</span>' if style else body


def _style(pen: Pen) -> str:
    fg, bg = (pen.bg, pen.fg or "7") if pen.inverse else (pen.fg, pen.bg)
    rules = []
    if bg:
        behind = _hex(bg)
        light = _luminance(behind) > 0.18
        rules += [f"background-color:{behind}", f"color:{'#000' if light else '#fff'}"]
    elif fg:
        rules.append(f"color:{_readable(_hex(fg))}")
    if pen.dim:
        rules.append("opacity:.72")
    return ";".join(rules)


def _hex(colour: str) -> str:
    return colour if colour.startswith("#") else PALETTE[int(colour)]


def _linear(colour: str) -> list[float]:
    """The channels as light; Source: WCAG 2.1, relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def _luminance(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _readable(colour: str) -> str:
    have = _luminance(colour)
    want = min(_LIGHTEST, max(_DARKEST, have))
    if want == have:
        return colour
    light = _linear(colour)
    if want < have:
        light = [c * want / have for c in light]
    else:
        white = (want - have) / (1 - have)
        light = [c + (1 - c) * white for c in light]
    channels = [12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in light]
    return "#" + "".join(f"{round(255 * c):02x}" for c in channels)
