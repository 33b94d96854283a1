"""The doctor of a PostgreSQL plane: each bad state made real, told with its mending, and gone once mended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import postgres_server
import psycopg
import pytest

from lakeshore.planes import health, measures, postgres_findings, postgres_health, postgres_upkeep
from lakeshore.planes.postgres import PostgresDispatch

LONG = os.environ.get("LONG_TESTS") == "1"
CONNECTIONS = 20
OPTIONS = (f"max_connections={CONNECTIONS}", "max_prepared_transactions=2", "wal_level=logical")


@pytest.fixture(scope="module")
def own():
    """A server of this file's own, whose settings are changed; it syncs as a real one does."""
    postgres_server.shared()  # skips where there can be none
    made = postgres_server.Server(postgres_server.binaries(), *OPTIONS)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def at(own):
    """A database of it."""
    return own.fresh()


@pytest.fixture
def plane(at):
    with PostgresDispatch(at) as plane:
        yield plane


@pytest.fixture
def raw(at):
    with psycopg.connect(at, autocommit=True, application_name="psql") as raw:
        yield raw


def found(plane):
    """Return the findings by check; of several of one check the worst."""
    rows = {}
    for row in postgres_findings.database_checks(plane):
        if row.check not in rows or row.state == "fault":
            rows[row.check] = row
    return rows


def said(row, state, *words):
    assert row.state == state, row
    assert row.fix
    for word in words:
        assert word in row.found + " " + row.fix, row


def measured(plane, name, *labels):
    return {each.labels: each.value for each in measures.measures(plane) if each.name == name}.get(labels)


@contextlib.contextmanager
def setting(raw, name, value, *, reads=None):
    """Have the server run with a setting for the block."""
    raw.execute(f"ALTER SYSTEM SET {name} = {value}")
    _reload(raw, name, value)
    try:
        yield
    finally:
        before = raw.execute("SELECT boot_val FROM pg_settings WHERE name = %s", [name]).fetchone()[0]
        raw.execute(f"ALTER SYSTEM RESET {name}")
        _reload(raw, name, before)


def _reload(raw, name, value):
    raw.execute("SELECT pg_reload_conf()")
    end = time.monotonic() + 10
    while raw.execute(f"SHOW {name}").fetchone()[0] != value.strip("'"):
        assert time.monotonic() < end
        time.sleep(0.01)  # the server re-reads when it gets to it, and tells nobody


def test_all_is_well_with_a_new_database(plane):
    rows = found(plane)
    assert not [row for row in rows.values() if row.state == "fault"]
    assert set(rows) == {
        *("server", "durability", "primary", "autovacuum", "schema", "indexes", "tables", "bloat"),
        *("transactions", "prepared", "slots", "replication", "locks", "connections", "wraparound"),
        *("notify queue", "server clock"),
    }
    assert " of 17: lakeshore " in rows["connections"].found
    whole = {row.check: row for row in health.examine(lambda: plane, start_worker=str, another_plane="")}
    assert rows.keys() < whole.keys()


