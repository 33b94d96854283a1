-- What PostgreSQL's plane says of journals and their frames in words of its own, each with the reason.

-- name: open_journal
-- Its number tells the partition of its frames (postgres_migrations.sql, step 5): a topic's is negative, a job's
-- begins with the day. RETURNING, as submit (postgres.sql). Two that open one journal at once: the second fails
-- here, and its transaction is run again.
INSERT INTO journal (jid, ns, id, stem, next_seq, posted_at) OVERRIDING SYSTEM VALUE
SELECT
    CASE
        WHEN NOT EXISTS (SELECT FROM invocation WHERE ns = :ns AND id = :stem) THEN -number
        WHEN latest = today THEN latest + number
        ELSE lakeshore.begin_days(7) + number
    END, :ns, :id, :stem, :n, posted_at
FROM (
    SELECT nextval('lakeshore.journal_jid_seq') AS number, today, posted_at,
        (SELECT max(first) FROM lakeshore.frame_day WHERE first <= today) AS latest
    FROM (SELECT floor(moment / 86400)::bigint << 40 AS today, moment AS posted_at
        FROM (SELECT :now AS moment) AS at) AS on_a_day) AS next
RETURNING jid;

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

-- name: prune_rows
-- Many rows, with their payloads and journals, by one statement. What it returns of journals are those whose
-- frames go by rows; the others' go with their day.
WITH gone AS (
    DELETE FROM invocation
    WHERE seq = ANY (:seqs::bigint[]) AND state IN ('succeeded', 'failed', 'cancelled') AND finished_at <= :cut
    RETURNING ns, seq, id
), bodies AS (
    DELETE FROM payload WHERE seq IN (SELECT seq FROM gone)
), journals AS (
    DELETE FROM journal AS j
    USING gone, unnest(ARRAY[gone.id, gone.id || '.log', gone.id || '.progress']) AS its
    WHERE j.ns = gone.ns AND j.id = its
    RETURNING jid, greatest(jid, 0) >> 40 AS day
), days AS MATERIALIZED (
    SELECT day, lakeshore.goes_by_rows(day << 40) AS by_rows FROM (SELECT DISTINCT day FROM journals) AS each
)
SELECT (SELECT count(*) FROM gone), (SELECT array_agg(jid)::text FROM journals JOIN days USING (day) WHERE by_rows);

-- name: prune_frames_of
-- A statement after prune_rows, since it sees what was appended before those journals were gone.
DELETE FROM frame WHERE jid = ANY (:jids::bigint[]);

-- name: drop_day
SELECT lakeshore.drop_day();

-- name: days_that_stay
-- Past days that prunings of this age should have emptied a day ago, and others' journals keep.
SELECT first, next FROM (
    SELECT first, by_rows, lead(first) OVER (ORDER BY first) AS next FROM lakeshore.frame_day) AS day
WHERE first > 0 AND NOT by_rows AND (next >> 40) * 86400 + :older_than::float8 + 86400 < :now
    AND EXISTS (SELECT FROM journal WHERE jid >= first AND jid < next);

-- name: go_by_rows
SELECT lakeshore.go_by_rows(:jid);

-- name: prune_orphans
-- Frames between two numbers whose journals are gone, the next 10,000.
WITH dead AS (
    SELECT f.jid, f.seq FROM frame AS f
    WHERE f.jid >= :since AND f.jid < :before AND NOT EXISTS (SELECT FROM journal AS j WHERE j.jid = f.jid)
    ORDER BY f.jid, f.seq LIMIT 10000
), gone AS (
    DELETE FROM frame AS f USING dead
    WHERE f.jid = dead.jid AND f.seq = dead.seq AND f.jid >= :since AND f.jid < :before
    RETURNING f.jid
)
SELECT max(jid) FROM gone;
