-- What the verbs say to any engine. Each UPDATE of `state` is one guarded transition of states.py;
-- a guard that matches no row is a clean miss.

-- name: submit
INSERT INTO invocation (ns, id, queue, state, priority, key, parent, submitted_at, not_before, envelope)
VALUES (:ns, :id, :queue, 'queued', :priority, :key, :parent, :now, :not_before, :envelope)
ON CONFLICT DO NOTHING;

-- name: put_payload
INSERT INTO payload (seq, part, body) VALUES (:seq, :part, :body);

-- name: find_key
SELECT id FROM invocation WHERE ns = :ns AND queue = :queue AND key = :key;

-- name: find_id
SELECT queue, coalesce(envelope, (SELECT body FROM payload p WHERE p.seq = invocation.seq AND part = 'envelope'))
FROM invocation WHERE ns = :ns AND id = :id;

-- name: promote
-- Delayed rows that are due become ready; no change of state.
UPDATE invocation SET not_before = NULL
WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now;

-- name: claim
UPDATE invocation SET
    state = 'running', attempt = attempt + 1, fence = fence + 1,
    losses = losses + CASE WHEN state = 'running' THEN 1 ELSE 0 END,
    worker_id = :worker, after = :after, not_before = NULL,
    lease_until = :until, lease_boot = :boot, started_at = :now
WHERE seq = :seq AND (
    (state = 'queued' AND not_before IS NULL) OR (state = 'running' AND lease_until <= :mono));

-- name: claimed
SELECT id, envelope, attempt, queue, fence FROM invocation WHERE seq = :seq;

-- name: claimed_after
-- The claim that an earlier ending made, of the same verb: `after` names job, fence and verb.
SELECT id, envelope, attempt, queue, fence, lease_until, seq FROM invocation
WHERE ns = :ns AND state = 'running' AND worker_id = :worker
    AND after = :id || ':' || :fence || ':' || :ending;

-- name: payload
SELECT body FROM payload WHERE seq = :seq AND part = :part;

-- name: heartbeat
UPDATE invocation SET state = 'running', lease_until = :until, lease_boot = :boot
WHERE ns = :ns AND id = :id AND state = 'running' AND worker_id = :worker AND (:fence IS NULL OR fence = :fence);

-- name: ack
UPDATE invocation SET
    state = 'succeeded', result = :result, finished_at = :now, error = NULL, traceback = NULL,
    lease_until = NULL, lease_boot = NULL
WHERE ns = :ns AND id = :id AND state = 'running' AND worker_id = :worker AND (:fence IS NULL OR fence = :fence);

-- name: nack_retry
UPDATE invocation SET
    state = 'queued', not_before = :not_before, error = :error, traceback = :traceback,
    worker_id = NULL, after = NULL, lease_until = NULL, lease_boot = NULL
WHERE ns = :ns AND id = :id AND state = 'running' AND worker_id = :worker AND (:fence IS NULL OR fence = :fence);

-- name: nack_fail
UPDATE invocation SET
    state = 'failed', error = :error, traceback = :traceback, finished_at = :now,
    lease_until = NULL, lease_boot = NULL
WHERE ns = :ns AND id = :id AND state = 'running' AND worker_id = :worker AND (:fence IS NULL OR fence = :fence);

-- name: release
UPDATE invocation SET
    state = 'queued', attempt = attempt - 1, not_before = NULL, started_at = NULL,
    worker_id = NULL, after = NULL, lease_until = NULL, lease_boot = NULL
WHERE ns = :ns AND id = :id AND state = 'running' AND worker_id = :worker AND (:fence IS NULL OR fence = :fence);

-- name: cancel
UPDATE invocation SET
    state = 'cancelled', finished_at = :now, lease_until = NULL, lease_boot = NULL
WHERE ns = :ns AND id = :id AND state IN ('queued', 'running');

-- name: requeue
UPDATE invocation SET
    state = 'queued', attempt = 0, losses = 0, error = NULL, traceback = NULL, result = NULL,
    worker_id = NULL, after = NULL, not_before = NULL, started_at = NULL, finished_at = NULL
WHERE ns = :ns AND id = :id AND state IN ('failed', 'cancelled');

-- name: place
SELECT seq, queue FROM invocation WHERE ns = :ns AND id = :id;

-- name: holder
SELECT state, worker_id, fence, attempt FROM invocation WHERE ns = :ns AND id = :id;

-- name: row
SELECT id, ns, queue, state, priority, key,
    coalesce(result, (SELECT body FROM payload p WHERE p.seq = invocation.seq AND part = 'result')),
    error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation WHERE ns = :ns AND id = :id;

