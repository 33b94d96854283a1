-- What `lakeshore db` asks of a SQLite file, of any version.

-- name: who_works
SELECT ns, worker_id, queue, host, version, seen_at, :now - seen_at FROM worker
WHERE seen_at > :cut ORDER BY ns, queue, worker_id;
