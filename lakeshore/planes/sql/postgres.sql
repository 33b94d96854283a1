-- What PostgreSQL's plane says in words of its own, each with the reason. A table is named here as in verbs.sql;
-- it is qualified with its schema, and each parameter with its type, when the file is loaded.

-- name: begin
-- One message begins the transaction, names it (so that a COMMIT whose answer was lost can be asked about), and
-- reads the clock. All commits wait for the disk: a crash must not take back a seq that a reader has seen.
-- What a role may have set as the default is not relied on.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::float8, (SELECT id FROM span);

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

-- name: unlisten
UNLISTEN lakeshore;

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
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
            AND lease_until > :spared)
    OR EXISTS (
        SELECT 1 FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now) AS due
), level AS MATERIALIZED (
    SELECT seq FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND priority = :mark_priority AND seq >= :mark_seq AND NOT (SELECT due FROM more)
    ORDER BY priority DESC, seq LIMIT :n FOR UPDATE SKIP LOCKED
), below AS MATERIALIZED (
    SELECT seq FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND priority < :mark_priority AND NOT (SELECT due FROM more)
    ORDER BY priority DESC, seq LIMIT :n - (SELECT count(*) FROM level) FOR UPDATE SKIP LOCKED
), head AS MATERIALIZED (
    SELECT seq FROM level
    UNION ALL
    SELECT seq FROM below
), taken AS (
    UPDATE invocation SET
        state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = :worker, after = :after,
        lease_until = :until, lease_boot = :boot, started_at = :now
    WHERE seq = ANY (ARRAY(SELECT seq FROM head)) AND state = 'queued'
    RETURNING seq, id, envelope, attempt, queue, fence, priority
)
SELECT due, seq, id, envelope, attempt, queue, fence, priority FROM more LEFT JOIN taken ON true
ORDER BY priority DESC, seq;

-- name: claim_newest_ready
-- As claim_ready, newest first: those of the highest priority only, so that it may take fewer than there are.
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
        AND priority = (
            SELECT priority FROM invocation
            WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
            ORDER BY priority DESC, seq LIMIT 1)
    ORDER BY seq DESC LIMIT :n FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE invocation SET
        state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = :worker, after = :after,
        lease_until = :until, lease_boot = :boot, started_at = :now
    WHERE seq = ANY (ARRAY(SELECT seq FROM head)) AND state = 'queued'
    RETURNING seq, id, envelope, attempt, queue, fence, priority
)
SELECT due, seq, id, envelope, attempt, queue, fence FROM more LEFT JOIN taken ON true
ORDER BY priority DESC, seq DESC;

-- name: ack_and_claim_ready
-- An ack and the claim of the next job, a transaction of one statement: one round trip and one flush a job. It
-- does both or nothing, and nothing where there is more to do than this: a delayed row or a lapsed lease is due,
-- or the next job was claimed before, so that its journals are to begin a new attempt.
WITH more AS MATERIALIZED (
    SELECT EXISTS (
        SELECT 1 FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
            AND lease_until > :spared)
    OR EXISTS (
        SELECT 1 FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now) AS due
), level AS MATERIALIZED (
    SELECT seq, fence FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND priority = :mark_priority AND seq >= :mark_seq AND NOT (SELECT due FROM more)
    ORDER BY priority DESC, seq LIMIT 1 FOR UPDATE SKIP LOCKED
), below AS MATERIALIZED (
    SELECT seq, fence FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND priority < :mark_priority AND NOT (SELECT due FROM more)
    ORDER BY priority DESC, seq LIMIT 1 - (SELECT count(*) FROM level) FOR UPDATE SKIP LOCKED
), head AS MATERIALIZED (
    SELECT seq, fence FROM level
    UNION ALL
    SELECT seq, fence FROM below
), ended AS (
    UPDATE invocation SET
        state = 'succeeded', result = :result, finished_at = :now, error = NULL, traceback = NULL,
        lease_until = NULL, lease_boot = NULL
    WHERE ns = :ns AND id = :id AND state = 'running' AND worker_id = :worker
        AND (:fence IS NULL OR fence = :fence)
        AND NOT (SELECT due FROM more) AND NOT EXISTS (SELECT 1 FROM head WHERE fence > 0)
    RETURNING seq
), taken AS (
    UPDATE invocation SET
        state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = :worker, after = :after,
        lease_until = :until, lease_boot = :boot, started_at = :now
    WHERE seq = (SELECT seq FROM head WHERE EXISTS (SELECT 1 FROM ended)) AND state = 'queued'
    RETURNING seq, id, envelope, attempt, queue, fence, priority
)
SELECT done, seq, id,
    coalesce(envelope, (SELECT body FROM payload p WHERE p.seq = taken.seq AND part = 'envelope'), ''),
    attempt, queue, fence, priority
