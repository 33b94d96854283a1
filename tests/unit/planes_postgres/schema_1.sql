-- The tables of the first release, as a database of its users holds them.
CREATE SCHEMA lakeshore;
CREATE TABLE lakeshore.invocation (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL CHECK (id ~ '^[A-Za-z0-9_-]{1,128}$'),
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    priority float8 NOT NULL CHECK (priority > '-Infinity' AND priority < 'Infinity'),
    key text COLLATE "C",
    parent text COLLATE "C",
    attempt bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    losses bigint NOT NULL DEFAULT 0,
    worker_id text COLLATE "C",
    after text COLLATE "C",
    submitted_at float8 NOT NULL,
    not_before float8,
    lease_until float8,
    lease_boot text COLLATE "C",
    started_at float8,
    finished_at float8,
    error text COLLATE "C",
    traceback text COLLATE "C",
    result bytea,
    envelope bytea,
    UNIQUE (ns, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX ready ON lakeshore.invocation (ns, queue, priority DESC, seq)
    WHERE state = 'queued' AND not_before IS NULL;
CREATE INDEX delayed ON lakeshore.invocation (ns, queue, not_before) WHERE state = 'queued' AND not_before IS NOT NULL;
CREATE INDEX leased ON lakeshore.invocation (ns, queue, lease_until, seq) WHERE state = 'running';
CREATE INDEX ended ON lakeshore.invocation (ns, queue, state, finished_at)
    WHERE state IN ('succeeded', 'failed', 'cancelled');
CREATE UNIQUE INDEX keyed ON lakeshore.invocation (ns, queue, key) WHERE key IS NOT NULL;
CREATE TABLE lakeshore.payload (
    seq bigint NOT NULL,
    part text COLLATE "C" NOT NULL CHECK (part IN ('envelope', 'result')),
    body bytea NOT NULL,
    PRIMARY KEY (seq, part)
);
ALTER TABLE lakeshore.payload ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE lakeshore.journal (
    jid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    stem text COLLATE "C" NOT NULL,
    next_seq bigint NOT NULL DEFAULT 0,
    trimmed_to bigint NOT NULL DEFAULT 0,
    attempt_seq bigint NOT NULL DEFAULT 0,
    closed bigint,
    posted_at float8 NOT NULL,
    UNIQUE (ns, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE TABLE lakeshore.frame (
    jid bigint NOT NULL,
    seq bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (jid, seq)
);
ALTER TABLE lakeshore.frame ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE lakeshore.worker (
    ns text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    host text COLLATE "C" NOT NULL,
    pid bigint NOT NULL,
    version text COLLATE "C" NOT NULL,
    seen_at float8 NOT NULL,
    PRIMARY KEY (ns, worker_id, queue)
);
CREATE TABLE lakeshore.schema_version (version bigint NOT NULL);
CREATE UNLOGGED TABLE lakeshore.span (one boolean PRIMARY KEY DEFAULT true CHECK (one), id text NOT NULL);
CREATE FUNCTION lakeshore.exponent(priority float8, top float8, temperature float8) RETURNS float8
IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
DECLARE
    apart float8;
BEGIN
    IF priority = top THEN
        RETURN 0;
    ELSIF top > 4e307 OR priority < -4e307 THEN
        apart := CASE WHEN abs(priority) < 1 THEN 0 ELSE priority / 2 END
            - CASE WHEN abs(top) < 1 THEN 0 ELSE top / 2 END;
        IF temperature < 3e304 AND apart < -5000 * least(temperature, 3e304) THEN
            RETURN -10000;
        END IF;
        RETURN apart / temperature * 2;
    END IF;
    apart := priority - top;
    IF temperature < 1e304 AND apart < -10000 * least(temperature, 1e304) THEN
        RETURN -10000;
    ELSIF temperature > 1e-300 AND apart > -1e-15 * greatest(temperature, 1e-300) THEN
        RETURN 0;
    END IF;
    RETURN apart / temperature;
END $$;
INSERT INTO lakeshore.schema_version VALUES (1);
