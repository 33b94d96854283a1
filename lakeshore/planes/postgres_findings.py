"""The doctor's checks of a PostgreSQL database: what is, what comes of it, and the command that mends it.

Each check judges what one `Look` saw, and runs nothing. Names are quoted in the commands that it shows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from lakeshore.planes import postgres_upkeep
from lakeshore.planes.health import Finding, Verdict
from lakeshore.planes.postgres import PostgresDispatch
from lakeshore.planes.postgres_database import POOL
from lakeshore.planes.postgres_health import Look, look
from lakeshore.planes.postgres_upkeep import ago, name_in_sql, text_in_sql, verdict

OPEN_SECONDS: Final = (60.0, 600.0)
"""A transaction open this long is noted; a fault, where it is idle or holds many."""
HELD: Final = (10_000, 1_000_000)
"""Transactions that began since one that is held open."""
LOCK_SECONDS: Final = 5.0
BUSY: Final = (0.8, 0.95)
"""Of the connections that the server takes."""
LAG_BYTES: Final = (64 * 1024**2, 1024**3)
LAG_SECONDS: Final = (30.0, 300.0)
WRAPAROUND: Final = (500_000_000, 1_000_000_000)
QUEUE: Final = (0.1, 0.5)
SKEW_SECONDS: Final = 5.0
_MIB: Final = 1024**2
_OLDEST: Final = 13
_MAINTAINED_UNTIL: Final = {
    13: dt.date(2025, 11, 13),
    14: dt.date(2026, 11, 12),
    15: dt.date(2027, 11, 11),
    16: dt.date(2028, 11, 9),
    17: dt.date(2029, 11, 8),
    18: dt.date(2030, 11, 14),
}
"""Source: https://www.postgresql.org/support/versioning/"""
_RELOAD: Final = "SELECT pg_reload_conf();"


def database_checks(plane: PostgresDispatch) -> Iterator[Finding]:
    """Look at the database of a plane, and judge what was seen."""
    seen = look(plane)
    server = seen.one("server")
    if server is not None:
        yield _version(server)
        if not server.sees_all:
            found = f"role {server.role!r} does not see when others' transactions began, nor replication lag"
            yield Finding("role", "note", found, f"GRANT pg_monitor TO {name_in_sql(server.role)};")
        yield _durability(server)
        yield _role_of_server(server)
    yield from _autovacuum(seen)
    for name, check in _CHECKS.items():
        if all(need in seen.rows for need in _NEEDS.get(name, (name,))):
            yield from check(seen)
    for name, why in seen.unseen.items():
        fix = "run it again when no lock is held (see locks), or as a role that may see it: GRANT pg_monitor"
        yield Finding(name.replace("_", " "), "note", f"not visible: {why}", fix)


def fix_for(error: BaseException | None) -> str | None:
    """Return how to mend what kept a plane from opening, None where its message says all."""
    if error is not None and getattr(error, "sqlstate", None) is None:
        text = str(error)
        if "too many clients" in text or "remaining connection slots" in text:
            return (
                "end processes or sessions that nobody needs (each process of lakeshore opens at most "
                f"{POOL + 1}), or ALTER SYSTEM SET max_connections = 200; and restart the database server"
            )
    return None


# -- the server -----------------------------------------------------------------


def _version(server: Any) -> Finding:
    major = server.number // 10000
    until = _MAINTAINED_UNTIL.get(major)
    found = f"PostgreSQL {server.version}"
    if major < _OLDEST:
        fix = f"move to PostgreSQL {_OLDEST} or newer, best the newest: pg_upgrade, or pg_dump and pg_restore"
        return Finding("server", "fault", f"{found} is older than lakeshore works with", fix)
    if until is not None and dt.datetime.now(dt.UTC).date() > until:
        fix = "move to a newer one: pg_upgrade, or pg_dump and pg_restore"
        return Finding("server", "note", f"{found} has had no more fixes since {until}", fix)
    return Finding("server", "ok", found)