@pytest.mark.parametrize("option", ["--plane", "--store"])
def test_the_command(own, option):
    at = f"{own.fresh()}&password=s3cr3t"

    def ran():
        command = [sys.executable, "-m", "lakeshore.cli", "doctor", option, at, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "s3cr3t" not in done.stdout + done.stderr
        return done.returncode, {row["check"]: row for row in json.loads(done.stdout)}

    code, rows = ran()
    assert (code, rows["durability"]["state"], rows["indexes"]["state"]) == (0, "ok", "ok")
    with psycopg.connect(at, autocommit=True) as raw:
        raw.execute("DROP INDEX lakeshore.ready")
    code, rows = ran()
    assert (code, rows["indexes"]["state"]) == (1, "fault")
    assert "CREATE INDEX CONCURRENTLY ready" in rows["indexes"]["fix"]


def test_an_open_transaction_holds_rows_from_vacuum(plane, at, monkeypatch):
    monkeypatch.setattr(postgres_findings, "HELD", (5, 10))
    with psycopg.connect(at, application_name="forgotten") as open_one:
        open_one.execute("SELECT pg_current_xact_id()")
        for n in range(12):
            plane.submit("gpu", b"x", id=f"held-{n}")
        row = found(plane)["transactions"]
        pid = open_one.info.backend_pid
        said(row, "fault", "'forgotten'", "idle in transaction", "claims get slower")
        said(row, "fault", f"SELECT pg_terminate_backend({pid});", "idle_in_transaction_session_timeout")
        assert measured(plane, "held_transactions", "session") >= 12
        assert measured(plane, "open_transaction_seconds", "session") > 0
    assert found(plane)["transactions"].state == "ok"
    assert measured(plane, "held_transactions", "session") == 0


def test_a_transaction_that_idles_for_long(plane, at, monkeypatch):
    monkeypatch.setattr(postgres_findings, "OPEN_SECONDS", (0.0, 0.0))
    with psycopg.connect(at, application_name="console") as open_one:
        open_one.execute("SELECT 1")
        said(found(plane)["transactions"], "fault", "'console'", "keeps a connection", "pg_terminate_backend")


def test_a_prepared_transaction(plane, raw, at, monkeypatch):
    monkeypatch.setattr(postgres_findings, "OPEN_SECONDS", (0.0, 0.0))
    raw.execute("BEGIN")
    raw.execute("SELECT pg_current_xact_id()")
    raw.execute("PREPARE TRANSACTION 'it''s left'")
    said(found(plane)["prepared"], "fault", "over restarts", "ROLLBACK PREPARED 'it''s left';")
    assert measured(plane, "open_transaction_seconds", "prepared") > 0
    raw.execute("ROLLBACK PREPARED 'it''s left'")
    assert found(plane)["prepared"].state == "ok"


def test_a_slot_that_nobody_reads(plane, raw, monkeypatch):
    raw.execute("SELECT pg_create_physical_replication_slot('gone', true)")
    said(
        found(plane)["slots"], "note", "'gone'", "read by nobody", "SELECT pg_drop_replication_slot('gone');"
    )
    monkeypatch.setattr(postgres_findings, "LAG_BYTES", (0, 0))
    assert found(plane)["slots"].state == "fault"
    assert measured(plane, "slots", "false") == 1
    raw.execute("SELECT pg_drop_replication_slot('gone')")
    assert found(plane)["slots"].state == "ok"
    assert measured(plane, "slots", "false") == 0


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("fsync", "durability", ("acknowledged", "ALTER SYSTEM SET fsync = on;")),
        ("full_page_writes", "durability", ("damage", "ALTER SYSTEM SET full_page_writes = on;")),
        ("autovacuum", "autovacuum", ("dead rows stay", "ALTER SYSTEM SET autovacuum = on;")),
        ("track_counts", "autovacuum", ("dead rows stay", "ALTER SYSTEM SET track_counts = on;")),
    ],
)
def test_a_setting_that_must_not_be_off(plane, raw, name, check, words):
    with setting(raw, name, "off"):
        said(found(plane)[check], "fault", name, *words)
        assert measured(plane, "durable" if check == "durability" else "autovacuum") == 0
    assert found(plane)[check].state == "ok"
    assert measured(plane, "durable" if check == "durability" else "autovacuum") == 1


def test_commits_that_do_not_wait_for_the_disk(at):
    with PostgresDispatch(f"{at}&options=-c%20synchronous_commit%3Doff") as plane:
        row = found(plane)["durability"]
        if row.state == "fault":  # the address may not be able to say so
            said(row, "fault", "synchronous_commit is off", "acknowledged", "ALTER SYSTEM")


def test_a_table_that_is_not_vacuumed(plane, raw):
    raw.execute("ALTER TABLE lakeshore.worker SET (autovacuum_enabled = false)")
    row = found(plane)["autovacuum"]
    said(row, "fault", "worker", "ALTER TABLE lakeshore.worker RESET (autovacuum_enabled);")
    raw.execute(row.fix)
    assert found(plane)["autovacuum"].state == "ok"


