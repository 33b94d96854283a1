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
-- The oldest row that has ended: from one namespace to the next, and within it from one queue to the next, by the
-- index `ended`, which alone is read; at most 1000 queues, so that a store of very many costs no more.
WITH RECURSIVE home (ns) AS (
    SELECT * FROM (
        SELECT ns FROM invocation WHERE state IN ('succeeded', 'failed', 'cancelled') ORDER BY ns LIMIT 1)
    UNION ALL
    SELECT (SELECT ns FROM invocation
        WHERE state IN ('succeeded', 'failed', 'cancelled') AND ns > home.ns ORDER BY ns LIMIT 1)
    FROM home WHERE home.ns IS NOT NULL
    LIMIT 1000
), each (ns, queue) AS (
    SELECT ns, (SELECT queue FROM invocation AS row
        WHERE state IN ('succeeded', 'failed', 'cancelled') AND row.ns = home.ns ORDER BY queue LIMIT 1)
    FROM home WHERE home.ns IS NOT NULL
    UNION ALL
    SELECT ns, (SELECT queue FROM invocation AS row
        WHERE state IN ('succeeded', 'failed', 'cancelled') AND row.ns = each.ns AND row.queue > each.queue
        ORDER BY queue LIMIT 1)
    FROM each WHERE each.queue IS NOT NULL
    LIMIT 1000
), ending (state) AS (
    VALUES ('succeeded'), ('failed'), ('cancelled')
)
SELECT min((
    SELECT min(finished_at) FROM invocation AS row
    WHERE row.state IN ('succeeded', 'failed', 'cancelled')
        AND row.ns = each.ns AND row.queue = each.queue AND row.state = ending.state))
FROM each, ending WHERE each.queue IS NOT NULL;
