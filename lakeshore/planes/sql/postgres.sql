-- What PostgreSQL's plane says in words of its own, each with the reason. A table is named here as in verbs.sql;
-- it is qualified with its schema, and each parameter with its type, when the file is loaded.

-- name: schema
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
-- Whether there is a plane here, in what encoding the database is, and whether it only follows another.
-- The catalog's rows are read, and no name is looked up: within one transaction a look-up may still remember
-- that there was none, after the lock that another process made it under was waited for.
SELECT EXISTS (
        SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'lakeshore' AND c.relname = 'schema_' || 'version'  -- a name here, no table
    ), current_setting('server_encoding'), pg_is_in_recovery();

-- name: version
SELECT max(version) FROM schema_version;

-- name: set_version
INSERT INTO schema_version (version) VALUES (:n);

-- name: setting_up
-- Several processes may open a fresh database at once: one makes the tables, the others wait for it.
SELECT pg_advisory_xact_lock(7809632846571365);

-- name: begin
-- One message begins the transaction, names it (so that a COMMIT whose answer was lost can be asked about), and
-- reads the clock. All commits wait for the disk: a crash must not take back a seq that a reader has seen.
BEGIN; SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::float8, (SELECT id FROM span);

-- name: begin_making
-- As begin, where there may be no tables yet.
BEGIN; SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::float8, '';

-- name: new_span
INSERT INTO span (id) VALUES (gen_random_uuid()::text) ON CONFLICT DO NOTHING;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: fate
-- What became of a transaction whose COMMIT was not answered: committed, aborted, in progress, or NULL; and
-- whether the server crashed since: then another transaction may have been given the same number.
SELECT pg_xact_status(:xid::text::xid8), :span IS DISTINCT FROM (SELECT id FROM span);

-- name: clock
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: listen
LISTEN lakeshore;

-- name: notify
SELECT pg_notify('lakeshore', :payload);

-- name: submit
-- RETURNING tells the new row's number: there is no last_insert_rowid() here.
INSERT INTO invocation (ns, id, queue, state, priority, key, parent, submitted_at, not_before, envelope)
VALUES (:ns, :id, :queue, 'queued', :priority, :key, :parent, :now, :not_before, :envelope)
ON CONFLICT DO NOTHING RETURNING seq;

-- name: submit_many
-- Many rows in one statement, numbered in their order: a statement a row is bound by its round trips.
INSERT INTO invocation (ns, id, queue, state, priority, key, parent, submitted_at, not_before, envelope)
SELECT :ns, id, :queue, 'queued', priority, key, parent, :now, :now + (not_before - :asked), envelope
FROM unnest(:id_each, :priority_each, :key_each, :parent_each, :not_before_each, :envelope_each)
    WITH ORDINALITY AS each (id, priority, key, parent, not_before, envelope, place)
ORDER BY place
ON CONFLICT DO NOTHING RETURNING seq, id;

-- name: open_journal
-- As above. Two that open one journal at once: the second fails here, and its transaction is run again.
INSERT INTO journal (ns, id, stem, next_seq, posted_at) VALUES (:ns, :id, :stem, :n, :now) RETURNING jid;

-- name: promote
-- Rows are locked in one order, so that two who promote at once wait for one another and never both.
UPDATE invocation SET not_before = NULL
WHERE not_before IS NOT NULL AND state = 'queued' AND seq IN (
    SELECT seq FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now
    ORDER BY seq FOR UPDATE);

-- name: claim_ready
-- The claim of a queue where nothing but ready rows is due, in one round trip; the first column tells when there
-- is more. The head is materialized: inlined, it could be looked for again, and more be taken than was asked.
WITH more AS MATERIALIZED (
    SELECT EXISTS (
        SELECT 1 FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono)
    OR EXISTS (
        SELECT 1 FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now) AS due
), head AS MATERIALIZED (
    SELECT seq FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND NOT (SELECT due FROM more)
    ORDER BY priority DESC, seq LIMIT :n FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE invocation SET
        state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = :worker, after = :after,
        lease_until = :until, lease_boot = :boot, started_at = :now
    WHERE seq = ANY (ARRAY(SELECT seq FROM head)) AND state = 'queued'
    RETURNING seq, id, envelope, attempt, queue, fence, priority
)
SELECT due, seq, id, envelope, attempt, queue, fence FROM more LEFT JOIN taken ON true
ORDER BY priority DESC, seq;

