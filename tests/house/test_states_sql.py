"""Every UPDATE in the planes' .sql files is held against `lakeshore.states`, and no SQL hides in Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lakeshore.states import TRANSITIONS, State

ROOT = Path(__file__).parents[2] / "lakeshore"
SQL = sorted((ROOT / "planes" / "sql").glob("*.sql"))
ENGINES = [path for path in SQL if path.name != "verbs.sql"]
BY_VERB = {transition.verb: transition for transition in TRANSITIONS}
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_STATES = "|".join(State)


def statements(path: Path) -> dict[str, str]:
    """Read a file's named statements, comments taken out."""
    parts = _NAME.split(path.read_text("utf-8"))
    return {
        name: re.sub(r"--[^\n]*", "", body).strip()
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def updates(sql: str) -> list[tuple[str, str]]:
    """Return ``(SET part, WHERE part)`` of each UPDATE of the invocation table in a statement."""
    found = re.finditer(
        r"\bUPDATE\s+(?:\w+\.)?invocations?\b.*?\bSET\b(?P<set>.*?)\bWHERE\b(?P<where>.*?)(?=\bRETURNING\b|;|\Z)",
        sql,
        re.IGNORECASE | re.DOTALL,
    )
    return [(match["set"], match["where"]) for match in found]


def target(assignments: str) -> str | None:
    """Return the state that a SET part makes; None when it sets none."""
    match = re.search(rf"(?:^|,)\s*state\s*=\s*'({_STATES})'", assignments)
    return match[1] if match else None


def sources(where: str) -> set[str]:
    """Return the states that a WHERE part lets through."""
    found = set(re.findall(rf"\bstate\s*=\s*'({_STATES})'", where))
    for group in re.findall(r"\bstate\s+IN\s*\(([^)]*)\)", where, re.IGNORECASE):
        found |= set(re.findall(r"'(\w+)'", group))
    return found


def transitions() -> list[tuple[str, str, str, str]]:
    return [
        (path.name, name, assignments, where)
        for path in SQL
        for name, sql in statements(path).items()
        for assignments, where in updates(sql)
        if re.search(r"(?:^|,)\s*state\s*=", assignments)
    ]


def verbs(name: str) -> list[str]:
    """Return the verbs of a statement: an engine may claim ready rows alone, and join that to an ack."""
    return name.removesuffix("_ready").removesuffix("_newest").split("_and_")


def test_there_are_sql_files() -> None:
    assert ENGINES
    assert transitions()


@pytest.mark.parametrize(("file", "name", "assignments", "where"), transitions())
def test_every_change_of_state_is_in_the_table(file: str, name: str, assignments: str, where: str) -> None:
    rules = {BY_VERB[verb].target: BY_VERB[verb] for verb in verbs(name) if verb in BY_VERB}
    rule = rules.get(target(assignments))
    assert rule, f"{file}: {name} changes a state and is no verb of states.TRANSITIONS"
    only_ready = rule.verb == "claim" and name.endswith("_ready")
    assert sources(where) == ({State.QUEUED} if only_ready else rule.sources)
    guarded = re.search(r"\bworker_id\s*=\s*:worker\b", where) is not None
    fenced = re.search(r"\(\s*:fence\s+IS\s+NULL\s+OR\s+fence\s*=\s*:fence\s*\)", where, re.IGNORECASE)
    assert guarded is rule.guarded
    assert (fenced is not None) is rule.guarded


@pytest.mark.parametrize("engine", ENGINES, ids=lambda path: path.stem)
def test_every_row_of_the_table_has_its_statement(engine: Path) -> None:
    files = ("verbs.sql", engine.name)
    names = [name for file, name, *_ in transitions() if file in files and not name.endswith("_ready")]
    assert sorted(names) == sorted(BY_VERB.keys() - {"submit"})


def test_a_row_is_born_queued_and_only_by_submit() -> None:
    born = [
        (name, sql)
        for path in SQL
        for name, sql in statements(path).items()
        if re.search(r"\bINSERT\s+INTO\s+(?:\w+\.)?invocations?\b", sql, re.IGNORECASE)
        and not path.name.startswith("moving_")  # a row that is moved to another store keeps its state
    ]
    assert born
    for name, sql in born:
        assert name.startswith("submit"), f"{name} makes a row"
        assert re.findall(rf"'({_STATES})'", sql) == [State.QUEUED]


def test_terminal_states_are_left_by_requeue_alone() -> None:
    for _, name, _, where in transitions():
        ended = sources(where) & {State.SUCCEEDED, State.FAILED, State.CANCELLED}
        assert not ended or name == "requeue"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_statement_hides_in_python(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    pattern = re.compile(
        r"\b(UPDATE\s+\w+\s+SET|INSERT\s+INTO|DELETE\s+FROM|SELECT\b.+\bFROM\s+(?!sqlite_))\b", re.DOTALL
    )
    found = [
        f"{path}:{node.lineno}: {node.value[:60]!r} belongs in planes/sql/"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and pattern.search(node.value)
    ]
    assert not found