-- name: outcome
SELECT state, coalesce(result, (SELECT body FROM payload p WHERE p.seq = invocation.seq AND part = 'result')),
    error, traceback
FROM invocation WHERE ns = :ns AND id = :id;

-- name: count_queued
SELECT
    (SELECT count(*) FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL)
  + (SELECT count(*) FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NOT NULL);

-- name: count_running
SELECT count(*) FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'running';

-- name: count_ended
-- The list repeats the partial index's condition, so that the index serves.
SELECT count(*) FROM invocation
WHERE ns = :ns AND queue = :queue AND state IN ('succeeded', 'failed', 'cancelled') AND state = :state;

-- name: queues
SELECT queue, 'queued', count(*) FROM invocation
WHERE ns = :ns AND state = 'queued' AND not_before IS NULL GROUP BY queue
UNION ALL
SELECT queue, 'queued', count(*) FROM invocation
WHERE ns = :ns AND state = 'queued' AND not_before IS NOT NULL GROUP BY queue
UNION ALL
SELECT queue, 'running', count(*) FROM invocation WHERE ns = :ns AND state = 'running' GROUP BY queue
UNION ALL
SELECT queue, state, count(*) FROM invocation
WHERE ns = :ns AND state IN ('succeeded', 'failed', 'cancelled') GROUP BY queue, state;

-- name: list
-- NOT INDEXED: walked newest first along the table itself, and left at the limit, or past :window rows.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation NOT INDEXED
WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) AND (:state IS NULL OR state = :state)
    AND seq < :before AND seq > min(:before, (SELECT max(seq) FROM invocation) + 1) - :window
ORDER BY seq DESC LIMIT :limit;

-- name: list_rare
-- As list, for a queue whose rows are few among the newest: found by the four indexes, and sorted.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation NOT INDEXED WHERE seq IN (
    SELECT seq FROM (
        SELECT seq FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'queued'
            AND not_before IS NULL AND (:state IS NULL OR :state = 'queued')
        UNION ALL
        SELECT seq FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'queued'
            AND not_before IS NOT NULL AND (:state IS NULL OR :state = 'queued')
        UNION ALL
        SELECT seq FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'running' AND :state IS NULL
        UNION ALL
        SELECT seq FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'succeeded'
            AND state IN ('succeeded', 'failed', 'cancelled') AND (:state IS NULL OR :state = 'succeeded')
        UNION ALL
        SELECT seq FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'failed'
            AND state IN ('succeeded', 'failed', 'cancelled') AND (:state IS NULL OR :state = 'failed')
        UNION ALL
        SELECT seq FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'cancelled'
            AND state IN ('succeeded', 'failed', 'cancelled') AND (:state IS NULL OR :state = 'cancelled'))
    WHERE seq < :before
    ORDER BY seq DESC LIMIT :limit)
ORDER BY seq DESC;

-- name: list_running
-- As list, but few of many rows: found by the index of leases, and sorted.
SELECT id, ns, queue, state, priority, key, NULL, error, traceback, worker_id, attempt, fence, losses, parent,
    submitted_at, not_before, lease_until, started_at, finished_at
FROM invocation INDEXED BY leased
WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) AND state = 'running'
    AND seq < :before
ORDER BY seq DESC LIMIT :limit;

-- name: seen
INSERT INTO worker (ns, worker_id, queue, host, pid, version, seen_at)
VALUES (:ns, :worker, :queue, :host, :pid, :version, :now)
ON CONFLICT (ns, worker_id, queue) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, version = excluded.version, seen_at = excluded.seen_at;

-- name: forget_workers
DELETE FROM worker WHERE ns = :ns AND seen_at < :cut;

-- name: workers
SELECT worker_id, queue, host, pid, version, seen_at,
    (SELECT count(*) FROM invocation i
     WHERE i.ns = worker.ns AND i.queue = worker.queue AND i.state = 'running' AND i.worker_id = worker.worker_id)
FROM worker WHERE ns = :ns AND (:queue IS NULL OR queue = :queue) ORDER BY seen_at DESC, worker_id;

-- name: journal
SELECT jid, trimmed_to FROM journal WHERE ns = :ns AND id = :id;

-- name: journal_state
-- What a reader must know of journal and row, as of one moment; always one row.
SELECT (SELECT state FROM invocation WHERE ns = :ns AND id = :stem), jid, next_seq, attempt_seq, closed
FROM (SELECT 1) AS one LEFT JOIN journal ON ns = :ns AND id = :id;

