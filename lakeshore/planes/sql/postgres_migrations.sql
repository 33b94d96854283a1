-- The steps of PostgreSQL's schema, one a version, each named to_N_since_M_what_it_does; see planes/migrations.py.
-- Servers that know no step after M run beside it: it adds, and locks no table for long. Who was granted what a
-- table does is granted what stands in for it. A released step is not changed.

-- name: to_2_since_1_steps_are_noted
-- What schema_version holds is from now on the oldest version whose lakeshore may use the tables.
CREATE TABLE lakeshore.migration (
    version bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS who
        FROM pg_class c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'schema_version'::regclass AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT SELECT ON lakeshore.migration TO %s', given.who);
    END LOOP;
END $$;

-- name: to_3_since_1_frames_are_bounded
-- Journals of days that will be counted (step 5) have numbers beyond; those of the release before stay below.
ALTER TABLE frame ADD CONSTRAINT frame_bound CHECK (jid >= 0 AND jid < 1099511627776) NOT VALID;

-- name: to_4_since_1_the_bound_is_checked
-- Reads every frame, and holds up neither readers nor writers meanwhile.
ALTER TABLE frame VALIDATE CONSTRAINT frame_bound;

-- name: to_5_since_1_frames_lie_in_days
-- Frames lie in partitions by the day on which their journal began, so that pruning drops days whole: a journal's
-- number is day << 40 plus the next of its sequence. Topics, which live long, have negative numbers. What there
-- was becomes the first partition as it is; servers of the release before go on there.
ALTER TABLE frame RENAME TO frame_0;
ALTER INDEX lakeshore.frame_pkey RENAME TO frame_0_pkey;
CREATE TABLE frame (
    jid bigint NOT NULL,
    seq bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (jid, seq)
) PARTITION BY RANGE (jid);
ALTER TABLE frame ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE lakeshore.frame_topics PARTITION OF frame FOR VALUES FROM (MINVALUE) TO (0)
    WITH (autovacuum_vacuum_scale_factor = 0.05);
-- by_rows: what is pruned there is deleted a row at a time, since others of that day stay for long.
CREATE TABLE lakeshore.frame_day (
    first bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    by_rows boolean NOT NULL DEFAULT false
);
INSERT INTO lakeshore.frame_day (first, name, by_rows) VALUES (0, 'frame_0', true);
DO $$
DECLARE
    today bigint := floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint << 40;
    given record;
BEGIN
    EXECUTE format('ALTER TABLE lakeshore.frame ATTACH PARTITION lakeshore.frame_0 FOR VALUES FROM (0) TO (%s)', today);
    ALTER TABLE lakeshore.frame_0 DROP CONSTRAINT frame_bound;
    FOR given IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS who,
            a.privilege_type AS what
        FROM pg_class c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'lakeshore.frame_0'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s ON lakeshore.frame TO %s', given.what, given.who);
        IF given.what = 'SELECT' THEN
            EXECUTE format('GRANT SELECT ON lakeshore.frame_day TO %s', given.who);
        ELSIF given.what = 'INSERT' THEN
            EXECUTE format('GRANT USAGE ON SEQUENCE lakeshore.journal_jid_seq TO %s', given.who);
        END IF;
    END LOOP;
END $$;
-- Makes the partitions of today and the days ahead; returns the first number of the day to use, which is one
-- before when another session is about it, or when it fails: journals need it only to be pruned by days.
CREATE FUNCTION lakeshore.begin_days(ahead integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    today bigint := floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint;
    lower bigint;
    called text;
BEGIN
    IF pg_try_advisory_xact_lock(7809632846571366) THEN
        FOR day IN today .. today + least(ahead, 30) LOOP
            lower := day::bigint << 40;
            CONTINUE WHEN EXISTS (SELECT FROM lakeshore.frame_day WHERE first = lower);
            called := 'frame_' || to_char(to_timestamp(day * 86400.0) AT TIME ZONE 'UTC', 'YYYYMMDD');
            EXECUTE format('CREATE TABLE lakeshore.%I (LIKE lakeshore.frame INCLUDING ALL)', called);
            EXECUTE format('ALTER TABLE lakeshore.frame ATTACH PARTITION lakeshore.%I FOR VALUES FROM (%s) TO (%s)',
                called, lower, lower + 1099511627776);
            INSERT INTO lakeshore.frame_day (first, name) VALUES (lower, called);
        END LOOP;
    END IF;
    RETURN (SELECT max(first) FROM lakeshore.frame_day WHERE first <= today << 40);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'lakeshore.begin_days: %', SQLERRM;
    RETURN (SELECT max(first) FROM lakeshore.frame_day WHERE first <= today << 40);
END $$;
-- Drops one day of which no journal is left, nor can come; returns its first number, NULL when there is none. It
-- waits for an autovacuum to give way (which takes a second), and holds up appends for a fifth of a second at most.
CREATE FUNCTION lakeshore.drop_day() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1500ms' AS $$
DECLARE
    begun bigint := floor((extract(epoch FROM clock_timestamp()) - 3600) / 86400)::bigint << 40;
    day record;
    held_up boolean := false;
BEGIN
    FOR day IN
        SELECT d.first, d.first + 1099511627776 AS past, d.name FROM lakeshore.frame_day d
        WHERE d.first > 0
            AND EXISTS (SELECT FROM lakeshore.frame_day n WHERE n.first > d.first AND n.first <= begun)
        ORDER BY d.first
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM lakeshore.journal WHERE jid >= day.first AND jid < day.past);
        BEGIN
            EXECUTE format('LOCK TABLE lakeshore.%I IN SHARE UPDATE EXCLUSIVE MODE', day.name);
            PERFORM set_config('lock_timeout', '200ms', true);
            held_up := true;
            LOCK TABLE ONLY lakeshore.frame IN ACCESS EXCLUSIVE MODE;
            IF NOT EXISTS (SELECT FROM lakeshore.journal WHERE jid >= day.first AND jid < day.past) THEN
                EXECUTE format('DROP TABLE lakeshore.%I', day.name);
                DELETE FROM lakeshore.frame_day WHERE first = day.first;
                RETURN day.first;
            END IF;
            held_up := false;
        EXCEPTION WHEN lock_not_available OR undefined_table THEN
            EXIT WHEN held_up;  -- another day would wait for the same
        END;
        PERFORM set_config('lock_timeout', '1500ms', true);
    END LOOP;
    RETURN NULL;
END $$;
-- Whether what is pruned of a journal is deleted by rows: where days are not dropped, which is so where one
-- partition holds more than two of them.
CREATE FUNCTION lakeshore.goes_by_rows(number bigint) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT number < 1099511627776 OR coalesce((
        SELECT d.by_rows OR least(
            (SELECT min(n.first) FROM lakeshore.frame_day n WHERE n.first > d.first) >> 40,
            floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint + 1) - (d.first >> 40) > 2
        FROM lakeshore.frame_day d WHERE d.first <= number ORDER BY d.first DESC LIMIT 1), true)
$$;
-- Notes that of a day others stay for long; the caller then deletes what is left of those that went.
CREATE FUNCTION lakeshore.go_by_rows(day bigint) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    UPDATE lakeshore.frame_day SET by_rows = true WHERE first = day
$$;
SELECT lakeshore.begin_days(7);