FROM (SELECT EXISTS (SELECT 1 FROM ended) AS done) AS one LEFT JOIN taken ON true;

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
-- As SQLite's draw (see there), over the same three indexes. A row that is more than 41 temperatures below the
-- highest is not looked at: the least that a draw adds to the highest is -3.6 and the most to another 36.8, so it
-- never wins. Between numbers that are not extreme the quotient needs no function.
WITH top (priority, lowest, far, near) AS MATERIALIZED (
    SELECT max(priority),
        CASE WHEN max(priority) > -1e308 AND :temperature < 1e300 THEN max(priority) - 41 * :temperature
            ELSE '-Infinity' END,
        -10000 * least(:temperature, 1e304),
        CASE WHEN :temperature > 1e-300 THEN -1e-15 * :temperature ELSE 0 END
    FROM (
        SELECT max(priority) AS priority FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        UNION ALL
        SELECT max(priority) FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now
        UNION ALL
        SELECT max(priority) FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono) AS each
), due (seq, priority) AS NOT MATERIALIZED (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND priority >= (SELECT lowest FROM top)
    UNION ALL
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now
    UNION ALL
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
)
SELECT seq FROM due
ORDER BY
    CASE
        WHEN priority < -4e307 OR (SELECT priority FROM top) > 4e307
            THEN exponent(priority, (SELECT priority FROM top), :temperature)
        WHEN priority - (SELECT priority FROM top) > (SELECT near FROM top) THEN 0
        ELSE greatest(priority - (SELECT priority FROM top), (SELECT far FROM top)) / :temperature
    END - ln(-ln((floor(random() * 4503599627370496) + 0.5) / 4503599627370496)) DESC
LIMIT 1;

-- name: next_due
-- As SQLite's; the least of each is the head of its index, looked for from the mark on.
SELECT
    (SELECT not_before FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NOT NULL
     ORDER BY not_before LIMIT 1),
    (SELECT lease_until FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until > :spared
     ORDER BY lease_until LIMIT 1),
    EXISTS (SELECT 1 FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        AND priority = :mark_priority AND seq >= :mark_seq)
    OR EXISTS (SELECT 1 FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL AND priority < :mark_priority);

-- name: list
-- SQLite's hints and its scalar min() are no SQL of this engine.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation
WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) AND (:state IS NULL OR state = :state)
    AND seq < :before AND seq > least(:before, (SELECT max(seq) FROM invocation) + 1) - :window
ORDER BY seq DESC LIMIT :limit;

-- name: list_rare
-- As SQLite's: found by the four indexes, and sorted. Where that are more rows than are soon sorted, they are so
-- dense that the walk finds them.
WITH few AS MATERIALIZED (
    SELECT count(*) <= 10000 AS so FROM (
        SELECT 1 FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        UNION ALL
        SELECT 1 FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NOT NULL
        UNION ALL
        SELECT 1 FROM invocation
        WHERE ns = :ns AND queue = :queue AND state IN ('succeeded', 'failed', 'cancelled')
        LIMIT 10001) AS counted
), found AS MATERIALIZED (
    SELECT seq FROM (
        SELECT seq FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
            AND (:state IS NULL OR :state = 'queued') AND (SELECT so FROM few)
        UNION ALL
        SELECT seq FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NOT NULL
            AND (:state IS NULL OR :state = 'queued') AND (SELECT so FROM few)
        UNION ALL
        SELECT seq FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND :state IS NULL AND (SELECT so FROM few)
        UNION ALL
        SELECT seq FROM invocation
        WHERE ns = :ns AND queue = :queue AND state IN ('succeeded', 'failed', 'cancelled')
            AND (:state IS NULL OR state = :state) AND (SELECT so FROM few)) AS each
    WHERE seq < :before ORDER BY seq DESC LIMIT :limit
), walked AS MATERIALIZED (
    SELECT seq FROM invocation
    WHERE ns = :ns AND queue = :queue AND (:state IS NULL OR state = :state) AND seq < :before
        AND NOT (SELECT so FROM few)
    ORDER BY seq DESC LIMIT :limit
)
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation
WHERE seq = ANY (ARRAY(SELECT seq FROM found UNION ALL SELECT seq FROM walked))
ORDER BY seq DESC;

-- name: list_running
-- As list.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation
WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) AND state = 'running' AND seq < :before
ORDER BY seq DESC LIMIT :limit;

-- name: journal_states
-- As journal_state, of many: :names is a JSON list of a journal and its stem each. LATERAL: looked up one by one.
SELECT place::bigint - 1, (SELECT state FROM invocation WHERE ns = :ns AND id = told ->> 1),
    jid, next_seq, attempt_seq, closed
FROM jsonb_array_elements(:names::jsonb) WITH ORDINALITY AS each (told, place) LEFT JOIN LATERAL (
    SELECT jid, next_seq, attempt_seq, closed FROM journal WHERE ns = :ns AND id = told ->> 0 OFFSET 0) AS found ON true;

-- name: row_states
-- What a viewer's mark of a row is made from, of many: :names is a JSON list of ids.
SELECT id, state, queue, attempt, fence, losses, worker_id, error, priority, not_before, started_at, finished_at
FROM jsonb_array_elements_text(:names::jsonb) AS each (name) CROSS JOIN LATERAL (
    SELECT * FROM invocation WHERE ns = :ns AND id = name OFFSET 0) AS found;

-- name: shown_version
-- What moving_side.CLOSED is compared with, by a plane that was open before.
SELECT max(version) FROM schema_version;

-- name: moved_where
SELECT said FROM lakeshore.moving;

-- name: spare
-- Leases that nobody could extend get a little longer, of all namespaces, but those that end at one of :marks;
-- no change of state. What is spared ends at one moment, and is known by it.
UPDATE invocation SET lease_until = :until, lease_boot = :boot
WHERE state = 'running' AND lease_until < :until AND NOT EXISTS (
    SELECT FROM jsonb_array_elements(:marks::jsonb) AS mark WHERE abs(mark::float8 - lease_until) < 0.00001)
RETURNING lease_until;

-- name: spare_again
UPDATE invocation SET lease_until = :until, lease_boot = :boot
WHERE state = 'running' AND abs(lease_until - :spared_at::float8) < 0.00001
RETURNING lease_until;