-- name: journal_end
SELECT jid, next_seq FROM journal WHERE ns = :ns AND id = :id;

-- name: open_journal
INSERT INTO journal (ns, id, stem, next_seq, posted_at) VALUES (:ns, :id, :stem, :n, :now);

-- name: reach_seq
UPDATE journal SET next_seq = max(next_seq, :seq + 1), posted_at = :now WHERE jid = :jid;

-- name: put_frame
INSERT INTO frame (jid, seq, body) VALUES (:jid, :seq, :body);

-- name: put_frame_at
INSERT INTO frame (jid, seq, body) VALUES (:jid, :seq, :body) ON CONFLICT DO NOTHING;

-- name: close_journal
-- The first final frame of an attempt ends it; a late one of an attempt before ends nothing.
UPDATE journal SET closed = :seq WHERE jid = :jid AND closed IS NULL AND :seq >= attempt_seq;

-- name: reopen_journals
UPDATE journal SET closed = NULL WHERE ns = :ns AND id IN (:id, :log, :progress) AND closed IS NOT NULL;

-- name: restart_journals
-- A requeued job begins anew: readers from the start see none of what was.
UPDATE journal SET closed = NULL, attempt_seq = next_seq WHERE ns = :ns AND id IN (:id, :log, :progress);

-- name: written_journals
SELECT jid, next_seq, id FROM journal WHERE ns = :ns AND id IN (:id, :log, :progress) AND next_seq > 0;

-- name: begin_attempt
UPDATE journal SET closed = NULL, attempt_seq = next_seq, next_seq = next_seq + 1 WHERE jid = :jid;

-- name: frames
SELECT seq, body FROM frame WHERE jid = :jid AND seq > :since AND seq <= :last ORDER BY seq;

-- name: trim_bound
-- The lowest seq that stays when only the last :keep frames do, and how many go.
SELECT jid, bound, (SELECT count(*) FROM frame WHERE frame.jid = kept.jid AND seq < bound)
FROM (
    SELECT jid, CASE WHEN :keep = 0 THEN next_seq ELSE coalesce((
        SELECT seq FROM frame WHERE frame.jid = journal.jid ORDER BY seq DESC LIMIT 1 OFFSET :keep - 1), 0)
        END AS bound
    FROM journal WHERE ns = :ns AND id = :id) AS kept;

-- name: trim
DELETE FROM frame WHERE jid = :jid AND seq < :seq;

-- name: trimmed
UPDATE journal SET trimmed_to = max(trimmed_to, :seq) WHERE jid = :jid;

-- name: prunable
SELECT seq, id FROM invocation
WHERE ns = :ns AND state IN ('succeeded', 'failed', 'cancelled') AND state = :state AND finished_at <= :cut
LIMIT :limit;

-- name: prune_row
DELETE FROM invocation
WHERE seq = :seq AND state IN ('succeeded', 'failed', 'cancelled') AND finished_at <= :cut;

-- name: prune_payload
DELETE FROM payload WHERE seq = :seq;

-- name: prune_frames
DELETE FROM frame WHERE jid IN (SELECT jid FROM journal WHERE ns = :ns AND id IN (:id, :log, :progress));

-- name: prune_journals
DELETE FROM journal WHERE ns = :ns AND id IN (:id, :log, :progress);

-- name: silent_topics
SELECT jid FROM journal
WHERE ns = :ns AND posted_at <= :cut
    AND NOT EXISTS (SELECT 1 FROM invocation i WHERE i.ns = journal.ns AND i.id = journal.stem)
LIMIT 500;

-- name: silent_notes
-- What a server noted long ago, the next 500: of a row only once there is none of its number. In the index's order,
-- so that the notes that stay are passed once.
SELECT jid, id FROM journal
WHERE ns = :ns AND posted_at <= :cut AND id > :after
    AND NOT EXISTS (SELECT 1 FROM invocation i WHERE i.ns = journal.ns AND i.id = journal.stem)
    AND NOT EXISTS (SELECT 1 FROM invocation i WHERE i.seq = CASE
        WHEN journal.id LIKE 'claim-row-%' THEN CAST(substr(journal.id, 11) AS bigint)
        WHEN journal.id LIKE 'submit-row-%' THEN CAST(substr(journal.id, 12) AS bigint) END)
ORDER BY id LIMIT 500;

-- name: prune_note
DELETE FROM journal WHERE jid = :jid AND posted_at <= :cut;

-- name: prune_topic_frames
DELETE FROM frame WHERE jid = :jid;

-- name: prune_topic
DELETE FROM journal WHERE jid = :jid;
