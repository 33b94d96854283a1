-- What a session is told and asked, beside the verbs.

-- name: marked
-- NULL where a pooler stands between that did not hand on what a session was to be started with.
SELECT current_setting('lakeshore.session', true);

-- name: stay
-- An idle session ends by no time limit of the role: the pool decides. (Before 14 there is no such limit, and
-- a start with it would be refused.)
SELECT set_config('idle_session_timeout', '0', false);

-- name: settle
-- Behind a pooler the session is others' too, so each transaction brings along what it relies on.
SET LOCAL synchronous_commit = on;
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = '30s';
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL search_path = pg_catalog;
SET LOCAL default_tablespace = '';
SET LOCAL extra_float_digits = 1;
SET LOCAL array_nulls = on;
SET LOCAL standard_conforming_strings = on;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL jit = off;

-- name: end_lost
-- End the session of a transaction whose client has lost it, if the server still waits for that client: it
-- would keep its locks. The number names the transaction, whoever has the session's process by now.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_xid = :xid::text::xid8::xid AND pid <> pg_backend_pid();
