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