def _durability(server: Any) -> Finding:
    for setting in ("fsync", "full_page_writes"):
        if not getattr(server, setting):
            found = f"{setting} is off: a crash of the server can damage the database, acknowledged work too"
            return Finding("durability", "fault", found, f"ALTER SYSTEM SET {setting} = on; {_RELOAD}")
    if server.synchronous_commit == "off":
        found = "synchronous_commit is off: a crash of the server loses work that was acknowledged before it"
        fix = (
            f"ALTER SYSTEM SET synchronous_commit = on; {_RELOAD} ALTER ROLE {name_in_sql(server.role)} "
            "RESET synchronous_commit; and look for it in the address (options=)"
        )
        return Finding("durability", "fault", found, fix)
    return Finding("durability", "ok", f"fsync, synchronous_commit {server.synchronous_commit}")


def _role_of_server(server: Any) -> Finding:
    if server.standby:
        found = "a standby, which takes no writes: every submit and claim waits, then fails"
        fix = "name the primary (target_session_attrs=read-write in the address finds it among several)"
        return Finding("primary", "fault", found, fix)
    return Finding("primary", "ok", "takes writes")


def _autovacuum(seen: Look) -> Iterator[Finding]:
    server = seen.one("server")
    comes = "dead rows stay, so claims get slower, the disk fills, and in the end the server stops"
    for setting in ("autovacuum", "track_counts"):
        if server is not None and not getattr(server, setting):
            fix = f"ALTER SYSTEM SET {setting} = on; {_RELOAD}"
            yield Finding("autovacuum", "fault", f"{setting} is off: {comes}", fix)
            return
    for table in seen.of("tables"):
        if table.unvacuumed:
            fix = f"ALTER TABLE lakeshore.{name_in_sql(table.name)} RESET (autovacuum_enabled);"
            yield Finding("autovacuum", "fault", f"off for the table {table.name}: {comes}", fix)
            return
    if server is not None:
        yield Finding("autovacuum", "ok", "on")


def _connections(seen: Look) -> Iterator[Finding]:
    server, sessions = seen.one("server"), seen.of("connections")
    most = server.max_connections - server.reserved
    total = sum(each.n for each in sessions)
    ours = sum(each.n for each in sessions if each.ours)
    others = [f"{each.application or 'without a name'} {each.n}" for each in sessions if not each.ours]
    found = f"{total} of {most}: lakeshore {ours}" + "".join(f", {other}" for other in others[:4])
    if len(others) > 4:
        found += ", …"
    state = verdict(total / max(most, 1), BUSY)
    if state != "ok":
        found += "; without a free one no further process can work"
    fix = (
        f"fewer processes at once (each of lakeshore opens at most {POOL + 1}), control planes between "
        "workers and database, or ALTER SYSTEM SET max_connections = "
        f"{2 * server.max_connections}; and restart the server"
    )
    yield Finding("connections", state, found, fix if state != "ok" else "")


def _wraparound(seen: Look) -> Iterator[Finding]:
    oldest = seen.one("wraparound")
    age = max(oldest.xids, oldest.mxids)
    state = verdict(age, WRAPAROUND)
    found = f"{age:,} transactions old at most"
    if state == "ok":
        yield Finding("wraparound", "ok", found)
    else:
        found = f"database {oldest.database!r} is {age:,} transactions old; at two billion the server stops"
        fix = f"end what holds old transactions (see transactions), then vacuumdb --freeze {oldest.database}"
        yield Finding("wraparound", state, found, fix)


def _notify_queue(seen: Look) -> Iterator[Finding]:
    used = seen.one("server").notify_queue
    state = verdict(used, QUEUE)
    found = f"{used:.0%} full"
    if state != "ok":
        found += (
            ": a session listens within a long transaction; once it is full no commit that wakes is taken"
        )
    fix = "end sessions with an open transaction that LISTEN: see transactions"
    yield Finding("notify queue", state, found, fix if state != "ok" else "")


