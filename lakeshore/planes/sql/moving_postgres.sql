-- What `lakeshore migrate` says to a PostgreSQL database; as moving_sqlite.sql, in this engine's words. COPY is
-- how many rows come and go fastest, and it takes no parameters: those of a read are settings of its session.

-- name: session
-- Rows are walked along their keys, so that no table is sorted or hashed; a move may be slow.
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_sort = off;
SET enable_mergejoin = off; SET enable_nestloop = on; SET max_parallel_workers_per_gather = 0; SET jit = off;
SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
SET client_min_messages = warning; SET lakeshore.mover = 'yes';

-- name: alone
-- One move at a time touches a database; also tells two addresses of one database.
SELECT pg_try_advisory_lock(7809632846571370);

-- name: begin
BEGIN;

-- name: begin_quick
-- A batch that a crash takes back is copied again; the last commit waits for the disk.
BEGIN; SET LOCAL synchronous_commit = off;

-- name: begin_still
-- The locks first: the snapshot is taken by the first look, and nobody writes after it.
BEGIN ISOLATION LEVEL REPEATABLE READ;
LOCK TABLE lakeshore.invocation, lakeshore.payload, lakeshore.journal, lakeshore.frame, lakeshore.worker
    IN SHARE ROW EXCLUSIVE MODE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: ask
SELECT set_config('lakeshore.ns', coalesce(%(ns)s::text, ''), false),
    set_config('lakeshore.reserved', %(reserved)s::text, false),
    set_config('lakeshore.tokens', %(tokens)s::text, false);

-- name: rows_invocation
COPY (
    SELECT ns, seq, ns, id, queue, state, priority, key, parent, attempt, fence, losses, worker_id, after,
        submitted_at, not_before, lease_until, lease_boot, started_at, finished_at, error, traceback, result,
        envelope
    FROM lakeshore.invocation
    WHERE (SELECT current_setting('lakeshore.ns')) = '' OR ns = (SELECT current_setting('lakeshore.ns'))
        OR (ns = (SELECT current_setting('lakeshore.reserved')) AND (queue = 'storage'
            OR id = ANY ((SELECT string_to_array(current_setting('lakeshore.tokens'), ','))::text[])))
    ORDER BY seq
) TO STDOUT (FORMAT BINARY);

-- name: rows_payload
COPY (
    SELECT i.ns, p.seq, p.part, p.body
    FROM lakeshore.payload p LEFT JOIN lakeshore.invocation i ON i.seq = p.seq
    WHERE (SELECT current_setting('lakeshore.ns')) = '' OR i.ns = (SELECT current_setting('lakeshore.ns'))
        OR (i.ns = (SELECT current_setting('lakeshore.reserved')) AND (i.queue = 'storage'
            OR i.id = ANY ((SELECT string_to_array(current_setting('lakeshore.tokens'), ','))::text[])))
    ORDER BY p.seq, p.part
) TO STDOUT (FORMAT BINARY);

-- name: rows_journal
-- A journal's number is its place in the sequence: here a topic's is negative and a job's has a day before it, to
-- find the partition of its frames (postgres_migrations.sql, step 5). What came from another store has none.
COPY (
    SELECT ns, number, ns, id, stem, next_seq, trimmed_to, attempt_seq, closed, posted_at
    FROM (
        SELECT *, CASE WHEN jid < 0 THEN -jid ELSE jid & 1099511627775 END AS number FROM lakeshore.journal) j
    WHERE (SELECT current_setting('lakeshore.ns')) = '' OR ns = (SELECT current_setting('lakeshore.ns'))
        OR (ns = (SELECT current_setting('lakeshore.reserved')) AND (
            id = ANY ((SELECT string_to_array(current_setting('lakeshore.tokens'), ','))::text[])
            OR (SELECT current_setting('lakeshore.ns')) = (SELECT i.ns FROM lakeshore.invocation i
                WHERE i.seq = substring(j.id FROM '-row-([0-9]{1,18})$')::bigint)))
    ORDER BY number
) TO STDOUT (FORMAT BINARY);

-- name: rows_frame
-- The journals are put in order, not their frames, which come by their key within each. Frames whose journal was
-- pruned wait for their day to be dropped, and are not read.
COPY (
    SELECT j.ns, j.number, f.seq, f.body
    FROM (
        SELECT ns, id, jid, CASE WHEN jid < 0 THEN -jid ELSE jid & 1099511627775 END AS number
        FROM lakeshore.journal ORDER BY number) j
    JOIN lakeshore.frame f ON f.jid = j.jid
    WHERE (SELECT current_setting('lakeshore.ns')) = '' OR j.ns = (SELECT current_setting('lakeshore.ns'))
        OR (j.ns = (SELECT current_setting('lakeshore.reserved')) AND (
            j.id = ANY ((SELECT string_to_array(current_setting('lakeshore.tokens'), ','))::text[])
            OR (SELECT current_setting('lakeshore.ns')) = (SELECT i.ns FROM lakeshore.invocation i
                WHERE i.seq = substring(j.id FROM '-row-([0-9]{1,18})$')::bigint)))
    ORDER BY j.number, f.seq
) TO STDOUT (FORMAT BINARY);

-- name: tokens
SELECT id, coalesce(envelope, (
    SELECT body FROM lakeshore.payload p WHERE p.seq = i.seq AND part = 'envelope'))
FROM lakeshore.invocation i WHERE ns = %(reserved)s::text AND queue = 'tokens';

-- name: counts
SELECT (SELECT count(*) FROM lakeshore.invocation), (SELECT count(*) FROM lakeshore.payload),
    (SELECT count(*) FROM lakeshore.journal), (SELECT count(*) FROM lakeshore.frame);

