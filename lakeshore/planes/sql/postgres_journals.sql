-- What PostgreSQL's plane says of journals and their frames in words of its own, each with the reason.

-- name: open_journal
-- RETURNING, as submit (postgres.sql). Two that open one journal at once: the second fails here, and its transaction is run again.
INSERT INTO journal (ns, id, stem, next_seq, posted_at) VALUES (:ns, :id, :stem, :n, :now) RETURNING jid;

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