def _clock(seen: Look) -> Iterator[Finding]:
    if abs(seen.skew) < SKEW_SECONDS:
        yield Finding("server clock", "ok", f"within {SKEW_SECONDS:g} s of this machine's")
        return
    ahead = "ahead of" if seen.skew > 0 else "behind"
    found = (
        f"{abs(seen.skew):.0f} s {ahead} this machine's: leases and delays hold, as they are the database's, "
        "but times that are shown are off"
    )
    yield Finding("server clock", "note", found, "timedatectl set-ntp true, on the one that is wrong")


# -- who holds what up ----------------------------------------------------------


def _locks(seen: Look) -> Iterator[Finding]:
    waits = seen.of("locks")
    long = [each for each in waits if (each.seconds or 0.0) >= LOCK_SECONDS]
    if not long:
        yield Finding("locks", "ok", f"{len(waits)} session{_s(len(waits))} waiting")
        return
    worst = long[0]
    holders = ", ".join(map(str, worst.holders)) or "a session that ended meanwhile"
    found = (
        f"session {worst.pid} ({_app(worst)}) has waited {ago(worst.seconds)} for {worst.what!r}, held by "
        f"session {holders}" + (f"; {len(long) - 1} more wait" if len(long) > 1 else "")
    )
    fix = (
        f"end who holds it, if it may be ended: SELECT pg_terminate_backend({next(iter(worst.holders), 0)});"
    )
    yield Finding("locks", "fault", found, fix)


def _transactions(seen: Look) -> Iterator[Finding]:
    """One finding for the oldest; how many more there are stands with it."""
    old = [each for each in seen.of("transactions") if _open_verdict(each) != "ok"]
    if not old:
        yield Finding("transactions", "ok", "none is open for long")
        return
    worst = max(old, key=lambda each: (_open_verdict(each) == "fault", each.seconds or 0.0, each.held))
    since = "for a time it does not show" if worst.seconds is None else f"for {ago(worst.seconds)}"
    comes = (
        f"{worst.held:,} transactions began since, whose dead rows stay, so claims get slower"
        if worst.held
        else "it keeps a connection, and locks that it took"
    )
    found = (
        f"session {worst.pid} ({_app(worst)}, role {worst.role}, {worst.state or 'state hidden'}) holds a "
        f"transaction open {since}: {comes}" + (f"; {len(old) - 1} more" if len(old) > 1 else "")
    )
    fix = (
        f"SELECT pg_terminate_backend({worst.pid}); and against the next: ALTER ROLE "
        f"{name_in_sql(worst.role)} SET idle_in_transaction_session_timeout = '5min';"
    )
    yield Finding("transactions", _open_verdict(worst), found, fix)


def _open_verdict(session: Any) -> Verdict:
    """Judge one open transaction: a query that runs for long may be meant, one that idles is forgotten."""
    by_age = verdict(session.seconds or 0.0, OPEN_SECONDS)
    by_held = verdict(session.held, HELD)
    if by_held == "fault" or (by_age == "fault" and session.state != "active"):
        return "fault"
    return "ok" if by_age == by_held == "ok" else "note"


def _prepared(seen: Look) -> Iterator[Finding]:
    left = [each for each in seen.of("prepared") if each.seconds >= OPEN_SECONDS[0]]
    if not left:
        yield Finding("prepared", "ok", "no transaction was left prepared")
        return
    worst = left[0]
    found = (
        f"{worst.role} left transaction {worst.gid!r} prepared {ago(worst.seconds)} ago: it keeps its "
        f"locks and dead rows of {worst.held:,} transactions, over restarts too"
        + (f"; {len(left) - 1} more" if len(left) > 1 else "")
    )
    gid = text_in_sql(worst.gid)
    yield Finding("prepared", "fault", found, f"ROLLBACK PREPARED {gid};  (or COMMIT PREPARED {gid};)")


