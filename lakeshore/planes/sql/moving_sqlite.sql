-- What `lakeshore migrate` says to a SQLite file: rows in the order of their keys, the namespace first; rows as
-- they are, put into another; and the gate that closes a store to everybody else.

-- name: rows_invocation
-- :ns is one namespace, with what servers keep about its rows (:tokens is their ids as JSON); NULL is all.
SELECT ns, seq, ns, id, queue, state, priority, key, parent, attempt, fence, losses, worker_id, after,
    submitted_at, not_before, lease_until, lease_boot, started_at, finished_at, error, traceback, result, envelope
FROM invocation
WHERE :ns IS NULL OR ns = :ns
    OR (ns = :reserved AND (queue = 'storage' OR id IN (SELECT value FROM json_each(:tokens))))
ORDER BY seq;

-- name: rows_payload
SELECT i.ns, p.seq, p.part, p.body
FROM payload p LEFT JOIN invocation i ON i.seq = p.seq
WHERE :ns IS NULL OR i.ns = :ns
    OR (i.ns = :reserved AND (i.queue = 'storage' OR i.id IN (SELECT value FROM json_each(:tokens))))
ORDER BY p.seq, p.part;

-- name: rows_journal
SELECT ns, jid, ns, id, stem, next_seq, trimmed_to, attempt_seq, closed, posted_at
FROM journal
WHERE :ns IS NULL OR ns = :ns
    OR (ns = :reserved AND (id IN (SELECT value FROM json_each(:tokens))
        OR :ns = (SELECT i.ns FROM invocation i WHERE instr(journal.id, '-row-') > 0
            AND i.seq = CAST(substr(journal.id, instr(journal.id, '-row-') + 5) AS INTEGER))))
ORDER BY jid;

-- name: rows_frame
SELECT j.ns, f.jid, f.seq, f.body
FROM frame f JOIN journal j ON j.jid = f.jid
WHERE :ns IS NULL OR j.ns = :ns
    OR (j.ns = :reserved AND (j.id IN (SELECT value FROM json_each(:tokens))
        OR :ns = (SELECT i.ns FROM invocation i WHERE instr(j.id, '-row-') > 0
            AND i.seq = CAST(substr(j.id, instr(j.id, '-row-') + 5) AS INTEGER))))
ORDER BY f.jid, f.seq;

-- name: tokens
SELECT id, coalesce(envelope, (SELECT body FROM payload p WHERE p.seq = invocation.seq AND part = 'envelope'))
FROM invocation WHERE ns = :reserved AND queue = 'tokens';

-- name: counts
SELECT (SELECT count(*) FROM invocation), (SELECT count(*) FROM payload),
    (SELECT count(*) FROM journal), (SELECT count(*) FROM frame);

-- name: counts_of
-- Those of one namespace, where an index has them; a frame is counted as it passes.
SELECT (SELECT count(*) FROM invocation WHERE ns = :ns), 0, (SELECT count(*) FROM journal WHERE ns = :ns),
    (SELECT count(*) FROM frame);

-- name: high
-- The numbers that the next row and the next journal will be above, whatever was deleted since.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'invocation'), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0);

-- name: last
SELECT coalesce((SELECT max(seq) FROM invocation), 0), coalesce((SELECT max(jid) FROM journal), 0);

-- name: forget_high
DELETE FROM sqlite_sequence WHERE name IN ('invocation', 'journal');

-- name: set_high
INSERT INTO sqlite_sequence (name, seq) VALUES ('invocation', :seq), ('journal', :jid);

-- name: running
SELECT ns, id, queue, worker_id FROM invocation
WHERE state = 'running' AND lease_boot = :boot AND lease_until > :mono AND (:ns IS NULL OR ns = :ns)
LIMIT 1000;

-- name: present
SELECT ns, worker_id, queue, host, pid, seen_at FROM worker
WHERE seen_at > :since AND (:ns IS NULL OR ns = :ns) ORDER BY seen_at DESC LIMIT 1000;

-- name: put_invocation
INSERT INTO invocation (seq, ns, id, queue, state, priority, key, parent, attempt, fence, losses, worker_id, after,
    submitted_at, not_before, lease_until, lease_boot, started_at, finished_at, error, traceback, result, envelope)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_payload
INSERT INTO payload (seq, part, body) VALUES (?, ?, ?);

-- name: put_journal
INSERT INTO journal (jid, ns, id, stem, next_seq, trimmed_to, attempt_seq, closed, posted_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_frame
INSERT INTO frame (jid, seq, body) VALUES (?, ?, ?);

-- name: remove_invocation
DELETE FROM invocation WHERE seq = ?;

-- name: remove_payload
DELETE FROM payload WHERE seq = ? AND part = ?;

-- name: remove_journal
DELETE FROM journal WHERE jid = ?;

-- name: remove_frame
DELETE FROM frame WHERE jid = ? AND seq = ?;

-- name: has_gate
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'moving';

-- name: gate
SELECT kind, other, ns, at FROM moving;

-- name: said
SELECT said FROM moving;

-- name: close
-- A table, so that a plane that opens the file knows it for none of its own, and triggers, so that one which has
-- it open already is refused at its next write. The connection that moves rows runs no triggers.
CREATE TABLE moving (kind TEXT NOT NULL, other TEXT NOT NULL, ns TEXT, at REAL NOT NULL, said TEXT NOT NULL) STRICT;
CREATE TRIGGER moving_1 BEFORE INSERT ON invocation BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_2 BEFORE UPDATE ON invocation BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_3 BEFORE DELETE ON invocation BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_4 BEFORE INSERT ON journal BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_5 BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_6 BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_7 BEFORE INSERT ON frame BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_8 BEFORE DELETE ON frame BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_9 BEFORE INSERT ON worker BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;
CREATE TRIGGER moving_10 BEFORE UPDATE ON worker BEGIN SELECT RAISE(ABORT, (SELECT said FROM moving)); END;

-- name: note
INSERT INTO moving (kind, other, ns, at, said) VALUES (:kind, :other, :ns, :at, :said);

-- name: forget_note
DELETE FROM moving;

-- name: open
DROP TRIGGER moving_1;
DROP TRIGGER moving_2;
DROP TRIGGER moving_3;
DROP TRIGGER moving_4;
DROP TRIGGER moving_5;
DROP TRIGGER moving_6;
DROP TRIGGER moving_7;
DROP TRIGGER moving_8;
DROP TRIGGER moving_9;
DROP TRIGGER moving_10;
DROP TABLE moving;
