-- What only SQLite's plane says: its schema, and the heads of the queue that a claim looks at.

-- name: schema
-- One row an invocation: queue entry, metadata and state machine in one place. AUTOINCREMENT, since
-- "oldest" is submission order in the plane and must not be reused; a lease counts on the machine's
-- monotonic clock (lease_until), which is only comparable within one boot (lease_boot).
-- STRICT: a column holds its type whoever writes the file, so no row can stop the workers that read it.
CREATE TABLE invocation (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    ns TEXT NOT NULL,
    id TEXT NOT NULL CHECK (id NOT GLOB '*[^A-Za-z0-9_-]*' AND length(id) BETWEEN 1 AND 128),
    queue TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    priority REAL NOT NULL,
    key TEXT,
    parent TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0,
    worker_id TEXT,
    after TEXT,
    submitted_at REAL NOT NULL,
    not_before REAL,
    lease_until REAL,
    lease_boot TEXT,
    started_at REAL,
    finished_at REAL,
    error TEXT,
    traceback TEXT,
    result BLOB,
    envelope BLOB,
    UNIQUE (ns, id)
) STRICT;
-- Every row is in exactly one of these four, so a claim never walks past rows it cannot take. `ready` holds
-- not_before, always NULL there, so that it covers a draw and a count.
CREATE INDEX ready ON invocation (ns, queue, priority DESC, seq, not_before)
    WHERE state = 'queued' AND not_before IS NULL;
CREATE INDEX delayed ON invocation (ns, queue, not_before) WHERE state = 'queued' AND not_before IS NOT NULL;
CREATE INDEX leased ON invocation (ns, queue, lease_until, seq, priority) WHERE state = 'running';
CREATE INDEX ended ON invocation (ns, queue, state, finished_at)
    WHERE state IN ('succeeded', 'failed', 'cancelled');
CREATE UNIQUE INDEX keyed ON invocation (ns, queue, key) WHERE key IS NOT NULL;
-- Envelopes and results too large to be rewritten with each change of their row.
CREATE TABLE payload (
    seq INTEGER NOT NULL,
    part TEXT NOT NULL CHECK (part IN ('envelope', 'result')),
    body BLOB NOT NULL,
    PRIMARY KEY (seq, part)
) STRICT;
-- `stem` is the invocation that a journal belongs to: its own id, or the id without .log or .progress.
CREATE TABLE journal (
    jid INTEGER PRIMARY KEY AUTOINCREMENT,
    ns TEXT NOT NULL,
    id TEXT NOT NULL,
    stem TEXT NOT NULL,
    next_seq INTEGER NOT NULL DEFAULT 0,
    trimmed_to INTEGER NOT NULL DEFAULT 0,
    attempt_seq INTEGER NOT NULL DEFAULT 0,
    closed INTEGER,
    posted_at REAL NOT NULL,
    UNIQUE (ns, id)
) STRICT;
CREATE TABLE frame (
    jid INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (jid, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE worker (
    ns TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    queue TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    seen_at REAL NOT NULL,
    PRIMARY KEY (ns, worker_id, queue)
) STRICT, WITHOUT ROWID;

-- name: tables
-- What the schema made; statistics of a viewer's ANALYZE are no part of it.
SELECT type, name, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_stat*';

-- name: claim_other_boots
-- A lease of another boot has lapsed: its worker cannot be alive.
UPDATE invocation SET lease_until = 0, lease_boot = :boot WHERE state = 'running' AND lease_boot <> :boot;

-- name: heads_fifo
-- 0: the ready row to take next; 1: the longest lapsed; 2: a delayed row that is due, to be promoted first.
SELECT * FROM (
    SELECT 0, seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
    ORDER BY priority DESC, seq LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT 1, seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
    ORDER BY lease_until, seq LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT 2, seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now LIMIT 1);

-- name: heads_filo
-- As heads_fifo, but the newest of the highest priority: the same index, its equal prefix walked backwards.
SELECT * FROM (
    SELECT 0, seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL AND priority = (
        SELECT priority FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
        ORDER BY priority DESC LIMIT 1)
    ORDER BY seq DESC LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT 1, seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
    ORDER BY lease_until, seq LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT 2, seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now LIMIT 1);

-- name: sample
-- Gumbel-max: arg max of priority/T - ln(-ln u) draws row r with P(r) = exp(priority_r/T) / sum.
-- Source: E. J. Gumbel, Statistical Theory of Extreme Values, 1954; priorities are taken relative to
-- the highest, so that no quotient overflows. u has 52 bits and never reaches 0 or 1.
WITH top (priority) AS (
    SELECT max(priority) FROM (
        SELECT * FROM (
            SELECT priority FROM invocation
            WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
            ORDER BY priority DESC LIMIT 1)
        UNION ALL
        SELECT priority FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now
        UNION ALL
        SELECT priority FROM invocation
        WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono)
), due (seq, priority) AS (
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL
    UNION ALL
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before <= :now
    UNION ALL
    SELECT seq, priority FROM invocation
    WHERE ns = :ns AND queue = :queue AND state = 'running' AND lease_until <= :mono
)
SELECT due.seq, max(
    (due.priority - (SELECT priority FROM top)) / :temperature
    - ln(-ln(((random() & 4503599627370495) + 0.5) / 4503599627370496.0)))
FROM due;

-- name: next_due
-- Unix seconds of the next delayed row, and monotonic seconds of the next lease to lapse.
SELECT
    (SELECT min(not_before) FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NOT NULL),
    (SELECT min(lease_until) FROM invocation WHERE ns = :ns AND queue = :queue AND state = 'running'),
    EXISTS (SELECT 1 FROM invocation
     WHERE ns = :ns AND queue = :queue AND state = 'queued' AND not_before IS NULL);

-- name: journal_states
-- As journal_state, of many: :names is a JSON list of a journal and its stem each.
SELECT each.key, (SELECT state FROM invocation WHERE ns = :ns AND id = each.value ->> 1),
    jid, next_seq, attempt_seq, closed
FROM json_each(:names) AS each LEFT JOIN journal ON journal.ns = :ns AND journal.id = each.value ->> 0;

-- name: row_states
-- What a viewer's mark of a row is made from, of many: :names is a JSON list of ids. CROSS: by the list's order.
SELECT invocation.id, state, queue, attempt, fence, losses, worker_id, error, priority,
    not_before, started_at, finished_at
FROM json_each(:names) AS each CROSS JOIN invocation ON ns = :ns AND invocation.id = each.value;

-- name: shown_version
-- What moving_side.CLOSED is compared with, by a plane that was open before.
SELECT user_version FROM pragma_user_version;

-- name: moved_where
SELECT said FROM moving;

-- name: spare
-- Leases that nobody could extend get a little longer, of all namespaces, but those that end at one of :marks;
-- no change of state. What is spared ends at one moment, and is known by it.
UPDATE invocation SET lease_until = :until, lease_boot = :boot
WHERE state = 'running' AND lease_until < :until
    AND NOT EXISTS (SELECT 1 FROM json_each(:marks) AS mark WHERE abs(mark.value - lease_until) < 0.00001)
RETURNING lease_until;

-- name: spare_again
UPDATE invocation SET lease_until = :until, lease_boot = :boot
WHERE state = 'running' AND abs(lease_until - :spared_at) < 0.00001
RETURNING lease_until;