def _slots(seen: Look) -> Iterator[Finding]:
    slots = seen.of("slots")
    bad = [(state, each) for each in slots if (state := _slot_verdict(each)) != "ok"]
    if not bad:
        yield Finding("slots", "ok", f"{len(slots)} in use" if slots else "none")
        return
    state, worst = max(bad, key=lambda each: (each[0] == "fault", each[1].bytes))
    found = (
        f"replication slot {worst.name!r} is {'behind' if worst.active else 'read by nobody'}: "
        f"{worst.bytes / _MIB:,.0f} MiB of WAL are kept for it"
        + (f", and dead rows of {worst.held:,} transactions" if worst.holds_rows else "")
        + "; the disk fills until it is read on or dropped"
        + (f"; {len(bad) - 1} more" if len(bad) > 1 else "")
    )
    if worst.active:
        fix = "mend or speed up who reads it; max_slot_wal_keep_size bounds what is kept"
    else:
        fix = f"SELECT pg_drop_replication_slot({text_in_sql(worst.name)});  (or start who reads it)"
    yield Finding("slots", state, found, fix)


def _slot_verdict(slot: Any) -> Verdict:
    far = slot.bytes >= LAG_BYTES[1] or slot.wal in ("unreserved", "lost")
    held = slot.holds_rows and slot.held >= HELD[1]
    if not slot.active:
        return "fault" if far or held else "note"
    return "note" if far or held else "ok"


def _replicas(seen: Look) -> Iterator[Finding]:
    server, replicas = seen.one("server"), seen.of("replicas")
    if server.synchronous_standby_names and server.synchronous_commit not in ("off", "local"):
        in_step = [each for each in replicas if each.sync in ("sync", "quorum")]
        visible = not replicas or any(each.sync for each in replicas)
        if not in_step and visible:
            found = (
                f"no standby of synchronous_standby_names ({server.synchronous_standby_names}) is there: "
                "every submit and every ack waits for it"
            )
            fix = f"start the standby, or ALTER SYSTEM RESET synchronous_standby_names; {_RELOAD}"
            yield Finding("replication", "fault", found, fix)
            return
    if not replicas:
        yield Finding("replication", "ok", "no standby follows")
        return
    worst = max(replicas, key=lambda each: each.bytes or 0)
    if worst.bytes is None:
        yield Finding("replication", "note", f"{len(replicas)} follow; lag not visible", "GRANT pg_monitor")
        return
    late = max(each.seconds or 0.0 for each in replicas)
    by_bytes, by_time = verdict(worst.bytes, LAG_BYTES), verdict(late, LAG_SECONDS)
    state: Verdict = (
        "fault" if "fault" in (by_bytes, by_time) else "note" if by_bytes != by_time else by_bytes
    )
    found = (
        f"{len(replicas)} follow; {worst.name or 'one'} is {worst.bytes / _MIB:,.1f} MiB, {late:.1f} s behind"
    )
    if state != "ok":
        found += ": a failover to it now would lose that much acknowledged work"
    fix = "look at its log, network and disk; a query there may hold replay (max_standby_streaming_delay)"
    yield Finding("replication", state, found, fix if state != "ok" else "")


_CHECKS: Final = {
    "schema": postgres_upkeep.schema,
    "indexes": postgres_upkeep.indexes,
    "tables": postgres_upkeep.size,
    "bloat": postgres_upkeep.bloat,
    "transactions": _transactions,
    "prepared": _prepared,
    "slots": _slots,
    "replicas": _replicas,
    "locks": _locks,
    "connections": _connections,
    "wraparound": _wraparound,
    "notify queue": _notify_queue,
    "server clock": _clock,
}
_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "schema": (),
    "bloat": ("tables", "indexes"),
    "replicas": ("server", "replicas"),
    "connections": ("server", "connections"),
    "notify queue": ("server",),
    "server clock": ("server",),
}
"""The statements that a check judges, where they are not the one of its name."""


def _app(session: Any) -> str:
    return repr(session.application) if session.application else "no application_name"


def _s(n: int) -> str:
    return "" if n == 1 else "s"
