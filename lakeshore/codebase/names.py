"""Which names a file in an archive may have: those that are one and the same file on every system."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

PATH_BYTES: Final = 1024
PART_BYTES: Final = 255
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNSEEN: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point: some file systems take a name with one for the name without."""


def fault(path: str) -> str | None:
    """Say why no archive may hold `path`, or return None for one that it may.

    Parameters
    ----------
    path : str
        Relative, with ``/`` between its parts and none at its end.
    """
    if not path:
        return "is empty"
    if _CONTROL.search(path):
        return "holds a NUL or control character"
    if "\\" in path:
        return "holds a backslash"
    if ":" in path:
        return "holds a colon, as a drive letter does"
    if path.startswith("/"):
        return "is absolute"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is no UTF-8 text"
    if size > PATH_BYTES:
        return f"is longer than {PATH_BYTES} bytes"
    for name in path.split("/"):
        part = _UNSEEN.sub("", name)
        if part in ("", ".", ".."):
            return f"has the part {name!r}"
        if len(name.encode()) > PART_BYTES:
            return f"has a part of more than {PART_BYTES} bytes"
        if part[-1] in ". ":
            return "has a part that ends in a dot or a space"
        if _RESERVED.fullmatch(part.partition(".")[0].rstrip(" ")):
            return f"has the part {name!r}, which is a device on Windows"
        if part.casefold() == ".git":
            return f"has the part {name!r}, which is git's own"
    return None


class Names:
    """The names of one archive so far; tells of one that some system would take for another."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, bool]] = {}
        self._files: set[str] = set()

    def add(self, path: str, *, folder: bool = False) -> str | None:
        """Note a file (or a folder) with its parents; returns why it may not be there, or None."""
        why = fault(path)
        if why is not None:
            return why
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            name, last = "/".join(parts[:end]), end == len(parts)
            is_folder = folder or not last
            known = self._seen.setdefault(_folded(name), (name, is_folder))
            if known[0] != name:
                return f"is the same name as {known[0]!r} where case or Unicode forms do not count"
            if known[1] != is_folder:
                return "is a file and a folder at once"
            if last and not folder:
                if name in self._files:
                    return "is there twice"
                self._files.add(name)
        return None


def _folded(name: str) -> str:
    name = _UNSEEN.sub("", name)
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