def test_an_index_that_was_not_made_to_the_end(plane, raw):
    plane.submit("twice", b"x", id="first")
    plane.submit("twice", b"x", id="second")
    with pytest.raises(psycopg.errors.UniqueViolation):
        raw.execute("CREATE UNIQUE INDEX CONCURRENTLY once ON lakeshore.invocation (queue)")
    said(found(plane)["indexes"], "fault", "once", "REINDEX INDEX CONCURRENTLY lakeshore.once;")
    assert measured(plane, "invalid_indexes") == 1
    raw.execute("DROP INDEX lakeshore.once")
    assert found(plane)["indexes"].state == "ok"
    assert measured(plane, "invalid_indexes") == 0


@pytest.mark.parametrize("name", postgres_upkeep._wanted())
def test_a_missing_index_and_the_statement_that_makes_it(plane, raw, name):
    raw.execute(f"ALTER INDEX lakeshore.{name} RENAME TO elsewhere")
    row = found(plane)["indexes"]
    said(row, "fault", f"{name} is missing", f"INDEX CONCURRENTLY {name} ON lakeshore.")
    try:
        raw.execute(row.fix)
    except psycopg.errors.FeatureNotSupported:  # of a table in partitions it is made without CONCURRENTLY
        raw.execute(row.fix.replace("CONCURRENTLY", ""))
    raw.execute("DROP INDEX lakeshore.elsewhere")
    assert found(plane)["indexes"].state == "ok"


def test_dead_rows(plane, raw, monkeypatch):
    monkeypatch.setattr(postgres_upkeep, "DEAD", (100, 0.2))
    with setting(raw, "autovacuum", "off"):
        raw.execute("INSERT INTO lakeshore.payload SELECT i, 'result', '' FROM generate_series(1, 2000) i")
        raw.execute("DELETE FROM lakeshore.payload")
        end = time.monotonic() + 10
        while (row := found(plane)["bloat"]).state == "ok":
            assert time.monotonic() < end
            raw.execute("SELECT 1")  # a session tells its counts between statements, some time later
        said(row, "fault", "payload", "dead rows", "VACUUM (ANALYZE) lakeshore.payload;")
        assert measured(plane, "dead_rows", "payload") == 2000
        raw.execute("VACUUM (ANALYZE) lakeshore.payload")
        end = time.monotonic() + 10
        while found(plane)["bloat"].state != "ok":
            assert time.monotonic() < end
            raw.execute("SELECT 1")


def test_an_index_that_is_mostly_empty(plane, raw, monkeypatch):
    monkeypatch.setattr(postgres_upkeep, "SPARE_BYTES", 50_000)
    raw.execute("INSERT INTO lakeshore.payload SELECT i, 'result', '' FROM generate_series(1, 5000) i")
    raw.execute("DELETE FROM lakeshore.payload WHERE seq < 4990")
    raw.execute("VACUUM ANALYZE lakeshore.payload")
    rows = [row for row in postgres_findings.database_checks(plane) if row.check == "bloat"]
    said(rows[0], "note", "payload takes", "VACUUM FULL lakeshore.payload;")
    said(rows[1], "note", "index payload_pkey", "REINDEX INDEX CONCURRENTLY lakeshore.payload_pkey;")
    raw.execute("DELETE FROM lakeshore.payload")
    raw.execute("VACUUM (FULL, ANALYZE) lakeshore.payload")
    assert found(plane)["bloat"].state == "ok"


