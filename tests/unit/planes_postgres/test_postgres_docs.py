"""The statements that docs/postgres.md gives to administrators run as they stand, beside a plane in use."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

from lakeshore.planes.postgres import PostgresDispatch

PAGE = (Path(__file__).parents[3] / "docs" / "postgres.md").read_text("utf-8")
STATEMENTS = [
    statement
    for block in re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for statement in block.split(";\n")
    if statement.strip()
]


def test_the_statements_run(fresh: str) -> None:
    assert len(STATEMENTS) >= 8
    with PostgresDispatch(fresh) as owners:
        owners.submit("gpu", b"e", id="a")
        with psycopg.connect(fresh, autocommit=True) as raw:
            try:
                for statement in STATEMENTS:
                    raw.execute(statement.encode())
                with PostgresDispatch(fresh.replace("postgres@", "lakeshore_app@")) as plane:
                    assert plane.claim("gpu", "w") is not None
                    plane.journal_append("a", None, b"x")
                    plane.ack("a", "w", result=b"r")
                    assert plane.prune(older_than=0) == 1
            finally:
                raw.execute("DROP OWNED BY lakeshore_app")
                raw.execute("DROP ROLE lakeshore_app")
