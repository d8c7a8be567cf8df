-- What fails: cancelling what runs, excerpts of answers, breakers, dead letters that can be replayed.

-- A run that was asked to stop. The index holds nothing else, and none of its columns changes with a
-- claim or a heartbeat, so these stay HOT.
ALTER TABLE runs
    ADD COLUMN cancel_requested_at timestamptz,           -- its worker is to cut it off
    ADD COLUMN cancel_told_at      timestamptz,           -- its worker knows
    ADD COLUMN cancel_kills        boolean NOT NULL DEFAULT false;  -- to end as a dead letter
CREATE INDEX runs_cancel ON runs (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL;

ALTER TABLE executions
    ADD COLUMN response        json,                      -- an excerpt of the answer
    ADD COLUMN duplicate_cause text CHECK (               -- the receiver had done it before, since ...
        duplicate_cause IN ('lease_expired', 'interrupted', 'lost_answer', 'failed_answer', 'replay',
                            'unexplained'));

ALTER TABLE tenants ADD COLUMN keep_responses boolean NOT NULL DEFAULT true;

-- A dead letter stays when its run is reopened, and is there again should the run die again.
ALTER TABLE dead_letters
    ADD COLUMN state          text NOT NULL DEFAULT 'DEAD'
                              CHECK (state IN ('DEAD', 'REPLAYED', 'DISCARDED')),
    ADD COLUMN fingerprint    text NOT NULL DEFAULT '',   -- alike for errors that are alike
    ADD COLUMN request        json,                       -- what was called last, never with its body
    ADD COLUMN response       json,
    ADD COLUMN first_dead_at  timestamptz,                -- null: dead_at
    ADD COLUMN deaths         integer NOT NULL DEFAULT 1,
    ADD COLUMN replay_id      uuid,                       -- the replay that reopened it last
    ADD COLUMN replay_outcome text CHECK (replay_outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    ADD COLUMN discarded_at   timestamptz,
    ADD COLUMN discarded_by   text,
    ADD COLUMN discard_reason text;
CREATE INDEX dead_letters_dead ON dead_letters (tenant_id, dead_at, job_id) WHERE state = 'DEAD';
CREATE INDEX dead_letters_fingerprint ON dead_letters (tenant_id, fingerprint, dead_at, job_id);
CREATE INDEX dead_letters_replaying ON dead_letters (replay_id)
    WHERE replay_id IS NOT NULL AND replay_outcome IS NULL;
CREATE INDEX dead_letters_settled ON dead_letters (coalesce(discarded_at, replayed_at))
    WHERE state <> 'DEAD';

-- The breaker of a tenant's target: of a host, or of one URL of it that answered 410. There is a row
-- once it has been other than CLOSED; it is written when it changes.
CREATE TABLE targets (
    hold_key    text PRIMARY KEY,                         -- what runs are held under while it is not CLOSED
    tenant_id   integer NOT NULL,
    host        text NOT NULL,                            -- as in jobs.target_host
    port        integer NOT NULL,
    url         text,                                     -- without its query; null: the whole host
    state       text NOT NULL CHECK (state IN ('CLOSED', 'OPEN', 'HALF_OPEN', 'SUSPENDED')),
    reason      text NOT NULL,
    since       timestamptz NOT NULL,
    generation  integer NOT NULL DEFAULT 1,               -- grows with each change of state
    trips       integer NOT NULL DEFAULT 1,               -- times it opened without closing for long
    probe_at    timestamptz,                              -- when OPEN ends, or HALF_OPEN gives permits anew
    permits     integer NOT NULL DEFAULT 0 CHECK (permits >= 0),  -- runs that HALF_OPEN still lets through
    successes   integer NOT NULL DEFAULT 0,               -- of those that it let through
    released_at timestamptz NOT NULL,                     -- when held runs were let go last
    CHECK ((probe_at IS NOT NULL) = (state IN ('OPEN', 'HALF_OPEN')))
) WITH (fillfactor = 50);
CREATE INDEX targets_tenant ON targets (tenant_id, host, hold_key);
CREATE INDEX targets_not_closed ON targets (hold_key) WHERE state <> 'CLOSED';

-- A gated replay of dead letters: what was asked, how far it is. No index holds what changes while
-- it goes on, so that its steps are HOT.
CREATE TABLE replays (
    id                uuid PRIMARY KEY,
    tenant_id         integer NOT NULL,
    state             text NOT NULL CHECK (
                      state IN ('RUNNING', 'PAUSED', 'STOPPED', 'ABORTED', 'DONE')),
    active            boolean NOT NULL DEFAULT true,      -- RUNNING, or runs of it are unfinished
    terms             json NOT NULL,                      -- filter or ids, gate, rate
    reason            text NOT NULL,
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL,
    changed_at        timestamptz NOT NULL,               -- its state
    state_reason      text,
    matched           integer NOT NULL,                   -- letters when it was asked for
    matched_all       boolean NOT NULL,                   -- false: there were more than were counted
    replayed          integer NOT NULL DEFAULT 0,
    succeeded         integer NOT NULL DEFAULT 0,
    failed            integer NOT NULL DEFAULT 0,
    cancelled         integer NOT NULL DEFAULT 0,
    skipped           json NOT NULL DEFAULT '{}',         -- how many, by why
    canary_passed_at  timestamptz,
    ramp_from         timestamptz,                        -- when the rate began to rise
    recent            boolean[] NOT NULL DEFAULT '{}',    -- the last outcomes: did it succeed
    next_at           timestamptz NOT NULL,               -- no letter is reopened before
    position          json,                               -- the last letter that was looked at
    deferred          integer NOT NULL DEFAULT 0,         -- letters that this pass left for the next
    reopened          integer NOT NULL DEFAULT 0          -- letters that this pass reopened
) WITH (fillfactor = 50);
CREATE INDEX replays_tenant ON replays (tenant_id, id);
CREATE INDEX replays_active ON replays (id) WHERE active;

-- A bulk action that takes its time.
CREATE TABLE operations (
    id          uuid PRIMARY KEY,
    tenant_id   integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('cancel_jobs')),
    state       text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'ABORTED', 'FAILED')),
    request     json NOT NULL,
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL,
    changed_at  timestamptz NOT NULL,
    ended_at    timestamptz,
    looked_at   integer NOT NULL DEFAULT 0,
    done        integer NOT NULL DEFAULT 0,
    position    uuid,                                     -- the last job that was looked at
    error       text
) WITH (fillfactor = 50);
CREATE INDEX operations_tenant ON operations (tenant_id, id);
CREATE INDEX operations_running ON operations (id) WHERE state = 'RUNNING';
