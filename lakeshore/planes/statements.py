"""Named SQL: reads the .sql files beside it into a mapping from name to statement."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def load(*files: str) -> dict[str, str]:
    """Read statements by name; a later file's statement replaces an earlier one's of that name.

    Parameters
    ----------
    *files : str
        File names within ``lakeshore/planes/sql``.
    """
    statements: dict[str, str] = {}
    for file in files:
        text = (resources.files("lakeshore.planes") / "sql" / file).read_text("utf-8")
        parts = _NAME.split(text)
        statements.update(zip(parts[1::2], (body.strip() for body in parts[2::2]), strict=True))
    return statements
