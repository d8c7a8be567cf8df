-- The tables of Noonday. Partitions are made by store/partitions.py, never in a request.
-- No foreign keys and no triggers on hot tables; lease columns stand in no index and no index
-- predicate, so that claims and heartbeats are HOT updates.

CREATE TABLE tenants (
    id                 integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name               text NOT NULL UNIQUE,
    signing_secrets    bytea[] NOT NULL,              -- sealed; newest first, at most two
    secrets_rotated_at timestamptz NOT NULL,
    max_payload_bytes  integer NOT NULL DEFAULT 1048576,
    created_at         timestamptz NOT NULL
);

CREATE TABLE api_keys (
    id          text PRIMARY KEY,
    tenant_id   integer NOT NULL REFERENCES tenants (id),
    role        text NOT NULL CHECK (role IN ('viewer', 'submitter', 'operator', 'admin')),
    name        text NOT NULL,
    secret_hash bytea NOT NULL,                       -- SHA-256 of 256 random bits
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    revoked_at  timestamptz
);
CREATE INDEX api_keys_tenant ON api_keys (tenant_id, id);

CREATE TABLE audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL,
    tenant_id   integer,
    actor       text NOT NULL,                        -- an API key's id, or who else acted
    action      text NOT NULL,
    object_type text NOT NULL,
    object_id   text NOT NULL,
    before      json,
    after       json,
    request_id  text
) PARTITION BY RANGE (at);
CREATE INDEX audit_log_at ON audit_log (at, id);

-- A job as a tenant asked for it. A run never updates it.
CREATE TABLE jobs (
    id               uuid PRIMARY KEY,                -- UUIDv7: inserts are sequential
    tenant_id        integer NOT NULL,
    created_at       timestamptz NOT NULL,
    created_by       text NOT NULL,
    version          integer NOT NULL DEFAULT 1,
    schedule_version integer NOT NULL DEFAULT 1,
    payload_version  integer NOT NULL DEFAULT 1,
    state            text NOT NULL DEFAULT 'ACTIVE'
                     CHECK (state IN ('ACTIVE', 'PAUSED', 'SUSPENDED', 'CANCELLED')),
    state_reason     text,
    state_changed_at timestamptz,
    schedule_type    text NOT NULL CHECK (schedule_type IN ('once', 'cron', 'interval')),
    first_at         timestamptz NOT NULL,            -- nominal time of the first occurrence
    name             text NOT NULL,
    lane             text NOT NULL,
    priority         smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    lease_sec        integer NOT NULL,
    target_host      text NOT NULL,
    labels           json NOT NULL,
    spec             json NOT NULL,                   -- schedule, target, retry policy
    secret_headers   bytea,                           -- credential headers, sealed
    payload          bytea,                           -- up to the inline limit, else payload_ref
    payload_ref      text,
    payload_bytes    integer NOT NULL,
    content_type     text NOT NULL,
    traceparent      text,
    CONSTRAINT jobs_payload CHECK ((payload IS NULL) <> (payload_ref IS NULL))
);
CREATE INDEX jobs_tenant ON jobs (tenant_id, id);

-- A payload that a change of its job replaced, kept while a run or dead letter refers to it.
CREATE TABLE payload_versions (
    job_id        uuid NOT NULL,
    version       integer NOT NULL,
    payload       bytea,
    payload_ref   text,
    payload_bytes integer NOT NULL,
    content_type  text NOT NULL,
    PRIMARY KEY (job_id, version)
);

-- The armed next occurrence of a job. The due index is made late, by partition.
CREATE TABLE timers (
    job_id           uuid NOT NULL,
    occurrence_at    timestamptz NOT NULL,
    due_at           timestamptz NOT NULL,
    schedule_version integer NOT NULL,
    seq              integer NOT NULL,
    shard            smallint NOT NULL
) PARTITION BY RANGE (due_at);
CREATE INDEX timers_job ON timers (job_id);

-- The ledger: one row per nominal time, one outcome, updated once (HOT).
CREATE TABLE occurrences (
    job_id          uuid NOT NULL,
    occurrence_at   timestamptz NOT NULL,
    kind            smallint NOT NULL,                -- 0 schedule, 1 trigger, 2 backfill
    tenant_id       integer NOT NULL,
    due_at          timestamptz NOT NULL,
    materialized_at timestamptz NOT NULL,
    shard_epoch     bigint,                           -- the scheduler's fence; null: by the API
    outcome         text CHECK (outcome IN ('COMPLETE', 'FAILED', 'CANCELLED', 'SKIPPED', 'MISSED')),
    reason          text,
    blocking_run    text,                             -- the run an occurrence was skipped for
    ended_at        timestamptz,
    attempts        integer,
    PRIMARY KEY (job_id, occurrence_at, kind),
    CONSTRAINT occurrences_outcome CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT occurrences_reason
        CHECK (outcome NOT IN ('SKIPPED', 'MISSED', 'CANCELLED') OR reason IS NOT NULL)
) PARTITION BY RANGE (occurrence_at);

-- Only rises: nothing older is ever materialized, or pruning would make it fire again.
CREATE TABLE ledger_start (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    starts_at timestamptz NOT NULL
);

