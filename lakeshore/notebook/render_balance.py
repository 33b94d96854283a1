"""HTML made well nested and shallow, before a parser that repairs HTML sees it.

A browser's parser opens an unclosed ``<b>`` again in each paragraph that follows, so a few kilobytes of tag
soup become many megabytes. Here each tag is closed where its parent ends, and nesting has a bound: time and
size grow with the length of the input only. This is not the sanitiser: what leaves here is still hostile.
"""

from __future__ import annotations

import re
from collections.abc import Set

MAX_DEPTH = 64
"""Tags within one another; deeper ones are left out, their content stays."""
MAX_FORMATS = 8
"""Open tags that a parser would open again elsewhere, such as ``<b>``."""

_VOID = frozenset({"br", "hr", "img"})
_FORMATS = frozenset({"b", "code", "em", "i", "s", "small", "strong", "u"})
_TABLE = frozenset({"table", "thead", "tbody", "tfoot", "tr", "td", "th", "caption"})
_CELLS = frozenset({"td", "th"})
_SECTIONS = frozenset({"thead", "tbody", "tfoot", "tr", "caption", *_CELLS})
_ENDED_BY: dict[str, Set[str]] = {
    "p": {"p"},
    "li": {"li", "p"},
    "dt": {"dt", "dd", "p"},
    "dd": {"dt", "dd", "p"},
    "td": _CELLS,
    "th": _CELLS,
    "tr": {"tr", "caption", *_CELLS},
    "thead": _SECTIONS,
    "tbody": _SECTIONS,
    "tfoot": _SECTIONS,
}
"""Which open tags end where the next of its kind starts, as people leave their end out."""

_TOKEN = re.compile(
    r"(?P<text>[^<]+)"
    r"|<!--(?P<comment>)"
    r"|</(?P<end>[a-zA-Z][^\s/>]*)[^>]*>"
    r"|<(?P<start>[a-zA-Z][^\s/>]*)(?P<attributes>(?:[^>=]|=\s*(?:\"[^\"]*\"|'[^']*')?)*+)>"
    r"|<(?P<cut>[a-zA-Z/!?])"
    r"|(?P<sign><)"
)
_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+)))?")


def balanced(html: str, *, tags: Set[str], attributes: Set[str], without_content: Set[str]) -> str:
    """Return HTML of some tags and attributes only, each tag closed within its parent.

    Parameters
    ----------
    html : str
        Any text.
    tags, attributes : set of str
        What is kept. A tag that is not kept leaves its content. Formats (``<b>``) keep no attribute.
    without_content : set of str
        Tags that go with all that is in them.
    """
    out: list[str] = []
    opened: list[str] = []
    at = 0
    while at < len(html):
        token = _TOKEN.match(html, at)
        assert token is not None
        kind, at = token.lastgroup, token.end()
        if kind == "text":
            out.append(token[0])
        elif kind == "sign":
            out.append("&lt;")
        elif kind == "comment":
            at = _after(html, "-->", at)
        elif kind == "cut":
            # A declaration, or a tag that the text ends in.
            at = _after(html, ">", at)
        elif kind == "end":
            _close(token["end"].lower(), opened, out)
        else:
            name = token["start"].lower()
            if name in without_content:
                ending = re.compile(f"</{re.escape(name)}[^>]*>", re.IGNORECASE).search(html, at)
                at = ending.end() if ending is not None else len(html)
            elif name in tags:
                _open(name, "" if name in _FORMATS else _kept(token["attributes"], attributes), opened, out)
    out.extend(f"</{name}>" for name in reversed(opened))
    return "".join(out)


def _after(html: str, sign: str, at: int) -> int:
    found = html.find(sign, at)
    return found + len(sign) if found >= 0 else len(html)


def _open(name: str, attributes: str, opened: list[str], out: list[str]) -> None:
    while opened and opened[-1] in _ENDED_BY.get(name, ()):
        out.append(f"</{opened.pop()}>")
    if name not in _VOID:
        if len(opened) >= MAX_DEPTH:
            return
        if name in _FORMATS and sum(each in _FORMATS for each in opened) >= MAX_FORMATS:
            return
        opened.append(name)
    out.append(f"<{name}{attributes}>")


def _close(name: str, opened: list[str], out: list[str]) -> None:
    for depth in range(len(opened) - 1, -1, -1):
        if opened[depth] == name:
            out.extend(f"</{each}>" for each in reversed(opened[depth:]))
            del opened[depth:]
            return
        if opened[depth] in _TABLE and name not in _TABLE:
            return  # what was opened outside a cell is not closed inside


def _kept(text: str, attributes: Set[str]) -> str:
    kept: list[str] = []
    for name, double, single, bare in _ATTRIBUTE.findall(text):
        if name.lower() in attributes:
            value = (double or single or bare).replace('"', "&quot;").replace("<", "&lt;")
            kept.append(f' {name.lower()}="{value}"')
    return "".join(kept)
