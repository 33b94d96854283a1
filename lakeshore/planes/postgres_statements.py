"""The statements of PostgreSQL's plane: those of every engine and its own, turned once into psycopg's form.

Each parameter has one type wherever it stands, tables are named with their schema (a pooler hands sessions
around, so no search_path is relied on), and times are the database's: a moment that a verb asks for is its
clock, and one that lies some seconds off (``until``, ``not_before``, ``cut``) is its clock and those seconds.
No value and no name ever becomes part of a statement.
"""

from __future__ import annotations

import re
from functools import cache

from lakeshore.planes import statements

_TYPES = {
    **dict.fromkeys(("seq", "fence", "n", "jid", "since", "last", "keep", "pid"), "bigint"),
    **dict.fromkeys(("limit", "before", "window", "max_bytes"), "bigint"),
    **dict.fromkeys(("priority", "temperature", "mark_priority", "spared"), "float8"),
    "mark_seq": "bigint",
    **dict.fromkeys(("envelope", "result", "body"), "bytea"),
    **dict.fromkeys(("priority_each", "not_before_each"), "float8[]"),
    **dict.fromkeys(("id_each", "key_each", "parent_each"), "text[]"),
    "envelope_each": "bytea[]",
    "asked": "float8",
}
_NOW = ("now", "mono")
_OFF = ("until", "not_before", "cut")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"--[^\n]*\n?")
_TABLE = re.compile(r"(?<![:\w.])(invocation|payload|journal|frame|worker|schema_version|span|exponent)\b")


_GUARD = re.compile(r"(AND id = :id\s+AND state) = 'running'")
_GUARDED = r"\1 IN ('running', '')"
"""A row is found by its id: said so, the index of running rows cannot serve. On a small table that seems as
cheap, and then costs as much as there are rows that run, and dead ones that ran."""


@cache
def load(*, writing: bool) -> dict[str, bytes]:
    """Return the statements by name, as a write transaction says them, or as a read does."""
    own = ("postgres.sql", "postgres_schema.sql", "postgres_journals.sql", "postgres_session.sql")
    files = ("verbs.sql", *own, *(("postgres_locks.sql",) if writing else ()))
    return {name: _converted(text) for name, text in statements.load(*files).items()}


def converted_schema(text: str) -> bytes:
    """Return statements without parameters, with their tables in the plane's schema."""
    return _qualified(text).encode()


def _converted(text: str) -> bytes:
    text = _GUARD.sub(_GUARDED, text)
    return _PARAMETER.sub(_parameter, _qualified(text).replace("%", "%%")).rstrip().rstrip(";").encode()


def _qualified(text: str) -> str:
    return _TABLE.sub(r"lakeshore.\1", _COMMENT.sub("", text))


def _parameter(match: re.Match[str]) -> str:
    name = match[1]
    if name in _NOW:
        return _clock()
    if name in _OFF:
        return f"({_clock()} + (%({name})s::float8 - %(asked)s::float8))"
    return f"%({name})s::{_TYPES.get(name, 'text')}"


@cache
def _clock() -> str:
    """Return the clock as a subquery: it is asked once a statement, and an index can be searched by it."""
    return f"({_qualified(statements.load('postgres.sql')['clock']).strip().rstrip(';')})"