def test_connections_that_run_out(plane, at, own):
    with contextlib.ExitStack() as taken:
        for n in range(CONNECTIONS - 3 - 1):
            taken.enter_context(psycopg.connect(at, application_name=f"app-{n % 6}"))
        row = found(plane)["connections"]
        said(row, "fault", "17 of 17", "app-0", "…", "max_connections = 40")
        assert measured(plane, "connections", "other") == CONNECTIONS - 4
        assert measured(plane, "connections_limit") == CONNECTIONS
        for _ in range(3):
            taken.enter_context(psycopg.connect(at))
        other = f"{at}&application_name=late"  # another address, so another pool

        def opened():
            return PostgresDispatch(other)

        rows = health.examine(opened, start_worker=str, another_plane="name another")
        row = {row.check: row for row in rows}["plane"]
        said(row, "fault", "too many clients", "end processes", "max_connections")
    assert found(plane)["connections"].state == "ok"


def test_a_lock_that_is_waited_for(plane, at, raw, monkeypatch):
    monkeypatch.setattr(postgres_findings, "LOCK_SECONDS", 0.0)
    with psycopg.connect(at) as holder:
        holder.execute("LOCK TABLE lakeshore.worker")
        waiter = threading.Thread(target=lambda: raw.execute("TABLE lakeshore.worker"))
        waiter.start()
        end = time.monotonic() + 10
        while not plane._read(lambda tx: tx.raw.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall()):
            assert time.monotonic() < end
        rows = found(plane)
        pid = holder.info.backend_pid
        said(rows["locks"], "fault", "'worker'", f"held by session {pid}", f"pg_terminate_backend({pid});")
        assert measured(plane, "lock_waits") >= 1
        said(rows["tables"], "note", "not visible", "lock")  # its size cannot be told without a lock
        assert "connections" in rows
    waiter.join(10)
    rows = found(plane)
    assert (rows["locks"].state, rows["tables"].state) == ("ok", "ok")


def test_what_a_role_without_pg_monitor_sees(plane, raw, at, monkeypatch):
    monkeypatch.setattr(postgres_findings, "HELD", (5, 10))
    raw.execute("CREATE ROLE plain LOGIN")
    raw.execute("GRANT USAGE ON SCHEMA lakeshore TO plain")
    raw.execute("GRANT SELECT ON ALL TABLES IN SCHEMA lakeshore TO plain")
    with (
        psycopg.connect(at, application_name="forgotten") as open_one,
        PostgresDispatch(at.replace("//postgres@", "//plain@")) as limited,
    ):
        open_one.execute("SELECT pg_current_xact_id()")
        for n in range(12):
            plane.submit("gpu", b"x", id=f"seen-{n}")
        rows = found(limited)
        said(rows["role"], "note", "'plain'", "GRANT pg_monitor TO plain;")
        said(rows["transactions"], "fault", "'forgotten'", "a time it does not show", "state hidden")
        assert rows.keys() == {*found(plane), "role"}
        raw.execute("REVOKE SELECT ON lakeshore.invocation FROM plain")
        said(found(limited)["oldest finished"], "note", "not visible", "invocation")
        raw.execute("REVOKE EXECUTE ON FUNCTION pg_notification_queue_usage() FROM PUBLIC")
        rows = found(limited)
        said(rows["server"], "note", "not visible")
        assert {"locks", "transactions", "indexes"} <= rows.keys()
        assert measured(limited, "held_transactions", "session") >= 12
    raw.execute("GRANT EXECUTE ON FUNCTION pg_notification_queue_usage() TO PUBLIC")
    raw.execute("DROP OWNED BY plain")
    raw.execute("DROP ROLE plain")


def test_ages_of_what_is_kept(plane, raw, monkeypatch):
    monkeypatch.setattr(postgres_upkeep, "LARGE_BYTES", 0)
    monkeypatch.setattr(postgres_upkeep, "OLD_SECONDS", 3600.0)
    began = time.time()
    for queue in ("b", "a"):
        plane.submit(queue, b"x", id=f"ended-{queue}")
        plane.ack(plane.claim(queue, "w").id, "w", result=b"r")
    assert found(plane)["tables"].state == "ok"
    oldest = measured(plane, "oldest_finished_timestamp_seconds")
    assert began - 5 < oldest < time.time() + 5
    raw.execute("UPDATE lakeshore.invocation SET finished_at = finished_at - 7200 WHERE id = 'ended-b'")
    said(found(plane)["tables"], "note", "2 h ago", "lakeshore prune --older-than 30d", "LAKESHORE_KEEP")
    assert measured(plane, "oldest_finished_timestamp_seconds") < oldest - 7000
    assert measured(plane, "bytes", "tables") > 0
    assert measured(plane, "table_bytes", "invocation") > 0


