r"""What a body printed, as a terminal would show it: ANSI colours, ``\r``, ``\b``, tabs; all bounded.

Text here is hostile input. `Terminal` keeps a few lines of plain cells; nothing of an escape
sequence survives but the colours and weights of `Pen`.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

MAX_COLUMNS = 400
MAX_LINES = 200
MAX_FEED = 64 * 1024
"""Characters of one feed that are looked at: the newest. More than that never reaches the tail anyway."""

_TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|(?P<osc>\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?)"
    r"|(?P<esc>\x1b[^\[\]PX^_]?)"
    r"|(?P<move>[\r\n\b\t])"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_CUT = re.compile(r"\x1b(?:\[[0-?]*[ -/]*)?\Z")
_HELD = 64


def _marks() -> dict[int, str]:
    table = {c: chr(0x2400 + c) for c in range(32) if c not in (9, 10)}
    table[0x7F] = "\u2421"
    table.update(
        dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000), *range(0xE0000, 0xE0080)], "\ufffd")
    )
    hidden = (0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    table.update({c: f"\u27e8U+{c:04X}\u27e9" for c in hidden})
    table.update({0x2028: "\u23ce", 0x2029: "\u23ce"})
    return table


_MARKS = _marks()


def visible(text: str) -> str:
    """Return `text` with every control, bidi, invisible or unencodable character replaced by a visible mark.

    Newlines and tabs stay. So text can neither reorder what stands beside it nor hide.
    """
    return text.translate(_MARKS)


@dataclass(frozen=True, slots=True)
class Pen:
    """How a cell is drawn.

    Attributes
    ----------
    fg, bg : str
        ``""`` for the theme's own, ``"0"`` to ``"15"`` for the palette, or ``"#rrggbb"``.
    bold, dim, italic, underline, inverse : bool
        The weights that SGR knows.
    """

    fg: str = ""
    bg: str = ""
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    inverse: bool = False


PLAIN = Pen()
Line = tuple[tuple[str, Pen], ...]
"""Runs of text, each with its pen."""


class Terminal:
    """The last lines of a stream of text.

    Parameters
    ----------
    lines : int
        Finished lines kept.
    columns : int
        Characters kept of a line; the rest is counted and marked.
    """

    def __init__(self, *, lines: int = MAX_LINES, columns: int = MAX_COLUMNS) -> None:
        self._done: deque[Line] = deque(maxlen=lines)
        self._columns = columns
        self._cells: list[tuple[str, Pen]] = []
        self._column = 0
        self._over = 0
        self._pen = PLAIN
        self._held = ""
        self.total = 0

    def feed(self, text: str) -> None:
        """Take more output. Only the last `MAX_FEED` characters are looked at."""
        text = self._held + text
        self._held = ""
        if len(text) > MAX_FEED:
            self._new_line()
            text = text[-MAX_FEED:]
        cut = _CUT.search(text, max(0, len(text) - _HELD))
        if cut is not None:
            text, self._held = text[: cut.start()], cut[0]
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                self._write(token[0])
            elif kind == "move":
                self._move(token[0])
            elif kind == "final":
                self._control(token["args"], token["final"])
            elif kind == "other":
                self._write(token[0].translate(_MARKS) if token[0] != "\x07" else "")

    def divide(self, label: str) -> None:
        """Start a new line and put a divider there, such as ``"attempt 2"``."""
        if self._cells:
            self._new_line()
        self._done.append(((f"\u2500\u2500 {label} \u2500\u2500", Pen(dim=True)),))
        self.total += 1

    def lines(self, n: int) -> list[Line]:
        """Return the last `n` lines, the unfinished one included."""
        current = [self._finish()] if self._cells else []
        return [*list(self._done)[-n:], *current][-n:] if n > 0 else []

    def _write(self, text: str) -> None:
        room = self._columns - self._column
        if room <= 0:
            self._over += len(text)
            return
        shown = text[:room]
        self._over += len(text) - len(shown)
        if self._column > len(self._cells):
            self._cells.extend([(" ", PLAIN)] * (self._column - len(self._cells)))
        self._cells[self._column : self._column + len(shown)] = [(c, self._pen) for c in shown]
        self._column += len(shown)

    def _move(self, char: str) -> None:
        if char == "\n":
            self._new_line()
        elif char == "\r":
            self._column = self._over = 0
        elif char == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._write(" " * (8 - self._column % 8))

    def _control(self, args: str, final: str) -> None:
        if final == "m":
            self._pen = _sgr(self._pen, args)
        elif final == "K" and args in ("", "0"):
            del self._cells[self._column :]
        elif final == "K":
            self._cells, self._column = [], 0

    def _new_line(self) -> None:
        self._done.append(self._finish())
        self._cells, self._column, self._over = [], 0, 0
        self.total += 1

    def _finish(self) -> Line:
        runs = [
            (visible("".join(c for c, _ in cells)), pen)
            for pen, cells in groupby(self._cells, key=lambda cell: cell[1])
        ]
        if self._over:
            runs.append((f"\u2026 +{self._over:,} characters", Pen(dim=True)))
        return tuple(runs)


def line_text(line: Line) -> str:
    """Return a line as plain text."""
    return "".join(text for text, _ in line).rstrip()


_SWITCHES: dict[int, dict[str, Any]] = {
    1: {"bold": True},
    2: {"dim": True},
    3: {"italic": True},
    4: {"underline": True},
    7: {"inverse": True},
    22: {"bold": False, "dim": False},
    23: {"italic": False},
    24: {"underline": False},
    27: {"inverse": False},
}


def _sgr(pen: Pen, args: str) -> Pen:
    codes = [
        int(part) if part.isascii() and part.isdigit() and len(part) < 4 else 0
        for part in args[:200].split(";")
    ]
    at = 0
    while at < len(codes):
        code = codes[at]
        at += 1
        if code == 0:
            pen = PLAIN
        elif code in _SWITCHES:
            pen = replace(pen, **_SWITCHES[code])
        elif code in (38, 48):
            colour, at = _extended(codes, at)
            pen = replace(pen, fg=colour) if code == 38 else replace(pen, bg=colour)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            pen = replace(pen, fg=str(code - 30 if code < 40 else code - 82))
        elif 40 <= code <= 47 or 100 <= code <= 107:
            pen = replace(pen, bg=str(code - 40 if code < 50 else code - 92))
        elif code == 39:
            pen = replace(pen, fg="")
        elif code == 49:
            pen = replace(pen, bg="")
    return pen


def _extended(codes: list[int], at: int) -> tuple[str, int]:
    mode = codes[at] if at < len(codes) else 0
    if mode == 5 and at + 1 < len(codes):
        return _indexed(min(codes[at + 1], 255)), at + 2
    if mode == 2 and at + 3 < len(codes):
        red, green, blue = (min(c, 255) for c in codes[at + 1 : at + 4])
        return f"#{red:02x}{green:02x}{blue:02x}", at + 4
    return "", len(codes)


def _indexed(n: int) -> str:
    if n < 16:
        return str(n)
    if n >= 232:
        return f"#{8 + 10 * (n - 232):02x}" + f"{8 + 10 * (n - 232):02x}" * 2
    n -= 16
    steps = (0, 95, 135, 175, 215, 255)
    return f"#{steps[n // 36]:02x}{steps[n // 6 % 6]:02x}{steps[n % 6]:02x}"
