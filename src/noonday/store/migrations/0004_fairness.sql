-- Fairness: lanes with settings, weights and caps, rates, and runs that wait for a slot of a cap.

-- A stream of runs with its own limits. Priorities of a lane lie `ageing_sec` apart.
CREATE TABLE lanes (
    name          text PRIMARY KEY,
    weight        double precision NOT NULL DEFAULT 1 CHECK (weight > 0),  -- among lanes that share slots
    max_running   integer CHECK (max_running >= 0),       -- null: no cap
    ageing_sec    double precision NOT NULL DEFAULT 6 CHECK (ageing_sec > 0),
    objective_sec double precision CHECK (objective_sec > 0),  -- null: as the settings say
    sheddable     boolean NOT NULL DEFAULT false,         -- waits while others miss their objective
    paused_at     timestamptz,
    paused_by     text,
    pause_reason  text,
    shed_at       timestamptz,
    shed_reason   text,
    version       integer NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT lanes_paused CHECK ((paused_at IS NULL) = (pause_reason IS NULL)),
    CONSTRAINT lanes_shed CHECK ((shed_at IS NULL) = (shed_reason IS NULL))
) WITH (fillfactor = 50);
INSERT INTO lanes (name, weight, sheddable)
VALUES ('critical', 8, false), ('default', 4, false), ('batch', 1, true), ('long', 1, false);

-- The ranks of a capped lane between which all that is RUNNING lies, by priority: its slots in use
-- are counted there. (`band` tells ranks of the front, which are instants, from those of the queue.)
CREATE TABLE lane_spans (
    lane     text NOT NULL,
    priority smallint NOT NULL,
    band     smallint NOT NULL,
    low      timestamptz NOT NULL,
    high     timestamptz NOT NULL,
    PRIMARY KEY (lane, priority, band)
) WITH (fillfactor = 50);

-- How much stands in a lane, as the scheduler that leads has counted last.
CREATE TABLE lane_gauges (
    lane           text PRIMARY KEY,
    ready          bigint NOT NULL,
    oldest_age_sec double precision NOT NULL,
    running        bigint NOT NULL,
    objective_sec  double precision NOT NULL,             -- in force, be it the lane's or the settings'
    counted_at     timestamptz NOT NULL
) WITH (fillfactor = 50);


ALTER TABLE tenants
    ADD COLUMN weight             double precision NOT NULL DEFAULT 1 CHECK (weight > 0),
    ADD COLUMN max_running        integer CHECK (max_running >= 0),         -- null: no cap
    ADD COLUMN deliveries_per_sec double precision CHECK (deliveries_per_sec > 0);

-- What a tenant's target host or concurrency key is limited to. (A key without a row: one at a time.)
CREATE TABLE limits (
    key         text PRIMARY KEY,                         -- `host:<tenant>:<host>`, `key:<tenant>:<key>`
    tenant_id   integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('host', 'key')),
    name        text NOT NULL,                            -- the host, or the concurrency key
    max_running integer CHECK (max_running >= 0),         -- null: no cap
    rate_per_sec double precision                         -- null: no limit
                CHECK (rate_per_sec IS NULL OR (rate_per_sec > 0 AND kind = 'host')),
    changed_at  timestamptz NOT NULL
);
CREATE INDEX limits_tenant ON limits (tenant_id, kind, name);

-- Rates are kept by the generic cell rate algorithm: one instant each, moved on by what is used.
CREATE TABLE rates (
    key       text PRIMARY KEY,                           -- `host:…` as in limits, `tenant:<id>`, …
    next_at   timestamptz NOT NULL,                       -- when the next one conforms
    slowed    double precision NOT NULL DEFAULT 1 CHECK (slowed > 0 AND slowed <= 1),
    slowed_at timestamptz,                                -- when `slowed` was changed last
    let_go_at timestamptz                                 -- up to when runs on hold for it were let go
) WITH (fillfactor = 50);
-- What has a rate: each worker reads these every second.
CREATE INDEX limits_rates ON limits (key) WHERE rate_per_sec IS NOT NULL;
CREATE INDEX tenants_rates ON tenants (id) WHERE deliveries_per_sec IS NOT NULL;

ALTER TABLE jobs ADD COLUMN concurrency_key text;

-- What a run counts against, null where nothing limits it. A slot of a tenant or host is used by what
-- is claimable, one of a concurrency key from admission to the end of the run, whatever it waits for.
ALTER TABLE runs
    ADD COLUMN tenant_cap text,                           -- `tenant:<id>`
    ADD COLUMN host_cap   text,                           -- `host:<tenant>:<host>`
    ADD COLUMN key_cap    text,                           -- `key:<tenant>:<key>`
    ADD COLUMN key_slot   boolean NOT NULL DEFAULT false;
CREATE INDEX runs_tenant_cap ON runs (tenant_cap) WHERE tenant_cap IS NOT NULL AND claimable;
CREATE INDEX runs_host_cap ON runs (host_cap) WHERE host_cap IS NOT NULL AND claimable;
CREATE INDEX runs_key_cap ON runs (key_cap) WHERE key_slot;

-- Dependencies: one-off jobs that wait until others have ended. What waits has neither timer nor run.
ALTER TABLE jobs ADD COLUMN after json;                   -- parents and what follows from them