@pytest.mark.parametrize(
    ("name", "value", "check", "state", "words"),
    [
        ("WRAPAROUND", (1, 2), "wraparound", "fault", ("two billion", "vacuumdb --freeze")),
        ("QUEUE", (0.0, 2.0), "notify queue", "note", ("LISTEN",)),
        ("SKEW_SECONDS", 0.0, "server clock", "note", ("the database's", "set-ntp")),
        ("_OLDEST", 99, "server", "fault", ("older than lakeshore works with", "pg_upgrade")),
    ],
)
def test_what_cannot_be_made_here(plane, monkeypatch, name, value, check, state, words):
    assert found(plane)[check].state != "fault"
    monkeypatch.setattr(postgres_findings, name, value)
    said(found(plane)[check], state, *words)


def test_a_version_that_has_no_more_fixes(plane, monkeypatch):
    major = postgres_health.look(plane).one("server").number // 10000
    past = {major: postgres_findings.dt.date(2020, 1, 1)}
    monkeypatch.setattr(postgres_findings, "_MAINTAINED_UNTIL", past)
    said(found(plane)["server"], "note", "no more fixes since 2020-01-01", "pg_upgrade")


def test_a_synchronous_standby_that_is_not_there(plane, raw):
    with setting(raw, "synchronous_standby_names", "'elsewhere'"):
        row = found(plane)["replication"]
        said(row, "fault", "elsewhere", "every submit", "RESET synchronous_standby_names")
        raw.execute("SET synchronous_commit = local")
    assert found(plane)["replication"].state == "ok"


def test_every_measure_is_one_that_is_told_of(plane):
    for measure in measures.measures(plane):
        assert measure.name in measures.MEANINGS
        assert len(measure.labels) == len(measures.MEANINGS[measure.name][1])
        assert float(measure.value) == measure.value


def test_a_look_leaves_nothing_behind(plane, at):
    postgres_health.look(plane)
    idle = plane._read(lambda tx: tx.raw.info.transaction_status)
    assert idle == psycopg.pq.TransactionStatus.IDLE
    assert plane._read(lambda tx: tx.raw.execute("SHOW lock_timeout").fetchone()[0]) != "500ms"


@pytest.mark.skipif(not LONG, reason="LONG_TESTS=1: copies a server")
def test_a_standby(own, at, plane, raw, monkeypatch):
    with postgres_server.own(*OPTIONS, follows=own) as standby:
        end = time.monotonic() + 20
        while not raw.execute("SELECT FROM pg_stat_replication WHERE replay_lsn IS NOT NULL").fetchall():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert "1 follow" in found(plane)["replication"].found
        assert measured(plane, "replicas") == 1
        monkeypatch.setattr(postgres_findings, "LAG_BYTES", (1, 2))
        with psycopg.connect(standby.dsn(), autocommit=True) as there:
            there.execute("SELECT pg_wal_replay_pause()")
            plane.submit("gpu", b"x" * 1000, id="behind")
            while (row := found(plane)["replication"]).state == "ok":
                assert time.monotonic() < end
            said(row, "fault", "failover", "its log")
            assert measured(plane, "replication_lag_bytes") > 0
        rows = health.examine(
            lambda: PostgresDispatch(standby.dsn(psycopg.conninfo.conninfo_to_dict(at)["dbname"])),
            start_worker=str,
            another_plane="name another",
        )
        said({row.check: row for row in rows}["plane"], "fault", "standby", "Name the primary")
    end = time.monotonic() + 20
    while found(plane)["replication"].found != "no standby follows":
        assert time.monotonic() < end
        time.sleep(0.02)
