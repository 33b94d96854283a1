-- PostgreSQL's tables, and what is said when a plane is made or brought up to date. A table is named here as in
-- verbs.sql; it is qualified with its schema when the file is loaded.

-- name: schema
-- The tables of the first release; the steps in postgres_migrations.sql follow, for a new plane as for an old one.
-- Text is COLLATE "C": an index does not depend on the machine's locale, whose upgrade would corrupt it. The
-- identity gives the order: a sequence never repeats, whatever rolls back. fillfactor leaves room on the page
-- for the changes of state that each row goes through; a queue's rows die young, so vacuum comes early.
CREATE TABLE invocation (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL CHECK (id ~ '^[A-Za-z0-9_-]{1,128}$'),
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    priority float8 NOT NULL CHECK (priority > '-Infinity' AND priority < 'Infinity'),
    key text COLLATE "C",
    parent text COLLATE "C",
    attempt bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    losses bigint NOT NULL DEFAULT 0,
    worker_id text COLLATE "C",
    after text COLLATE "C",
    submitted_at float8 NOT NULL,
    not_before float8,
    lease_until float8,
    lease_boot text COLLATE "C",
    started_at float8,
    finished_at float8,
    error text COLLATE "C",
    traceback text COLLATE "C",
    result bytea,
    envelope bytea,
    UNIQUE (ns, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05);
-- Every row is in exactly one of these four, so a claim never walks past rows it cannot take.
CREATE INDEX ready ON invocation (ns, queue, priority DESC, seq)
    WHERE state = 'queued' AND not_before IS NULL;
CREATE INDEX delayed ON invocation (ns, queue, not_before) WHERE state = 'queued' AND not_before IS NOT NULL;
CREATE INDEX leased ON invocation (ns, queue, lease_until, seq) WHERE state = 'running';
CREATE INDEX ended ON invocation (ns, queue, state, finished_at)
    WHERE state IN ('succeeded', 'failed', 'cancelled');
CREATE UNIQUE INDEX keyed ON invocation (ns, queue, key) WHERE key IS NOT NULL;
-- A bytea's own compression costs more than it saves on what is packed already.
CREATE TABLE payload (
    seq bigint NOT NULL,
    part text COLLATE "C" NOT NULL CHECK (part IN ('envelope', 'result')),
    body bytea NOT NULL,
    PRIMARY KEY (seq, part)
);
ALTER TABLE payload ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE journal (
    jid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    stem text COLLATE "C" NOT NULL,
    next_seq bigint NOT NULL DEFAULT 0,
    trimmed_to bigint NOT NULL DEFAULT 0,
    attempt_seq bigint NOT NULL DEFAULT 0,
    closed bigint,
    posted_at float8 NOT NULL,
    UNIQUE (ns, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE TABLE frame (
    jid bigint NOT NULL,
    seq bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (jid, seq)
);
ALTER TABLE frame ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE worker (
    ns text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    host text COLLATE "C" NOT NULL,
    pid bigint NOT NULL,
    version text COLLATE "C" NOT NULL,
    seen_at float8 NOT NULL,
    PRIMARY KEY (ns, worker_id, queue)
);
CREATE TABLE schema_version (version bigint NOT NULL);
-- The time from one crash of the server to the next: a crash empties an UNLOGGED table, a restart does not.
CREATE UNLOGGED TABLE span (one boolean PRIMARY KEY DEFAULT true CHECK (one), id text NOT NULL);
-- (priority - top) / temperature for a draw. Here an overflow or underflow is an error, so what is near neither
-- is divided: below -10000 exp() is 0 anyway; beyond 4e307 halves are taken, whose difference is always finite.
CREATE FUNCTION exponent(priority float8, top float8, temperature float8) RETURNS float8
IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
DECLARE
    apart float8;
BEGIN
    IF priority = top THEN
        RETURN 0;
    ELSIF top > 4e307 OR priority < -4e307 THEN
        apart := CASE WHEN abs(priority) < 1 THEN 0 ELSE priority / 2 END
            - CASE WHEN abs(top) < 1 THEN 0 ELSE top / 2 END;
        IF temperature < 3e304 AND apart < -5000 * least(temperature, 3e304) THEN
            RETURN -10000;
        END IF;
        RETURN apart / temperature * 2;
    END IF;
    apart := priority - top;
    IF temperature < 1e304 AND apart < -10000 * least(temperature, 1e304) THEN
        RETURN -10000;
    ELSIF temperature > 1e-300 AND apart > -1e-15 * greatest(temperature, 1e-300) THEN
        RETURN 0;
    END IF;
    RETURN apart / temperature;
END $$;

-- name: make_home
CREATE SCHEMA IF NOT EXISTS lakeshore;

-- name: has_home
-- Whether there is a plane here, whether its steps are noted, in what encoding the database is, and whether it
-- only follows another. The catalog's rows are read, and no name is looked up: within one transaction a look-up
-- may still remember that there was none, after the lock that another process made it under was waited for.
SELECT
    EXISTS (
        SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'lakeshore' AND c.relname = 'schema_' || 'version'),  -- a name here, no table
    EXISTS (
        SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'lakeshore' AND c.relname = 'migration'),
    current_setting('server_encoding'), pg_is_in_recovery();

-- name: version
SELECT max(version) FROM schema_version;

-- name: newest_step
SELECT max(version) FROM lakeshore.migration;

-- name: note_step
INSERT INTO lakeshore.migration (version, name) VALUES (:n, :name);

-- name: note_by_hand
-- As set_version and note_step, in the text for who runs the steps himself; {each} is a number or name of ours.
INSERT INTO lakeshore.migration (version, name) VALUES ({version}, '{name}');
INSERT INTO lakeshore.schema_version (version) SELECT {oldest}
WHERE {oldest} > (SELECT coalesce(max(version), 0) FROM lakeshore.schema_version);

-- name: be_quick
-- Who waits for a table holds up all who come after. Longer than deadlock_timeout (1 s): an autovacuum gives way.
SELECT set_config('lock_timeout', '1500ms', true), set_config('statement_timeout', '0', true);

-- name: be_owner
-- What a step makes belongs to whom the rest belongs to, also when a superuser takes it.
SELECT set_config('role', pg_get_userbyid(c.relowner), true)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'lakeshore' AND c.relname = 'journal_jid_seq';

-- name: who_works
SELECT ns, worker_id, queue, host, version, seen_at, :now - seen_at FROM worker
WHERE seen_at > :cut ORDER BY ns, queue, worker_id;

-- name: who_is_connected
SELECT usename, application_name, coalesce(host(client_addr), 'local'), count(*), min(backend_start)::text
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename IS NOT NULL
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: set_version
INSERT INTO schema_version (version) VALUES (:n);

-- name: setting_up
-- Several processes may open a fresh database at once: one makes the tables, the others wait for it.
SELECT pg_advisory_xact_lock(7809632846571365);

-- name: begin_making
-- As begin (postgres.sql), where there may be no tables yet.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::float8, '';

-- name: new_span
INSERT INTO span (id) VALUES (gen_random_uuid()::text) ON CONFLICT DO NOTHING;