-- name: counts_of
SELECT (SELECT count(*) FROM lakeshore.invocation WHERE ns = %(ns)s::text), 0,
    (SELECT count(*) FROM lakeshore.journal WHERE ns = %(ns)s::text), (SELECT count(*) FROM lakeshore.frame);

-- name: high
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('lakeshore.invocation', 'seq')::regclass), 0),
    coalesce(pg_sequence_last_value(pg_get_serial_sequence('lakeshore.journal', 'jid')::regclass), 0);

-- name: last
SELECT coalesce((SELECT max(seq) FROM lakeshore.invocation), 0),
    coalesce((SELECT max(CASE WHEN jid < 0 THEN -jid ELSE jid & 1099511627775 END) FROM lakeshore.journal), 0);

-- name: set_high
-- A sequence cannot be set to 0, but to be at its start.
SELECT setval(pg_get_serial_sequence('lakeshore.invocation', 'seq'), greatest(%(seq)s::bigint, 1), %(seq)s::bigint > 0),
    setval(pg_get_serial_sequence('lakeshore.journal', 'jid'), greatest(%(jid)s::bigint, 1), %(jid)s::bigint > 0);

-- name: running
SELECT ns, id, queue, worker_id FROM lakeshore.invocation
WHERE state = 'running' AND lease_until > extract(epoch FROM clock_timestamp())::float8
    AND (%(ns)s::text IS NULL OR ns = %(ns)s::text)
LIMIT 1000;

-- name: present
SELECT ns, worker_id, queue, host, pid, seen_at FROM lakeshore.worker
WHERE seen_at > extract(epoch FROM clock_timestamp())::float8 - %(seconds)s::float8
    AND (%(ns)s::text IS NULL OR ns = %(ns)s::text)
ORDER BY seen_at DESC LIMIT 1000;

-- name: put_invocation
COPY lakeshore.invocation (seq, ns, id, queue, state, priority, key, parent, attempt, fence, losses, worker_id,
    after, submitted_at, not_before, lease_until, lease_boot, started_at, finished_at, error, traceback, result,
    envelope) FROM STDIN (FORMAT BINARY);

-- name: put_payload
COPY lakeshore.payload (seq, part, body) FROM STDIN (FORMAT BINARY);

-- name: put_journal
COPY lakeshore.journal (jid, ns, id, stem, next_seq, trimmed_to, attempt_seq, closed, posted_at)
FROM STDIN (FORMAT BINARY);

-- name: put_frame
COPY lakeshore.frame (jid, seq, body) FROM STDIN (FORMAT BINARY);

-- name: remove_invocation
DELETE FROM lakeshore.invocation WHERE seq = %s::bigint;

-- name: remove_payload
DELETE FROM lakeshore.payload WHERE seq = %s::bigint AND part = %s::text;

-- name: remove_journal
DELETE FROM lakeshore.journal WHERE jid = %s::bigint;

-- name: remove_frame
DELETE FROM lakeshore.frame WHERE jid = %s::bigint AND seq = %s::bigint;

-- name: has_gate
SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'lakeshore' AND c.relname = 'moving';

-- name: step
SELECT max(version) FROM lakeshore.migration;

-- name: gate
SELECT kind, other, ns, at FROM lakeshore.moving;

-- name: said
SELECT said FROM lakeshore.moving;

-- name: close
-- As in a file: whoever opens the database finds a version that he does not know, and a trigger refuses at its
-- next write a program that has it open already. The session that moves rows says so, and passes.
CREATE TABLE lakeshore.moving (kind text NOT NULL, other text NOT NULL, ns text, at float8 NOT NULL, said text NOT NULL);
GRANT SELECT ON lakeshore.moving TO PUBLIC;
INSERT INTO lakeshore.schema_version (version) VALUES (2147483647);
CREATE FUNCTION lakeshore.refuse_moved() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(current_setting('lakeshore.mover', true), '') <> 'yes' THEN
        RAISE EXCEPTION USING ERRCODE = 'LK001', MESSAGE = (SELECT said FROM lakeshore.moving);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON lakeshore.invocation
    FOR EACH STATEMENT EXECUTE FUNCTION lakeshore.refuse_moved();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON lakeshore.journal
    FOR EACH STATEMENT EXECUTE FUNCTION lakeshore.refuse_moved();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON lakeshore.frame
    FOR EACH STATEMENT EXECUTE FUNCTION lakeshore.refuse_moved();
CREATE TRIGGER moving BEFORE INSERT OR UPDATE OR DELETE ON lakeshore.worker
    FOR EACH STATEMENT EXECUTE FUNCTION lakeshore.refuse_moved();

-- name: clear
-- What is moved back is copied afresh: the journals that are there have other numbers.
TRUNCATE lakeshore.invocation, lakeshore.payload, lakeshore.journal, lakeshore.frame;

-- name: note
INSERT INTO lakeshore.moving (kind, other, ns, at, said)
VALUES (%(kind)s::text, %(other)s::text, %(ns)s::text, %(at)s::float8, %(said)s::text);

-- name: forget_note
DELETE FROM lakeshore.moving;

-- name: open
DROP TRIGGER moving ON lakeshore.invocation;
DROP TRIGGER moving ON lakeshore.journal;
DROP TRIGGER moving ON lakeshore.frame;
DROP TRIGGER moving ON lakeshore.worker;
DROP FUNCTION lakeshore.refuse_moved();
DROP TABLE lakeshore.moving;
DELETE FROM lakeshore.schema_version WHERE version = 2147483647;

-- name: gather
-- What a planner would guess of tables that were filled just now.
ANALYZE lakeshore.invocation, lakeshore.payload, lakeshore.journal, lakeshore.frame;