-- A parent that has not ended, and a child that waits for it. Always from the older job to the newer.
CREATE TABLE dependencies (
    parent_id uuid NOT NULL,
    child_id  uuid NOT NULL,
    PRIMARY KEY (parent_id, child_id)
);
CREATE INDEX dependencies_child ON dependencies (child_id);

-- A child that waits: what is armed for it once none of its parents is open.
CREATE TABLE dependents (
    job_id         uuid PRIMARY KEY,
    tenant_id      integer NOT NULL,
    occurrence_at  timestamptz NOT NULL,
    due_at         timestamptz NOT NULL,
    shard          smallint NOT NULL,
    runs_on        text NOT NULL CHECK (runs_on IN ('success', 'any')),
    cascade_cancel boolean NOT NULL,
    open           integer NOT NULL CHECK (open >= 0),    -- parents that have not ended
    awaited        boolean NOT NULL DEFAULT false         -- it has children itself
) WITH (fillfactor = 70);

-- Parents that have ended, noted in the transaction that ended them: their children are still to be
-- told. An ending goes when no edge of its parent is left.
CREATE TABLE endings (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent_id     uuid NOT NULL,
    occurrence_at timestamptz NOT NULL,
    outcome       text NOT NULL
        CHECK (outcome IN ('COMPLETE', 'FAILED', 'CANCELLED', 'SKIPPED', 'MISSED'))
);
CREATE INDEX endings_parent ON endings (parent_id);

-- Whether children wait for it: set by the first of them wherever the parent stands, and handed on
-- from there, so that what has no children ends without a look at the tables above.
ALTER TABLE timers ADD COLUMN awaited boolean NOT NULL DEFAULT false;
ALTER TABLE runs ADD COLUMN awaited boolean NOT NULL DEFAULT false;
-- Quotas on what a tenant posts; null: none.
ALTER TABLE tenants
    ADD COLUMN creates_per_sec      double precision CHECK (creates_per_sec > 0),
    ADD COLUMN creates_burst        integer CHECK (creates_burst >= 1),       -- null: one second's worth
    ADD COLUMN create_bytes_per_sec integer CHECK (create_bytes_per_sec > 0), -- of payloads
    ADD COLUMN max_pending_jobs     integer CHECK (max_pending_jobs >= 0);

-- Jobs that have not ended, counted for each tenant with a `max_pending_jobs`: as they stood at
-- `counted_at`, and in `pending_counts` what each process has noted since.
CREATE TABLE pending_bases (
    tenant_id  integer PRIMARY KEY,
    watched_at timestamptz NOT NULL,                      -- noted since soon after this
    counted_at timestamptz,                               -- null: not counted yet
    jobs       integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE pending_counts (
    tenant_id  integer NOT NULL,
    process_id uuid NOT NULL,
    since      timestamptz NOT NULL,                      -- the ten seconds that begin then
    delta      integer NOT NULL,                          -- jobs that came less jobs that ended
    ended      integer NOT NULL,                          -- jobs that ended
    PRIMARY KEY (tenant_id, process_id, since)
);

-- How many slots each lane needs, so that workers can be started and stopped: written by the leader
-- when it changes.
CREATE TABLE wanted_slots (
    lane        text PRIMARY KEY,
    slots       integer NOT NULL CHECK (slots >= 0),
    reason      text NOT NULL,
    service_sec double precision NOT NULL CHECK (service_sec > 0),  -- how long a run kept its slot
    changed_at  timestamptz NOT NULL
) WITH (fillfactor = 50);
-- Who queues (domain/fair.py). How a worker's lanes stand, beside its slots there.
ALTER TABLE workers ADD COLUMN lanes json;

-- What each process has charged to tenants that queue, told to the others at most once a second.
CREATE TABLE charges (
    process    uuid NOT NULL,                             -- as in workers
    lane       text NOT NULL,
    charged    json NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (process, lane)
) WITH (fillfactor = 50);

-- How long runs take, by whose they are and whom they call: a moving average.
CREATE TABLE costs (
    tenant_id   integer NOT NULL,
    target_host text NOT NULL,
    seconds     double precision NOT NULL CHECK (seconds >= 0),
    changed_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, target_host)
) WITH (fillfactor = 70);
CREATE INDEX costs_changed ON costs (changed_at);

CREATE INDEX tenants_weight ON tenants (id) WHERE weight <> 1;
CREATE INDEX tenants_capped ON tenants (id) WHERE max_running IS NOT NULL;
CREATE INDEX limits_capped ON limits (kind, tenant_id) WHERE max_running IS NOT NULL;
CREATE INDEX limits_lifted ON limits (kind, tenant_id) WHERE max_running IS NULL;

-- Caps: what waits for a slot is found in its order, however many of it came at the same instant. Keys
-- are compared byte by byte, so that those that begin alike stand together.
DROP INDEX runs_hold_key;
ALTER TABLE runs ALTER COLUMN hold_key TYPE text COLLATE "C";
ALTER TABLE targets ALTER COLUMN hold_key TYPE text COLLATE "C";
CREATE INDEX runs_hold_key ON runs (hold_key, priority, ready_at, job_id, occurrence_at)
    WHERE hold_key IS NOT NULL;
ALTER TABLE tenants ADD COLUMN caps_changed_at timestamptz;  -- its own cap, or one of its limits
CREATE INDEX tenants_caps_changed ON tenants (caps_changed_at) WHERE caps_changed_at IS NOT NULL;
