-- What the doctor and /metrics ask of a SQLite plane beside what `stat` tells of its files. Each is some pages read,
-- however many rows there are.

-- name: pages
SELECT page_count * page_size, freelist_count * page_size
FROM pragma_page_count(), pragma_page_size(), pragma_freelist_count();

-- name: version
SELECT user_version FROM pragma_user_version();

-- name: estimates
-- Rows by table: numbers from the first to the last that is kept, which is too many where rows between were
-- pruned; frames are told by the newest 1000 journals.
SELECT 'invocation', coalesce((SELECT max(seq) FROM invocation) - (SELECT min(seq) FROM invocation) + 1, 0)
UNION ALL
SELECT 'journal', coalesce((SELECT max(jid) FROM journal) - (SELECT min(jid) FROM journal) + 1, 0)
UNION ALL
SELECT 'frame', cast(coalesce(
    ((SELECT max(jid) FROM journal) - (SELECT min(jid) FROM journal) + 1) * (
        SELECT avg(next_seq - trimmed_to) FROM (
            SELECT next_seq, trimmed_to FROM journal ORDER BY jid DESC LIMIT 1000)), 0) AS INTEGER)
UNION ALL
SELECT 'payload', coalesce((SELECT max(rowid) FROM payload) - (SELECT min(rowid) FROM payload) + 1, 0);

-- name: oldest_finished
-- The oldest row that has ended: from one (ns, queue, state) to the next by the index `ended`, whose head of
-- each is its oldest; at most 2000 of them, so that a store of very many queues costs no more. Three steps, as
-- SQLite searches an index by the first column of a row value only.
WITH RECURSIVE each (ns, queue, state, finished_at, n) AS (
    SELECT * FROM (
        SELECT ns, queue, state, finished_at, 1 FROM invocation
        WHERE state IN ('succeeded', 'failed', 'cancelled')
        ORDER BY ns, queue, state, finished_at LIMIT 1)
    UNION ALL
    SELECT next.ns, next.queue, next.state, next.finished_at, each.n + 1
    FROM each JOIN invocation AS next ON next.seq = coalesce(
        (SELECT seq FROM invocation WHERE state IN ('succeeded', 'failed', 'cancelled')
            AND ns = each.ns AND queue = each.queue AND state > each.state ORDER BY state, finished_at LIMIT 1),
        (SELECT seq FROM invocation WHERE state IN ('succeeded', 'failed', 'cancelled')
            AND ns = each.ns AND queue > each.queue ORDER BY queue, state, finished_at LIMIT 1),
        (SELECT seq FROM invocation WHERE state IN ('succeeded', 'failed', 'cancelled')
            AND ns > each.ns ORDER BY ns, queue, state, finished_at LIMIT 1))
    WHERE each.n < 2000
)
SELECT min(finished_at) FROM each;
