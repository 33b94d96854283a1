-- What a write transaction says in other words than a read: writers run side by side here, so a row that is
-- looked at to decide a write is held until the commit. SQLite has one writer at a time and needs none of it.

-- name: holder
-- Held, so that nobody claims the job between this look and the frame that is appended for its claim.
SELECT state, worker_id, fence, attempt FROM invocation WHERE ns = :ns AND id = :id FOR SHARE;

-- name: journal
SELECT jid, trimmed_to FROM journal WHERE ns = :ns AND id = :id FOR UPDATE;

-- name: journal_end
-- The next seq is this transaction's until it ends, so seqs are committed in their order.
SELECT jid, next_seq FROM journal WHERE ns = :ns AND id = :id FOR UPDATE;

-- name: written_journals
SELECT jid, next_seq, id FROM journal WHERE ns = :ns AND id IN (:id, :log, :progress) AND next_seq > 0
ORDER BY jid FOR UPDATE;

-- name: trim_bound
SELECT jid, bound, (SELECT count(*) FROM frame WHERE frame.jid = kept.jid AND seq < bound)
FROM (
    SELECT jid, CASE WHEN :keep = 0 THEN next_seq ELSE coalesce((
        SELECT seq FROM frame WHERE frame.jid = journal.jid ORDER BY seq DESC LIMIT 1 OFFSET :keep - 1), 0)
        END AS bound
    FROM journal WHERE ns = :ns AND id = :id FOR UPDATE) AS kept;

-- name: sample
-- The row that is drawn is locked; one that another claimer has locked is passed over, for the next of the draw.
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
), drawn AS MATERIALIZED (
    SELECT seq,
        CASE
            WHEN priority < -4e307 OR (SELECT priority FROM top) > 4e307
                THEN exponent(priority, (SELECT priority FROM top), :temperature)
            WHEN priority - (SELECT priority FROM top) > (SELECT near FROM top) THEN 0
            ELSE greatest(priority - (SELECT priority FROM top), (SELECT far FROM top)) / :temperature
        END - ln(-ln((floor(random() * 4503599627370496) + 0.5) / 4503599627370496)) AS score
    FROM due ORDER BY 2 DESC LIMIT 100
)
SELECT i.seq FROM drawn JOIN invocation i ON i.seq = drawn.seq
WHERE i.state IN ('queued', 'running') AND (i.lease_until IS NULL OR i.lease_until <= :mono)
    AND (i.not_before IS NULL OR i.not_before <= :now)
ORDER BY score DESC LIMIT 1 FOR UPDATE OF i SKIP LOCKED;