-- Unfinished runs only. READY, RUNNING and RETRYING; gone when the run ends.
-- The fillfactor leaves room for two more versions of each row, a third longer under a lease: then
-- a claim and a heartbeat of all rows of a page are HOT (at 50, every fifth claim was not).
CREATE TABLE runs (
    job_id          uuid NOT NULL,
    occurrence_at   timestamptz NOT NULL,
    kind            smallint NOT NULL,
    tenant_id       integer NOT NULL,
    payload_version integer NOT NULL,
    lane            text NOT NULL,
    priority        smallint NOT NULL,
    rank            timestamptz NOT NULL,
    claimable       boolean NOT NULL,
    state           text NOT NULL CHECK (state IN ('READY', 'RUNNING', 'RETRYING')),
    hold            text CHECK (hold IN ('cap', 'breaker', 'rate', 'overlap', 'lane', 'after', 'shed')),
    hold_key        text,
    due_at          timestamptz NOT NULL,
    ready_at        timestamptz NOT NULL,
    retry_at        timestamptz,
    attempt         integer NOT NULL DEFAULT 0,       -- the last number given, never reused
    failures        integer NOT NULL DEFAULT 0,       -- FAILED and LEASE_EXPIRED: the budget
    interruptions   integer NOT NULL DEFAULT 0,       -- by us; bounded by itself
    lease_version   integer NOT NULL DEFAULT 0,       -- the fencing token
    worker_id       uuid,
    leased_at       timestamptz,
    locked_until    timestamptz,
    cancel_reason   text,                             -- its job was cancelled while it ran
    PRIMARY KEY (job_id, occurrence_at, kind),
    CONSTRAINT runs_lease CHECK (
        (state = 'RUNNING') = (worker_id IS NOT NULL)
        AND (state = 'RUNNING') = (leased_at IS NOT NULL)
        AND (state = 'RUNNING') = (locked_until IS NOT NULL)),
    CONSTRAINT runs_retry CHECK ((state = 'RETRYING') = (retry_at IS NOT NULL)),
    CONSTRAINT runs_hold CHECK (hold IS NULL OR (state = 'READY' AND hold_key IS NOT NULL)),
    CONSTRAINT runs_claimable CHECK (
        claimable = (state = 'RUNNING' OR (state = 'READY' AND hold IS NULL)))
) WITH (fillfactor = 38, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 50000);
CREATE INDEX runs_claim ON runs (lane, priority, rank) WHERE claimable;
CREATE INDEX runs_retry_due ON runs (retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX runs_hold_key ON runs (hold_key, priority, ready_at) WHERE hold_key IS NOT NULL;

-- One row per attempt that ended; append-only.
CREATE TABLE executions (
    job_id        uuid NOT NULL,
    occurrence_at timestamptz NOT NULL,
    kind          smallint NOT NULL,
    tenant_id     integer NOT NULL,
    attempt       integer NOT NULL,
    lease_version integer NOT NULL,
    worker_id     uuid NOT NULL,
    status        text NOT NULL CHECK (
                  status IN ('SUCCESS', 'FAILED', 'LEASE_EXPIRED', 'INTERRUPTED', 'CANCELLED')),
    leased_at     timestamptz NOT NULL,
    locked_until  timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL,
    retry_at      timestamptz,
    http_status   smallint,
    error         text,
    unknown       boolean NOT NULL                    -- the receiver may have done the work
) PARTITION BY RANGE (finished_at);
CREATE INDEX executions_job ON executions (job_id, finished_at);

CREATE TABLE dead_letters (
    job_id          uuid NOT NULL,
    occurrence_at   timestamptz NOT NULL,
    kind            smallint NOT NULL,
    tenant_id       integer NOT NULL,
    reason          text NOT NULL,
    http_status     smallint,
    error           text,
    attempts        integer NOT NULL,
    lease_version   integer NOT NULL,                 -- goes on when the run is reopened
    payload_version integer NOT NULL,
    target_host     text NOT NULL,
    dead_at         timestamptz NOT NULL,
    replayed_at     timestamptz,
    PRIMARY KEY (job_id, occurrence_at, kind)
);
CREATE INDEX dead_letters_tenant ON dead_letters (tenant_id, dead_at, job_id);

CREATE TABLE shards (
    shard        smallint PRIMARY KEY,
    epoch        bigint NOT NULL DEFAULT 0,
    owner_id     uuid,
    leased_until timestamptz
) WITH (fillfactor = 50);
INSERT INTO shards (shard) SELECT generate_series(0, 63);

-- Every process of the service that is alive: API, scheduler, worker.
CREATE TABLE workers (
    id         uuid PRIMARY KEY,                      -- random at each start
    role       text NOT NULL,
    name       text NOT NULL,
    host       text NOT NULL,
    pid        integer NOT NULL,
    slots      integer NOT NULL DEFAULT 0,
    in_flight  integer NOT NULL DEFAULT 0,
    granted    json,                                  -- highest rank claimed by lane and priority
    stopping   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE idempotency_keys (
    key         text NOT NULL,
    tenant_id   integer NOT NULL,
    route       text NOT NULL,
    fingerprint bytea NOT NULL,
    status      smallint NOT NULL,
    location    text,
    body        bytea NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (key, tenant_id, route)
) PARTITION BY HASH (key);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
DO $$
BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE idempotency_keys_%s PARTITION OF idempotency_keys '
            'FOR VALUES WITH (MODULUS 16, REMAINDER %s)', n, n);
    END LOOP;
END $$;
