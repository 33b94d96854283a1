"""What reaches PostgreSQL as a statement was written in a .sql file: nothing is formatted or put in."""

from __future__ import annotations

import ast
import uuid
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

import lakeshore.planes
from lakeshore import Submission
from lakeshore.planes.postgres import PostgresDispatch

PLANES = Path(lakeshore.planes.__file__).parent
FILES = sorted([*PLANES.glob("postgres*.py"), *PLANES.glob("store*.py"), PLANES / "engine.py"])
RUN = {"execute", "executemany", "copy", "stream"}
NAMED = {"rows", "changed", "added", "added_many", "run_many", "_run", "_alone"}
BAD_NAMES = ("", "a\0b", "a\nb", "\x7f", "\ud800", "a\udfff", "x" * 256, "é" * 128, None, 5, b"q")


def plain(argument: ast.expr, *, of_a_file: bool) -> bool:
    """Whether a statement is given by its name, or taken from what was read from a file."""
    if isinstance(argument, (ast.JoinedStr, ast.BinOp)):
        return not of_a_file and not any(
            isinstance(part, ast.FormattedValue) and not isinstance(part.value, ast.Name)
            for part in ast.walk(argument)
        )
    if isinstance(argument, ast.Constant):
        return not of_a_file and str(argument.value).isidentifier()
    if isinstance(argument, ast.IfExp):
        return plain(argument.body, of_a_file=of_a_file) and plain(argument.orelse, of_a_file=of_a_file)
    if isinstance(argument, ast.Call):
        called = argument.func
        if not isinstance(called, ast.Attribute):
            return False
        trimmed = called.attr in ("encode", "rstrip") and isinstance(called.value, ast.Subscript)
        return trimmed or called.attr == "converted_schema"
    return isinstance(argument, (ast.Name, ast.Subscript, ast.Attribute))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_statement_is_made_in_python(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        where = f"{path.name}:{node.lineno}: {ast.unparse(node)[:100]}"
        if node.func.attr in RUN:
            assert plain(node.args[0], of_a_file=True), where
        elif node.func.attr in NAMED:
            assert plain(node.args[0], of_a_file=False), where
        elif node.func.attr in ("format", "format_map"):
            assert "sql" not in ast.unparse(node.func).lower(), where


@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_is_no_name_is_refused_before_a_write(dsn, name):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        calls = [
            lambda: dp.submit(name, b"", id="j"),
            lambda: dp.submit("q", b"", id=name),
            lambda: dp.submit_many(name, [Submission(envelope=b"", id="j")]),
            lambda: dp.submit_many("q", [Submission(envelope=b"", id=name)]),
            lambda: dp.claim(name, "w"),
            lambda: dp.claim("q", name),
            lambda: dp.claim_many("q", name, 2),
            lambda: dp.heartbeat("j", name),
            lambda: dp.ack("j", name),
            lambda: dp.nack("j", name, error="x"),
            lambda: dp.release("j", name),
            lambda: dp.count(name),
            lambda: dp.get(name),
            lambda: dp.journal_append(name, None, b""),
            lambda: dp.journal_trim(name),
            lambda: PostgresDispatch(dsn, ns=name),
        ]
        if name is not None:
            calls.append(lambda: dp.submit("q", b"", id="j", key=name))
        for n, call in enumerate(calls):
            with pytest.raises(ValueError):
                call()
                pytest.fail(f"call {n} took {name!r}")
        assert dp.queues() == {}


@pytest.mark.parametrize(
    "odd", ["we'ird\"; -- %s $1 :x {}", "C:\\db\\", "пространство 用户", "a b?c&d=e#f/g@h"]
)
def test_roles_and_databases_of_odd_names(fresh, odd):
    name = f"{odd}{uuid.uuid4().hex[:8]}"
    with psycopg.connect(fresh, autocommit=True) as raw:
        raw.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        raw.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*[sql.Identifier(name)] * 2))
    quoted = quote(name, safe="")
    address = f"postgresql://{quoted}@/{quoted}?{fresh.partition('?')[2]}&application_name={quoted}"
    with PostgresDispatch(address) as dp:
        dp.submit("q", b"e", id="j")
        assert dp.claim("q", "w").envelope == b"e"
        with dp._database.connection(writing=False) as tx:
            assert tx.raw.execute("SELECT current_database(), current_user").fetchone() == (name, name)
