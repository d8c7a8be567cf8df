-- The calendar: jobs that end, wait for themselves, are paused, changed, caught up on and foreseen.

ALTER TABLE jobs DROP CONSTRAINT jobs_state_check;
ALTER TABLE jobs ADD CONSTRAINT jobs_state_check   -- what is there is among fewer of them
    CHECK (state IN ('ACTIVE', 'PAUSED', 'SUSPENDED', 'CANCELLED', 'ENDED')) NOT VALID;

ALTER TABLE timers ADD COLUMN catch_up_to timestamptz;  -- the last occurrence of an outage to run

ALTER TABLE runs ADD COLUMN overlap_key text;      -- of a job whose runs wait for each other

-- A backlog of a million runs is vacuumed when a fifth of it has changed, not after every 20,000: each
-- time reads all of its indexes.
ALTER TABLE runs SET (autovacuum_vacuum_scale_factor = 0.2);

ALTER TABLE workers ADD COLUMN catch_up json;      -- how a scheduler catches up on what is late

-- Recurring jobs, for those that look at all of them. (One-off jobs are many, and have no part in it.)
CREATE INDEX jobs_recurring ON jobs (id) WHERE schedule_type <> 'once' AND state = 'ACTIVE';

-- What a recurring schedule is given that names no jitter: by its lane; where that is null, by its tenant.
ALTER TABLE tenants
    ADD COLUMN jitter_sec integer NOT NULL DEFAULT 0 CHECK (jitter_sec BETWEEN 0 AND 86400);
ALTER TABLE lanes ADD COLUMN jitter_sec integer CHECK (jitter_sec BETWEEN 0 AND 86400);

-- The forecast, as the scheduler that leads has made it last. Minutes in which nothing is due have no row.
CREATE TABLE forecasts (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    computed_at timestamptz NOT NULL,                     -- when it was begun
    took_sec    double precision NOT NULL,
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz NOT NULL,
    jobs        bigint NOT NULL,                          -- recurring ones that were counted
    estimated   boolean NOT NULL,                         -- timers were too many to look at each
    hot_from    double precision NOT NULL                 -- occurrences of a hot minute
) WITH (fillfactor = 50);
CREATE TABLE forecast_minutes (
    at          timestamptz PRIMARY KEY,
    occurrences double precision NOT NULL,
    hot         boolean NOT NULL
);
-- What a minute consists of, at most 50 rows. Small ones of a tenant go together with an empty lane and
-- host, small tenants as tenant 0.
CREATE TABLE forecast_parts (
    at          timestamptz NOT NULL,
    tenant_id   integer NOT NULL,
    lane        text NOT NULL,
    target_host text NOT NULL,
    occurrences double precision NOT NULL,
    unspread    double precision NOT NULL,                -- of these, of recurring jobs without jitter
    PRIMARY KEY (at, tenant_id, lane, target_host)
);

-- A job that is out of service, paused or suspended: what its timer stood at, so that what it leaves
-- out is known when it goes on. In a table of its own, since few jobs are.
CREATE TABLE pauses (
    job_id        uuid PRIMARY KEY,
    occurrence_at timestamptz NOT NULL,                   -- the first nominal time that it leaves out
    seq           integer NOT NULL,                       -- as in timers
    awaited       boolean NOT NULL,                       -- as in timers
    until_at      timestamptz,                            -- when it goes on by itself; null: it does not
    paused_by     text NOT NULL                           -- the API key, or the part that suspended it
);
CREATE INDEX pauses_until ON pauses (until_at) WHERE until_at IS NOT NULL;

-- The ledger: nominal times one after the other that came to the same, as one line.
CREATE TABLE occurrence_ranges (
    job_id           uuid NOT NULL,
    from_at          timestamptz NOT NULL,                -- the first nominal time in it
    to_at            timestamptz NOT NULL,                -- the last
    tenant_id        integer NOT NULL,
    count            integer CHECK (count > 0),           -- null: too many to be counted
    outcome          text NOT NULL CHECK (outcome IN ('SKIPPED', 'MISSED')),
    reason           text NOT NULL,
    schedule_version integer NOT NULL,
    written_at       timestamptz NOT NULL,
    caused_by        text NOT NULL,                       -- the API key, or the part of the service
    PRIMARY KEY (job_id, to_at),
    CONSTRAINT occurrence_ranges_order CHECK (from_at <= to_at)
);
CREATE INDEX occurrence_ranges_end ON occurrence_ranges (to_at);

-- Under which version of its job's schedule an occurrence came about; null: the first.
ALTER TABLE occurrences ADD COLUMN schedule_version integer;

-- Schedules that a job had before, each up to the version that it was in force with.
CREATE TABLE schedule_versions (
    job_id   uuid NOT NULL,
    version  integer NOT NULL,                            -- the last with which it was in force
    schedule json NOT NULL,
    from_at  timestamptz NOT NULL,
    until_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, version)
);
CREATE INDEX schedule_versions_until ON schedule_versions (until_at);

-- Backfills are operations. No index holds what changes while one goes on, so that its steps are HOT.
ALTER TABLE operations DROP CONSTRAINT operations_kind_check;
ALTER TABLE operations ADD CONSTRAINT operations_kind_check
    CHECK (kind IN ('cancel_jobs', 'backfill')) NOT VALID;
ALTER TABLE operations
    ADD COLUMN total       integer,                    -- of a backfill: nominal times in its range
    ADD COLUMN position_at timestamptz,                -- of a backfill: the last that was looked at
    ADD COLUMN next_at     timestamptz;                -- of a backfill: nothing is opened before
