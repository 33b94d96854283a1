"""The doctor's checks of a PostgreSQL plane's tables and indexes: version, size, what is dead or missing.

Each check judges what one `Look` saw, and runs nothing. Names are quoted in the commands that it shows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Final

from lakeshore.planes import postgres_statements, statements
from lakeshore.planes.health import Finding, Verdict
from lakeshore.planes.postgres_health import Look

DEAD: Final = (10_000, 0.2)
"""Dead rows of a table that are worth a word: so many, and this share of all."""
SPARE_BYTES: Final = 64 * 1024**2
"""Of a table or an index that is mostly empty."""
LARGE_BYTES: Final = 1024**3
OLD_SECONDS: Final = 30 * 86400.0
_MIB: Final = 1024**2
_INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) (ON [^;]+);")


def schema(seen: Look) -> Iterator[Finding]:
    """Whether the tables are of the version that this lakeshore makes."""
    version = seen.version
    if version is not None and version.pending:
        found = f"the tables are of version {version.found}, this lakeshore makes {version.newest}"
        yield Finding("schema", "note", found, "lakeshore db migrate --plane postgresql://…")
    elif version is not None:
        yield Finding("schema", "ok", f"version {version.found}")


def indexes(seen: Look) -> Iterator[Finding]:
    """Whether an index is missing or was not made to the end; without `ready` a claim walks every row."""
    there = seen.of("indexes")
    bad = [each for each in there if not each.valid and not each.being_made]
    missing = {name: on for name, on in _wanted().items() if name not in {each.name for each in there}}
    for each in bad:
        name = f"lakeshore.{name_in_sql(each.name)}"
        left = re.search(r"_cc(new|old)\d*$", each.name) is not None
        fix = f"{'DROP' if left else 'REINDEX'} INDEX CONCURRENTLY {name};"
        found = f"{each.name} was not made to the end: each write pays for it, and no look-up uses it"
        yield Finding("indexes", "fault", found, fix)
    for name, statement in missing.items():
        found = f"{name} is missing: what it serves walks every row, and gets slower with each"
        yield Finding("indexes", "fault", found, statement)
    if not bad and not missing:
        yield Finding("indexes", "ok", f"{len(there)}, all valid")


def _wanted() -> dict[str, str]:
    """Return the indexes that the schema makes by name, each with the statement that makes it anew."""
    schema = postgres_statements.converted_schema(statements.load("postgres_schema.sql")["schema"]).decode()
    made = {}
    for match in _INDEX.finditer(schema):
        start = "CREATE UNIQUE INDEX" if "UNIQUE" in match[0][:20] else "CREATE INDEX"
        made[match[1]] = f"{start} CONCURRENTLY {match[1]} {' '.join(match[2].split())};"
    return made


def bloat(seen: Look) -> Iterator[Finding]:
    """What vacuum has not got to, and what is mostly empty; both make claims read more than they need."""
    found_any = False
    for table in seen.of("tables"):
        share = table.dead / max(table.rows + table.dead, 1)
        if table.dead >= DEAD[0] and share >= DEAD[1]:
            vacuumed = "never" if table.vacuumed_at is None else f"{ago(time.time() - table.vacuumed_at)} ago"
            found = f"{share:.0%} of {table.name} are dead rows ({table.dead:,}); last vacuumed: {vacuumed}"
            fix = (
                "end what holds old transactions (see transactions, prepared, slots), then VACUUM (ANALYZE) "
                f"lakeshore.{name_in_sql(table.name)};"
            )
            state: Verdict = "fault" if share >= 0.5 and table.dead >= 10 * DEAD[0] else "note"
            yield Finding("bloat", state, found, fix)
            found_any = True
        elif _is_hollow(table):
            found = f"{table.name} takes {table.bytes / _MIB:,.0f} MiB, of which its rows need little"
            fix = f"new rows fill it; or, when all is quiet: VACUUM FULL lakeshore.{name_in_sql(table.name)};"
            yield Finding("bloat", "note", found, fix)
            found_any = True
    for index in seen.of("indexes"):
        if index.valid and _is_hollow(index):
            found = f"index {index.name} takes {index.bytes / _MIB:,.0f} MiB, of which its rows need little"
            fix = f"REINDEX INDEX CONCURRENTLY lakeshore.{name_in_sql(index.name)};"
            yield Finding("bloat", "note", found, fix)
            found_any = True
    if not found_any:
        dead = sum(table.dead for table in seen.of("tables"))
        yield Finding("bloat", "ok", f"{dead:,} dead rows")


def _is_hollow(each: Any) -> bool:
    spare = each.spare_bytes or 0
    return bool(spare >= SPARE_BYTES and spare >= 0.75 * each.bytes)


def size(seen: Look) -> Iterator[Finding]:
    """How much is kept, where, and since when; what has long ended can go."""
    tables = sorted(seen.of("tables"), key=lambda each: -(each.bytes + each.index_bytes))
    whole = sum(each.bytes + each.index_bytes for each in tables)
    parts = [
        f"{each.name} {(each.bytes + each.index_bytes) / _MIB:,.1f} ({each.rows:,} rows)" for each in tables
    ]
    found = f"{whole / _MIB:,.1f} MiB: " + ", ".join(parts[:3])
    oldest = seen.one("oldest_finished")
    kept = None if oldest is None or oldest.finished_at is None else time.time() - oldest.finished_at
    if kept is not None:
        found += f"; the oldest ended job ended {ago(max(kept, 0.0))} ago"
    if whole >= LARGE_BYTES and kept is not None and kept >= OLD_SECONDS:
        fix = "lakeshore prune --older-than 30d, and LAKESHORE_KEEP=30d so that idle workers do it"
        yield Finding("tables", "note", f"{found}: what nobody reads any more makes backups slow", fix)
    else:
        yield Finding("tables", "ok", found)


# -- words ----------------------------------------------------------------------


def verdict(value: float, bounds: tuple[float, float]) -> Verdict:
    """Judge a value that is a note from the first bound on, and a fault from the second."""
    return "fault" if value >= bounds[1] else "note" if value >= bounds[0] else "ok"


def name_in_sql(name: str) -> str:
    """Return a name as a statement spells it."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def text_in_sql(value: str) -> str:
    """Return a text as a statement spells it."""
    return "'" + value.replace("'", "''") + "'"


def ago(seconds: float) -> str:
    """Return a time as people say it."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
