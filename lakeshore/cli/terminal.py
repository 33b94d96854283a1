"""What jobs wrote, made safe for the terminal that it is printed on.

A terminal obeys what it is sent: it moves its cursor, clears, sets its title, fills the clipboard. So of a
job's own text only colours reach it, and those only from its log.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

from lakeshore.notebook.render_terminal import visible

RESET = "\x1b[0m"
"""Ends every colour."""

_SEQUENCE = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-Z\\^-~]?"
    r"|[\x07\x08]"
)
_ACTIVE = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]")


def has_colours(file: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not asked for no colours (https://no-color.org)."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shown(text: str) -> str:
    """Return text with every control character as a visible mark; line ends and tabs stay."""
    return visible(text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return text as `shown` does, line ends as marks too."""
    return shown(text).replace("\n", "\u23ce")


def log_text(text: str, *, colours: bool) -> str:
    """Return what a job printed without escape sequences.

    Parameters
    ----------
    text : str
        As it was printed.
    colours : bool
        It goes to a terminal: keep colours, and the carriage returns of progress bars.
    """
    out: list[str] = []
    at = 0
    for match in _SEQUENCE.finditer(text):
        out.append(_lines(text[at : match.start()], colours))
        if colours and match["colour"]:
            out.append(match["colour"])
        at = match.end()
    return "".join([*out, _lines(text[at:], colours)])


def json_text(json: str) -> str:
    """Return a JSON text with what a terminal could obey, or cannot encode, in escapes; it means the same."""
    return _ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", json)


def _lines(text: str, returns: bool) -> str:
    parts = (visible(part) for part in text.replace("\r\n", "\n").split("\r"))
    return ("\r" if returns else "\n").join(parts)
