-- What the doctor and /metrics look at in a PostgreSQL database. Nothing here writes, takes a parameter or needs
-- an extension; catalogs and statistics are read, and of our own tables only what one index tells at once. What
-- only a member of pg_monitor may see comes as NULL to others. No text of a query or a row is looked at.

-- name: begin
-- A look waits for no lock that another holds, and has an end.
BEGIN READ ONLY; SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = '3s';

-- name: rollback
ROLLBACK;

-- name: server
SELECT
    current_setting('server_version_num')::bigint AS number,
    current_setting('server_version') AS version,
    pg_is_in_recovery() AS standby,
    current_user::text AS role,
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all,
    extract(epoch FROM clock_timestamp())::float8 AS clock,
    current_setting('autovacuum')::boolean AS autovacuum,
    current_setting('track_counts')::boolean AS track_counts,
    current_setting('fsync')::boolean AS fsync,
    current_setting('full_page_writes')::boolean AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS synchronous_standby_names,
    current_setting('max_connections')::bigint AS max_connections,
    current_setting('superuser_reserved_connections')::bigint AS reserved,
    pg_notification_queue_usage()::float8 AS notify_queue,
    pg_database_size(current_database())::bigint AS bytes;

-- name: wraparound
-- Both kinds of age, against where the server stops taking writes: at 2^31 less three million.
SELECT datname::text AS database, age(datfrozenxid)::bigint AS xids, mxid_age(datminmxid)::bigint AS mxids,
    current_setting('autovacuum_freeze_max_age')::bigint AS vacuumed_at
FROM pg_database WHERE datallowconn ORDER BY greatest(age(datfrozenxid), mxid_age(datminmxid)) DESC LIMIT 1;

-- name: connections
-- Whoever is a client, of any database: all share max_connections. backend_type is hidden from some, and a
-- process of the server's own has no user.
SELECT coalesce(application_name, '') AS application,
    datname = current_database() AND application_name IN ('lakeshore', current_setting('application_name')) AS ours,
    count(*)::bigint AS n
FROM pg_stat_activity
WHERE usesysid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
GROUP BY 1, 2 ORDER BY n DESC, application;

-- name: transactions
-- Open transactions of this database: how many transactions began since (which vacuum cannot clean up after),
-- and for how many seconds. A VACUUM of the server's own (no user) holds nothing.
SELECT pid::bigint AS pid, coalesce(application_name, '') AS application, usename::text AS role, state,
    coalesce(greatest(age(backend_xid), age(backend_xmin)), 0)::bigint AS held,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
    extract(epoch FROM clock_timestamp() - state_change)::float8 AS quiet_seconds
FROM pg_stat_activity
WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
    AND (xact_start IS NOT NULL OR backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
ORDER BY seconds DESC NULLS LAST, held DESC LIMIT 100;

-- name: prepared
SELECT gid, owner::text AS role, age(transaction)::bigint AS held,
    extract(epoch FROM clock_timestamp() - prepared)::float8 AS seconds
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 100;

-- name: slots
-- A slot keeps WAL, and rows or the catalog's rows from vacuum, until whom it is for comes and reads on.
SELECT slot_name::text AS name, slot_type AS kind, active,
    greatest(age(xmin), age(catalog_xmin), 0)::bigint AS held, xmin IS NOT NULL AS holds_rows,
    coalesce(pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
        restart_lsn), 0)::bigint AS bytes,
    coalesce(wal_status, '') AS wal
FROM pg_replication_slots WHERE NOT temporary ORDER BY bytes DESC, name LIMIT 100;

-- name: replicas
SELECT coalesce(application_name, '') AS name, coalesce(state, '') AS state, coalesce(sync_state, '') AS sync,
    pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
        replay_lsn)::bigint AS bytes,
    extract(epoch FROM replay_lag)::float8 AS seconds,
    coalesce(age(backend_xmin), 0)::bigint AS held
FROM pg_stat_replication ORDER BY bytes DESC NULLS LAST, name LIMIT 100;

-- name: locks
-- Who waits for a lock in this database, and for whom. Since when is hidden from some.
SELECT waits.pid::bigint AS pid, coalesce(activity.application_name, '') AS application,
    extract(epoch FROM clock_timestamp() - activity.query_start)::float8 AS seconds,
    coalesce(class.relname::text, waits.locktype) AS what,
    pg_blocking_pids(waits.pid)::bigint[] AS holders
FROM pg_locks AS waits
JOIN pg_stat_activity AS activity ON activity.pid = waits.pid AND activity.datname = current_database()
LEFT JOIN pg_class AS class ON class.oid = waits.relation
WHERE NOT waits.granted AND waits.locktype <> 'advisory' ORDER BY seconds DESC NULLS LAST LIMIT 20;