-- name: heads_fifo
-- As SQLite's, but it locks the head it returns, and that one only: what another claimer has locked is passed
-- over, what this one does not take stays free. When a delayed row is due (2) nothing is locked yet. `rest` is
-- for when the lapsed lease that seemed first is in another's hands.
WITH due AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now LIMIT 1
), first AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
    ORDER BY lease_until, seq LIMIT 1
), better AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND NOT EXISTS (SELECT 1 FROM due)
        AND (NOT EXISTS (SELECT 1 FROM first) OR priority > (SELECT priority FROM first)
            OR (priority = (SELECT priority FROM first) AND seq < (SELECT seq FROM first)))
    ORDER BY priority DESC, seq LIMIT 1 FOR UPDATE SKIP LOCKED
), lapsed AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
        AND NOT EXISTS (SELECT 1 FROM due) AND NOT EXISTS (SELECT 1 FROM better)
    ORDER BY lease_until, seq LIMIT 1 FOR UPDATE SKIP LOCKED
), rest AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND NOT EXISTS (SELECT 1 FROM due) AND NOT EXISTS (SELECT 1 FROM better)
        AND NOT EXISTS (SELECT 1 FROM lapsed)
    ORDER BY priority DESC, seq LIMIT 1 FOR UPDATE SKIP LOCKED
)
SELECT 0, seq, priority FROM better
UNION ALL
SELECT 1, seq, priority FROM lapsed
UNION ALL
SELECT 0, seq, priority FROM rest
UNION ALL
SELECT 2, seq, priority FROM due;

-- name: heads_filo
-- As heads_fifo, the newest of the highest priority: the same index, its equal prefix walked backwards. `rest`
-- is also for when all of that priority are in others' hands.
WITH due AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now LIMIT 1
), first AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
    ORDER BY lease_until, seq LIMIT 1
), better AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND NOT EXISTS (SELECT 1 FROM due)
        AND priority = (
            SELECT priority FROM invocation
            WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
            ORDER BY priority DESC, seq LIMIT 1)
        AND (NOT EXISTS (SELECT 1 FROM first) OR priority > (SELECT priority FROM first)
            OR (priority = (SELECT priority FROM first) AND seq > (SELECT seq FROM first)))
    ORDER BY seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED
), lapsed AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
        AND NOT EXISTS (SELECT 1 FROM due) AND NOT EXISTS (SELECT 1 FROM better)
    ORDER BY lease_until, seq LIMIT 1 FOR UPDATE SKIP LOCKED
), rest AS MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND NOT EXISTS (SELECT 1 FROM due) AND NOT EXISTS (SELECT 1 FROM better)
        AND NOT EXISTS (SELECT 1 FROM lapsed)
    ORDER BY priority DESC, seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED
)
SELECT 0, seq, priority FROM better
UNION ALL
SELECT 1, seq, priority FROM lapsed
UNION ALL
SELECT 0, seq, priority FROM rest
UNION ALL
SELECT 2, seq, priority FROM due;

-- name: sample
-- As SQLite's draw (see there). OR, not UNION ALL: the row is to be locked in a write (postgres_locks.sql).
WITH top (priority) AS MATERIALIZED (
    SELECT max(priority) FROM (
        SELECT max(priority) AS priority FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        UNION ALL
        SELECT max(priority) FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now
        UNION ALL
        SELECT max(priority) FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono) AS each
)
SELECT seq FROM invocation
WHERE ns = :ns AND queue = :queue AND (
    (state = 'queued' AND not_before IS NULL) OR (state = 'queued' AND not_before <= :now)
    OR (state = 'running' AND lease_until <= :mono))
ORDER BY
    exponent(priority, (SELECT priority FROM top), :temperature)
    - ln(-ln((floor(random() * 4503599627370496) + 0.5) / 4503599627370496)) DESC
LIMIT 1;

-- name: next_due
-- As SQLite's; the least of each is the head of its index.
SELECT
    (SELECT not_before FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NOT NULL
     ORDER BY not_before LIMIT 1),
    (SELECT lease_until FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'running'
     ORDER BY lease_until LIMIT 1),
    EXISTS (SELECT 1 FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL);

-- name: list
-- SQLite's hints and its scalar min() are no SQL of this engine.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation
WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) AND (:state IS NULL OR state = :state)
    AND seq < :before AND seq > least(:before, (SELECT max(seq) FROM invocation) + 1) - :window
ORDER BY seq DESC LIMIT :limit;

-- name: list_rare
-- As above.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation
WHERE ns = :ns AND queue = :queue AND (:state IS NULL OR state = :state) AND seq < :before
ORDER BY seq DESC LIMIT :limit;

-- name: list_running
-- As above.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation
WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) AND state = 'running' AND seq < :before
ORDER BY seq DESC LIMIT :limit;

-- name: reach_seq
-- The larger of two is greatest() here, and max() there.
UPDATE journal SET next_seq = greatest(next_seq, :seq + 1), posted_at = :now WHERE jid = :jid;

-- name: trimmed
-- As above.
UPDATE journal SET trimmed_to = greatest(trimmed_to, :seq) WHERE jid = :jid;

-- name: frames
-- A result comes whole, so it is cut here: at :max_bytes (the frame that crosses it is the last), or at :n rows.
SELECT seq, body FROM (
    SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS ahead
    FROM (
        SELECT seq, body FROM frame WHERE jid = :jid AND seq > :since AND seq <= :last
        ORDER BY seq LIMIT :n) AS taken) AS counted
WHERE ahead < :max_bytes ORDER BY seq;