-- name: tables
-- Each table with all its partitions: sizes, estimates of rows, when it was vacuumed, and what its rows should
-- need: their mean width by the statistics, 28 bytes of header and pointer, and the free part of fillfactor.
WITH leaf AS (
    SELECT root.relname, root.relkind, class.oid, greatest(class.reltuples, 0) AS reltuples, class.reloptions,
        class.relname AS leaf
    FROM pg_class AS root
    JOIN pg_namespace AS home ON home.oid = root.relnamespace AND home.nspname = 'lakeshore'
    LEFT JOIN LATERAL pg_partition_tree(root.oid) AS tree ON tree.isleaf
    JOIN pg_class AS class ON class.oid = coalesce(tree.relid, root.oid)
    WHERE root.relkind IN ('r', 'p') AND NOT root.relispartition
), width AS (
    SELECT tablename, sum(avg_width * (1 - null_frac)) AS bytes
    FROM pg_stats WHERE schemaname = 'lakeshore' AND NOT inherited GROUP BY tablename
)
SELECT leaf.relname::text AS name,
    count(*) FILTER (WHERE leaf.leaf <> leaf.relname)::bigint AS partitions,
    sum(pg_table_size(leaf.oid))::bigint AS bytes,
    sum(pg_indexes_size(leaf.oid))::bigint AS index_bytes,
    sum(pg_stat_get_live_tuples(leaf.oid))::bigint AS rows,
    sum(pg_stat_get_dead_tuples(leaf.oid))::bigint AS dead,
    extract(epoch FROM max(greatest(
        pg_stat_get_last_vacuum_time(leaf.oid), pg_stat_get_last_autovacuum_time(leaf.oid))))::float8 AS vacuumed_at,
    bool_or(leaf.reloptions @> ARRAY['autovacuum_enabled=false']
        OR leaf.reloptions @> ARRAY['autovacuum_enabled=off']) IS TRUE AS unvacuumed,
    sum(greatest(0, pg_relation_size(leaf.oid) - (28 + width.bytes) * greatest(leaf.reltuples,
        pg_stat_get_live_tuples(leaf.oid)) * 100 / coalesce(substring(
            array_to_string(leaf.reloptions, ',') FROM 'fillfactor=([0-9]+)')::float8, 100)))::bigint AS spare_bytes
FROM leaf LEFT JOIN width ON width.tablename = leaf.leaf
GROUP BY leaf.relname ORDER BY leaf.relname;

-- name: indexes
-- Each index that stands for itself or is a part of another, and what its entries should need: 8 bytes of
-- header, 4 of pointer, the mean width of its columns, pages filled to 90 %.
SELECT index.relname::text AS name, tab.relname::text AS of_table, index.relispartition AS is_part,
    coalesce((SELECT root.relname FROM pg_class AS root WHERE root.oid = pg_partition_root(tab.oid)),
        tab.relname)::text AS root,
    about.indisvalid AND about.indisready AS valid,
    about.indisprimary OR about.indisunique AS is_unique,
    pg_relation_size(index.oid)::bigint AS bytes,
    greatest(0, pg_relation_size(index.oid) - 16384 - greatest(index.reltuples, 0) * (12 + (
        SELECT sum(stats.avg_width + 4) FROM pg_attribute AS col
        JOIN pg_stats AS stats ON stats.schemaname = 'lakeshore' AND stats.tablename = tab.relname
            AND stats.attname = col.attname AND NOT stats.inherited
        WHERE col.attrelid = tab.oid AND col.attnum = ANY (about.indkey::int2[]))) / 0.9)::bigint AS spare_bytes,
    EXISTS (SELECT FROM pg_stat_progress_create_index AS made WHERE made.index_relid = index.oid) AS being_made
FROM pg_index AS about
JOIN pg_class AS index ON index.oid = about.indexrelid
JOIN pg_class AS tab ON tab.oid = about.indrelid
JOIN pg_namespace AS home ON home.oid = tab.relnamespace AND home.nspname = 'lakeshore'
ORDER BY bytes DESC, name;

-- name: oldest_finished
-- The oldest row that has ended: from one (ns, queue, state) to the next by the index `ended`, whose head of
-- each is its oldest; at most 2000 of them, so that a store of very many queues costs no more.
WITH RECURSIVE each (ns, queue, state, finished_at, n) AS (
    (SELECT ns, queue, state, finished_at, 1 FROM lakeshore.invocation
     WHERE state IN ('succeeded', 'failed', 'cancelled')
     ORDER BY ns, queue, state, finished_at LIMIT 1)
    UNION ALL
    SELECT next.ns, next.queue, next.state, next.finished_at, each.n + 1
    FROM each CROSS JOIN LATERAL (
        SELECT ns, queue, state, finished_at FROM lakeshore.invocation
        WHERE state IN ('succeeded', 'failed', 'cancelled')
            AND (ns, queue, state) > (each.ns, each.queue, each.state)
        ORDER BY ns, queue, state, finished_at LIMIT 1) AS next
    WHERE each.n < 2000
)
SELECT min(finished_at) AS finished_at FROM each;
