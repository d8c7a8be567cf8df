-- The tables as all migrations leave them, for reading; `migrations/` says how they come about.
-- Partitions are not shown. To bring this up to date: python -m tests.support.schema --write

CREATE TABLE alert_checks (
    only_row   boolean NOT NULL DEFAULT true,
    checked_at timestamp with time zone NOT NULL,
    CONSTRAINT alert_checks_pkey PRIMARY KEY (only_row),
    CONSTRAINT alert_checks_only_row_check CHECK (only_row)
) WITH (fillfactor=50);

CREATE TABLE alerts (
    name        text NOT NULL,
    subject     text NOT NULL,
    state       text NOT NULL,
    version     integer NOT NULL DEFAULT 1,
    since       timestamp with time zone NOT NULL,
    seen_at     timestamp with time zone NOT NULL,
    fired_at    timestamp with time zone,
    resolved_at timestamp with time zone,
    times       integer NOT NULL DEFAULT 0,
    value       double precision NOT NULL,
    samples     text[] NOT NULL,
    announced   boolean NOT NULL DEFAULT false,
    tell_at     timestamp with time zone,
    tries       integer NOT NULL DEFAULT 0,
    told_at     timestamp with time zone,
    CONSTRAINT alerts_pkey PRIMARY KEY (name, subject),
    CONSTRAINT alerts_fired CHECK (((state <> 'FIRING'::text) OR (fired_at IS NOT NULL))),
    CONSTRAINT alerts_resolved CHECK (((state <> 'RESOLVED'::text) OR (resolved_at IS NOT NULL))),
    CONSTRAINT alerts_state_check CHECK ((state = ANY (ARRAY['PENDING'::text, 'FIRING'::text, 'RESOLVED'::text])))
) WITH (fillfactor=50);

CREATE TABLE api_keys (
    id          text NOT NULL,
    tenant_id   integer NOT NULL,
    role        text NOT NULL,
    name        text NOT NULL,
    secret_hash bytea NOT NULL,
    created_at  timestamp with time zone NOT NULL,
    expires_at  timestamp with time zone,
    revoked_at  timestamp with time zone,
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenants(id),
    CONSTRAINT api_keys_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'submitter'::text, 'operator'::text, 'admin'::text])))
);
CREATE INDEX api_keys_tenant ON api_keys USING btree (tenant_id, id);

CREATE TABLE audit_log (
    id          bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at          timestamp with time zone NOT NULL,
    tenant_id   integer,
    actor       text NOT NULL,
    action      text NOT NULL,
    object_type text NOT NULL,
    object_id   text NOT NULL,
    before      json,
    after       json,
    request_id  text
) PARTITION BY RANGE (at);
CREATE INDEX audit_log_at ON audit_log USING btree (at, id);

CREATE TABLE charges (
    process    uuid NOT NULL,
    lane       text NOT NULL,
    charged    json NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    CONSTRAINT charges_pkey PRIMARY KEY (process, lane)
) WITH (fillfactor=50);

CREATE TABLE costs (
    tenant_id   integer NOT NULL,
    target_host text NOT NULL,
    seconds     double precision NOT NULL,
    changed_at  timestamp with time zone NOT NULL,
    CONSTRAINT costs_pkey PRIMARY KEY (tenant_id, target_host),
    CONSTRAINT costs_seconds_check CHECK ((seconds >= (0)::double precision))
) WITH (fillfactor=70);
CREATE INDEX costs_changed ON costs USING btree (changed_at);

CREATE TABLE dead_letters (
    job_id          uuid NOT NULL,
    occurrence_at   timestamp with time zone NOT NULL,
    kind            smallint NOT NULL,
    tenant_id       integer NOT NULL,
    reason          text NOT NULL,
    http_status     smallint,
    error           text,
    attempts        integer NOT NULL,
    lease_version   integer NOT NULL,
    payload_version integer NOT NULL,
    target_host     text NOT NULL,
    dead_at         timestamp with time zone NOT NULL,
    replayed_at     timestamp with time zone,
    state           text NOT NULL DEFAULT 'DEAD'::text,
    fingerprint     text NOT NULL DEFAULT ''::text,
    request         json,
    response        json,
    first_dead_at   timestamp with time zone,
    deaths          integer NOT NULL DEFAULT 1,
    replay_id       uuid,
    replay_outcome  text,
    discarded_at    timestamp with time zone,
    discarded_by    text,
    discard_reason  text,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (job_id, occurrence_at, kind),
    CONSTRAINT dead_letters_replay_outcome_check CHECK ((replay_outcome = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text]))),
    CONSTRAINT dead_letters_state_check CHECK ((state = ANY (ARRAY['DEAD'::text, 'REPLAYED'::text, 'DISCARDED'::text])))
);
CREATE INDEX dead_letters_dead ON dead_letters USING btree (tenant_id, dead_at, job_id) WHERE (state = 'DEAD'::text);
CREATE INDEX dead_letters_fingerprint ON dead_letters USING btree (tenant_id, fingerprint, dead_at, job_id);
CREATE INDEX dead_letters_replaying ON dead_letters USING btree (replay_id) WHERE ((replay_id IS NOT NULL) AND (replay_outcome IS NULL));
CREATE INDEX dead_letters_settled ON dead_letters USING btree (COALESCE(discarded_at, replayed_at)) WHERE (state <> 'DEAD'::text);
CREATE INDEX dead_letters_tenant ON dead_letters USING btree (tenant_id, dead_at, job_id);

CREATE TABLE dependencies (
    parent_id uuid NOT NULL,
    child_id  uuid NOT NULL,
    CONSTRAINT dependencies_pkey PRIMARY KEY (parent_id, child_id)
);
CREATE INDEX dependencies_child ON dependencies USING btree (child_id);

CREATE TABLE dependents (
    job_id         uuid NOT NULL,
    tenant_id      integer NOT NULL,
    occurrence_at  timestamp with time zone NOT NULL,
    due_at         timestamp with time zone NOT NULL,
    shard          smallint NOT NULL,
    runs_on        text NOT NULL,
    cascade_cancel boolean NOT NULL,
    open           integer NOT NULL,
    awaited        boolean NOT NULL DEFAULT false,
    CONSTRAINT dependents_pkey PRIMARY KEY (job_id),
    CONSTRAINT dependents_open_check CHECK ((open >= 0)),
    CONSTRAINT dependents_runs_on_check CHECK ((runs_on = ANY (ARRAY['success'::text, 'any'::text])))
) WITH (fillfactor=70);

CREATE TABLE endings (
    id            bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    parent_id     uuid NOT NULL,
    occurrence_at timestamp with time zone NOT NULL,
    outcome       text NOT NULL,
    CONSTRAINT endings_pkey PRIMARY KEY (id),
    CONSTRAINT endings_outcome_check CHECK ((outcome = ANY (ARRAY['COMPLETE'::text, 'FAILED'::text, 'CANCELLED'::text, 'SKIPPED'::text, 'MISSED'::text])))
);
CREATE INDEX endings_parent ON endings USING btree (parent_id);

CREATE TABLE executions (
    job_id          uuid NOT NULL,
    occurrence_at   timestamp with time zone NOT NULL,
    kind            smallint NOT NULL,
    tenant_id       integer NOT NULL,
    attempt         integer NOT NULL,
    lease_version   integer NOT NULL,
    worker_id       uuid NOT NULL,
    status          text NOT NULL,
    leased_at       timestamp with time zone NOT NULL,
    locked_until    timestamp with time zone NOT NULL,
    finished_at     timestamp with time zone NOT NULL,
    retry_at        timestamp with time zone,
    http_status     smallint,
    error           text,
    unknown         boolean NOT NULL,
    response        json,
    duplicate_cause text,
    CONSTRAINT executions_duplicate_cause_check CHECK ((duplicate_cause = ANY (ARRAY['lease_expired'::text, 'interrupted'::text, 'lost_answer'::text, 'failed_answer'::text, 'replay'::text, 'unexplained'::text]))),
    CONSTRAINT executions_status_check CHECK ((status = ANY (ARRAY['SUCCESS'::text, 'FAILED'::text, 'LEASE_EXPIRED'::text, 'INTERRUPTED'::text, 'CANCELLED'::text])))
) PARTITION BY RANGE (finished_at);
CREATE INDEX executions_job ON executions USING btree (job_id, finished_at);

CREATE TABLE forecast_minutes (
    at          timestamp with time zone NOT NULL,
    occurrences double precision NOT NULL,
    hot         boolean NOT NULL,
    CONSTRAINT forecast_minutes_pkey PRIMARY KEY (at)
);

CREATE TABLE forecast_parts (
    at          timestamp with time zone NOT NULL,
    tenant_id   integer NOT NULL,
    lane        text NOT NULL,
    target_host text NOT NULL,
    occurrences double precision NOT NULL,
    unspread    double precision NOT NULL,
    CONSTRAINT forecast_parts_pkey PRIMARY KEY (at, tenant_id, lane, target_host)
);

CREATE TABLE forecasts (
    only_row    boolean NOT NULL DEFAULT true,
    computed_at timestamp with time zone NOT NULL,
    took_sec    double precision NOT NULL,
    starts_at   timestamp with time zone NOT NULL,
    ends_at     timestamp with time zone NOT NULL,
    jobs        bigint NOT NULL,
    estimated   boolean NOT NULL,
    hot_from    double precision NOT NULL,
    CONSTRAINT forecasts_pkey PRIMARY KEY (only_row),
    CONSTRAINT forecasts_only_row_check CHECK (only_row)
) WITH (fillfactor=50);

CREATE TABLE idempotency_keys (
    key         text NOT NULL,
    tenant_id   integer NOT NULL,
    route       text NOT NULL,
    fingerprint bytea NOT NULL,
    status      smallint NOT NULL,
    location    text,
    body        bytea NOT NULL,
    created_at  timestamp with time zone NOT NULL,
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key, tenant_id, route)
) PARTITION BY HASH (key);
CREATE INDEX idempotency_keys_age ON idempotency_keys USING btree (created_at);

CREATE TABLE jobs (
    id               uuid NOT NULL,
    tenant_id        integer NOT NULL,
    created_at       timestamp with time zone NOT NULL,
    created_by       text NOT NULL,
    version          integer NOT NULL DEFAULT 1,
    schedule_version integer NOT NULL DEFAULT 1,
    payload_version  integer NOT NULL DEFAULT 1,
    state            text NOT NULL DEFAULT 'ACTIVE'::text,
    state_reason     text,
    state_changed_at timestamp with time zone,
    schedule_type    text NOT NULL,
    first_at         timestamp with time zone NOT NULL,
    name             text NOT NULL,
    lane             text NOT NULL,
    priority         smallint NOT NULL,
    lease_sec        integer NOT NULL,
    target_host      text NOT NULL,
    labels           json NOT NULL,
    spec             json NOT NULL,
    secret_headers   bytea,
    payload          bytea,
    payload_ref      text,
    payload_bytes    integer NOT NULL,
    content_type     text NOT NULL,
    traceparent      text,
    concurrency_key  text,
    after            json,
    CONSTRAINT jobs_pkey PRIMARY KEY (id),
    CONSTRAINT jobs_payload CHECK (((payload IS NULL) <> (payload_ref IS NULL))),
    CONSTRAINT jobs_priority_check CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT jobs_schedule_type_check CHECK ((schedule_type = ANY (ARRAY['once'::text, 'cron'::text, 'interval'::text]))),
    CONSTRAINT jobs_state_check CHECK ((state = ANY (ARRAY['ACTIVE'::text, 'PAUSED'::text, 'SUSPENDED'::text, 'CANCELLED'::text, 'ENDED'::text]))) NOT VALID
);
CREATE INDEX jobs_recurring ON jobs USING btree (id) WHERE ((schedule_type <> 'once'::text) AND (state = 'ACTIVE'::text));
CREATE INDEX jobs_tenant ON jobs USING btree (tenant_id, id);

CREATE TABLE lane_gauges (
    lane           text NOT NULL,
    ready          bigint NOT NULL,
    oldest_age_sec double precision NOT NULL,
    running        bigint NOT NULL,
    objective_sec  double precision NOT NULL,
    counted_at     timestamp with time zone NOT NULL,
    CONSTRAINT lane_gauges_pkey PRIMARY KEY (lane)
) WITH (fillfactor=50);

CREATE TABLE lane_spans (
    lane     text NOT NULL,
    priority smallint NOT NULL,
    band     smallint NOT NULL,
    low      timestamp with time zone NOT NULL,
    high     timestamp with time zone NOT NULL,
    CONSTRAINT lane_spans_pkey PRIMARY KEY (lane, priority, band)
) WITH (fillfactor=50);

CREATE TABLE lanes (
    name          text NOT NULL,
    weight        double precision NOT NULL DEFAULT 1,
    max_running   integer,
    ageing_sec    double precision NOT NULL DEFAULT 6,
    objective_sec double precision,
    sheddable     boolean NOT NULL DEFAULT false,
    paused_at     timestamp with time zone,
    paused_by     text,
    pause_reason  text,
    shed_at       timestamp with time zone,
    shed_reason   text,
    version       integer NOT NULL DEFAULT 1,
    created_at    timestamp with time zone NOT NULL DEFAULT now(),
    jitter_sec    integer,
    CONSTRAINT lanes_pkey PRIMARY KEY (name),
    CONSTRAINT lanes_ageing_sec_check CHECK ((ageing_sec > (0)::double precision)),
    CONSTRAINT lanes_jitter_sec_check CHECK (((jitter_sec >= 0) AND (jitter_sec <= 86400))),
    CONSTRAINT lanes_max_running_check CHECK ((max_running >= 0)),
    CONSTRAINT lanes_objective_sec_check CHECK ((objective_sec > (0)::double precision)),
    CONSTRAINT lanes_paused CHECK (((paused_at IS NULL) = (pause_reason IS NULL))),
    CONSTRAINT lanes_shed CHECK (((shed_at IS NULL) = (shed_reason IS NULL))),
    CONSTRAINT lanes_weight_check CHECK ((weight > (0)::double precision))
) WITH (fillfactor=50);

CREATE TABLE ledger_start (
    only_row  boolean NOT NULL DEFAULT true,
    starts_at timestamp with time zone NOT NULL,
    CONSTRAINT ledger_start_pkey PRIMARY KEY (only_row),
    CONSTRAINT ledger_start_only_row_check CHECK (only_row)
);

CREATE TABLE limits (
    key          text NOT NULL,
    tenant_id    integer NOT NULL,
    kind         text NOT NULL,
    name         text NOT NULL,
    max_running  integer,
    rate_per_sec double precision,
    changed_at   timestamp with time zone NOT NULL,
    CONSTRAINT limits_pkey PRIMARY KEY (key),
    CONSTRAINT limits_check CHECK (((rate_per_sec IS NULL) OR ((rate_per_sec > (0)::double precision) AND (kind = 'host'::text)))),
    CONSTRAINT limits_kind_check CHECK ((kind = ANY (ARRAY['host'::text, 'key'::text]))),
    CONSTRAINT limits_max_running_check CHECK ((max_running >= 0))
);
CREATE INDEX limits_capped ON limits USING btree (kind, tenant_id) WHERE (max_running IS NOT NULL);
CREATE INDEX limits_lifted ON limits USING btree (kind, tenant_id) WHERE (max_running IS NULL);
CREATE INDEX limits_rates ON limits USING btree (key) WHERE (rate_per_sec IS NOT NULL);
CREATE INDEX limits_tenant ON limits USING btree (tenant_id, kind, name);

CREATE TABLE occurrence_ranges (
    job_id           uuid NOT NULL,
    from_at          timestamp with time zone NOT NULL,
    to_at            timestamp with time zone NOT NULL,
    tenant_id        integer NOT NULL,
    count            integer,
    outcome          text NOT NULL,
    reason           text NOT NULL,
    schedule_version integer NOT NULL,
    written_at       timestamp with time zone NOT NULL,
    caused_by        text NOT NULL,
    CONSTRAINT occurrence_ranges_pkey PRIMARY KEY (job_id, to_at),
    CONSTRAINT occurrence_ranges_count_check CHECK ((count > 0)),
    CONSTRAINT occurrence_ranges_order CHECK ((from_at <= to_at)),
    CONSTRAINT occurrence_ranges_outcome_check CHECK ((outcome = ANY (ARRAY['SKIPPED'::text, 'MISSED'::text])))
);
CREATE INDEX occurrence_ranges_end ON occurrence_ranges USING btree (to_at);

CREATE TABLE occurrences (
    job_id           uuid NOT NULL,
    occurrence_at    timestamp with time zone NOT NULL,
    kind             smallint NOT NULL,
    tenant_id        integer NOT NULL,
    due_at           timestamp with time zone NOT NULL,
    materialized_at  timestamp with time zone NOT NULL,
    shard_epoch      bigint,
    outcome          text,
    reason           text,
    blocking_run     text,
    ended_at         timestamp with time zone,
    attempts         integer,
    schedule_version integer,
    CONSTRAINT occurrences_pkey PRIMARY KEY (job_id, occurrence_at, kind),
    CONSTRAINT occurrences_outcome CHECK (((outcome IS NULL) = (ended_at IS NULL))),
    CONSTRAINT occurrences_outcome_check CHECK ((outcome = ANY (ARRAY['COMPLETE'::text, 'FAILED'::text, 'CANCELLED'::text, 'SKIPPED'::text, 'MISSED'::text]))),
    CONSTRAINT occurrences_reason CHECK (((outcome <> ALL (ARRAY['SKIPPED'::text, 'MISSED'::text, 'CANCELLED'::text])) OR (reason IS NOT NULL)))
) PARTITION BY RANGE (occurrence_at);

CREATE TABLE operations (
    id          uuid NOT NULL,
    tenant_id   integer NOT NULL,
    kind        text NOT NULL,
    state       text NOT NULL,
    request     json NOT NULL,
    created_by  text NOT NULL,
    created_at  timestamp with time zone NOT NULL,
    changed_at  timestamp with time zone NOT NULL,
    ended_at    timestamp with time zone,
    looked_at   integer NOT NULL DEFAULT 0,
    done        integer NOT NULL DEFAULT 0,
    position    uuid,
    error       text,
    total       integer,
    position_at timestamp with time zone,
    next_at     timestamp with time zone,
    CONSTRAINT operations_pkey PRIMARY KEY (id),
    CONSTRAINT operations_kind_check CHECK ((kind = ANY (ARRAY['cancel_jobs'::text, 'backfill'::text]))) NOT VALID,
    CONSTRAINT operations_state_check CHECK ((state = ANY (ARRAY['RUNNING'::text, 'DONE'::text, 'ABORTED'::text, 'FAILED'::text])))
) WITH (fillfactor=50);
CREATE INDEX operations_running ON operations USING btree (id) WHERE (state = 'RUNNING'::text);
CREATE INDEX operations_tenant ON operations USING btree (tenant_id, id);

CREATE TABLE pauses (
    job_id        uuid NOT NULL,
    occurrence_at timestamp with time zone NOT NULL,
    seq           integer NOT NULL,
    awaited       boolean NOT NULL,
    until_at      timestamp with time zone,
    paused_by     text NOT NULL,
    CONSTRAINT pauses_pkey PRIMARY KEY (job_id)
);
CREATE INDEX pauses_until ON pauses USING btree (until_at) WHERE (until_at IS NOT NULL);

CREATE TABLE payload_versions (
    job_id        uuid NOT NULL,
    version       integer NOT NULL,
    payload       bytea,
    payload_ref   text,
    payload_bytes integer NOT NULL,
    content_type  text NOT NULL,
    CONSTRAINT payload_versions_pkey PRIMARY KEY (job_id, version)
);

CREATE TABLE pending_bases (
    tenant_id  integer NOT NULL,
    watched_at timestamp with time zone NOT NULL,
    counted_at timestamp with time zone,
    jobs       integer NOT NULL DEFAULT 0,
    CONSTRAINT pending_bases_pkey PRIMARY KEY (tenant_id)
) WITH (fillfactor=50);

CREATE TABLE pending_counts (
    tenant_id  integer NOT NULL,
    process_id uuid NOT NULL,
    since      timestamp with time zone NOT NULL,
    delta      integer NOT NULL,
    ended      integer NOT NULL,
    CONSTRAINT pending_counts_pkey PRIMARY KEY (tenant_id, process_id, since)
);

CREATE TABLE rates (
    key       text NOT NULL,
    next_at   timestamp with time zone NOT NULL,
    slowed    double precision NOT NULL DEFAULT 1,
    slowed_at timestamp with time zone,
    let_go_at timestamp with time zone,
    CONSTRAINT rates_pkey PRIMARY KEY (key),
    CONSTRAINT rates_slowed_check CHECK (((slowed > (0)::double precision) AND (slowed <= (1)::double precision)))
) WITH (fillfactor=50);

CREATE TABLE replays (
    id               uuid NOT NULL,
    tenant_id        integer NOT NULL,
    state            text NOT NULL,
    active           boolean NOT NULL DEFAULT true,
    terms            json NOT NULL,
    reason           text NOT NULL,
    created_by       text NOT NULL,
    created_at       timestamp with time zone NOT NULL,
    changed_at       timestamp with time zone NOT NULL,
    state_reason     text,
    matched          integer NOT NULL,
    matched_all      boolean NOT NULL,
    replayed         integer NOT NULL DEFAULT 0,
    succeeded        integer NOT NULL DEFAULT 0,
    failed           integer NOT NULL DEFAULT 0,
    cancelled        integer NOT NULL DEFAULT 0,
    skipped          json NOT NULL DEFAULT '{}'::json,
    canary_passed_at timestamp with time zone,
    ramp_from        timestamp with time zone,
    recent           boolean[] NOT NULL DEFAULT '{}'::boolean[],
    next_at          timestamp with time zone NOT NULL,
    position         json,
    deferred         integer NOT NULL DEFAULT 0,
    reopened         integer NOT NULL DEFAULT 0,
    CONSTRAINT replays_pkey PRIMARY KEY (id),
    CONSTRAINT replays_state_check CHECK ((state = ANY (ARRAY['RUNNING'::text, 'PAUSED'::text, 'STOPPED'::text, 'ABORTED'::text, 'DONE'::text])))
) WITH (fillfactor=50);
CREATE INDEX replays_active ON replays USING btree (id) WHERE active;
CREATE INDEX replays_tenant ON replays USING btree (tenant_id, id);

CREATE TABLE runs (
    job_id              uuid NOT NULL,
    occurrence_at       timestamp with time zone NOT NULL,
    kind                smallint NOT NULL,
    tenant_id           integer NOT NULL,
    payload_version     integer NOT NULL,
    lane                text NOT NULL,
    priority            smallint NOT NULL,
    rank                timestamp with time zone NOT NULL,
    claimable           boolean NOT NULL,
    state               text NOT NULL,
    hold                text,
    hold_key            text,
    due_at              timestamp with time zone NOT NULL,
    ready_at            timestamp with time zone NOT NULL,
    retry_at            timestamp with time zone,
    attempt             integer NOT NULL DEFAULT 0,
    failures            integer NOT NULL DEFAULT 0,
    interruptions       integer NOT NULL DEFAULT 0,
    lease_version       integer NOT NULL DEFAULT 0,
    worker_id           uuid,
    leased_at           timestamp with time zone,
    locked_until        timestamp with time zone,
    cancel_reason       text,
    cancel_requested_at timestamp with time zone,
    cancel_told_at      timestamp with time zone,
    cancel_kills        boolean NOT NULL DEFAULT false,
    tenant_cap          text,
    host_cap            text,
    key_cap             text,
    key_slot            boolean NOT NULL DEFAULT false,
    awaited             boolean NOT NULL DEFAULT false,
    overlap_key         text,
    CONSTRAINT runs_pkey PRIMARY KEY (job_id, occurrence_at, kind),
    CONSTRAINT runs_claimable CHECK ((claimable = ((state = 'RUNNING'::text) OR ((state = 'READY'::text) AND (hold IS NULL))))),
    CONSTRAINT runs_hold CHECK (((hold IS NULL) OR ((state = 'READY'::text) AND (hold_key IS NOT NULL)))),
    CONSTRAINT runs_hold_check CHECK ((hold = ANY (ARRAY['cap'::text, 'breaker'::text, 'rate'::text, 'overlap'::text, 'lane'::text, 'after'::text, 'shed'::text]))),
    CONSTRAINT runs_lease CHECK ((((state = 'RUNNING'::text) = (worker_id IS NOT NULL)) AND ((state = 'RUNNING'::text) = (leased_at IS NOT NULL)) AND ((state = 'RUNNING'::text) = (locked_until IS NOT NULL)))),
    CONSTRAINT runs_retry CHECK (((state = 'RETRYING'::text) = (retry_at IS NOT NULL))),
    CONSTRAINT runs_state_check CHECK ((state = ANY (ARRAY['READY'::text, 'RUNNING'::text, 'RETRYING'::text])))
) WITH (fillfactor=38, autovacuum_vacuum_threshold=20000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0, autovacuum_analyze_threshold=50000, autovacuum_vacuum_scale_factor=0.2);
CREATE INDEX runs_cancel ON runs USING btree (cancel_requested_at) WHERE (cancel_requested_at IS NOT NULL);
CREATE INDEX runs_claim ON runs USING btree (lane, priority, rank) WHERE claimable;
CREATE INDEX runs_hold_key ON runs USING btree (hold_key, priority, ready_at, job_id, occurrence_at) WHERE (hold_key IS NOT NULL);
CREATE INDEX runs_host_cap ON runs USING btree (host_cap) WHERE ((host_cap IS NOT NULL) AND claimable);
CREATE INDEX runs_key_cap ON runs USING btree (key_cap) WHERE key_slot;
CREATE INDEX runs_retry_due ON runs USING btree (retry_at) WHERE (retry_at IS NOT NULL);
CREATE INDEX runs_tenant_cap ON runs USING btree (tenant_cap) WHERE ((tenant_cap IS NOT NULL) AND claimable);

CREATE TABLE schedule_versions (
    job_id   uuid NOT NULL,
    version  integer NOT NULL,
    schedule json NOT NULL,
    from_at  timestamp with time zone NOT NULL,
    until_at timestamp with time zone NOT NULL,
    CONSTRAINT schedule_versions_pkey PRIMARY KEY (job_id, version)
);
CREATE INDEX schedule_versions_until ON schedule_versions USING btree (until_at);

CREATE TABLE schema_migrations (
    number     integer NOT NULL,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT schema_migrations_pkey PRIMARY KEY (number)
);

CREATE TABLE shards (
    shard        smallint NOT NULL,
    epoch        bigint NOT NULL DEFAULT 0,
    owner_id     uuid,
    leased_until timestamp with time zone,
    CONSTRAINT shards_pkey PRIMARY KEY (shard)
) WITH (fillfactor=50);

CREATE TABLE targets (
    hold_key    text NOT NULL,
    tenant_id   integer NOT NULL,
    host        text NOT NULL,
    port        integer NOT NULL,
    url         text,
    state       text NOT NULL,
    reason      text NOT NULL,
    since       timestamp with time zone NOT NULL,
    generation  integer NOT NULL DEFAULT 1,
    trips       integer NOT NULL DEFAULT 1,
    probe_at    timestamp with time zone,
    permits     integer NOT NULL DEFAULT 0,
    successes   integer NOT NULL DEFAULT 0,
    released_at timestamp with time zone NOT NULL,
    CONSTRAINT targets_pkey PRIMARY KEY (hold_key),
    CONSTRAINT targets_check CHECK (((probe_at IS NOT NULL) = (state = ANY (ARRAY['OPEN'::text, 'HALF_OPEN'::text])))),
    CONSTRAINT targets_permits_check CHECK ((permits >= 0)),
    CONSTRAINT targets_state_check CHECK ((state = ANY (ARRAY['CLOSED'::text, 'OPEN'::text, 'HALF_OPEN'::text, 'SUSPENDED'::text])))
) WITH (fillfactor=50);
CREATE INDEX targets_not_closed ON targets USING btree (hold_key) WHERE (state <> 'CLOSED'::text);
CREATE INDEX targets_tenant ON targets USING btree (tenant_id, host, hold_key);

CREATE TABLE tenants (
    id                   integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    name                 text NOT NULL,
    signing_secrets      bytea[] NOT NULL,
    secrets_rotated_at   timestamp with time zone NOT NULL,
    max_payload_bytes    integer NOT NULL DEFAULT 1048576,
    created_at           timestamp with time zone NOT NULL,
    keep_responses       boolean NOT NULL DEFAULT true,
    weight               double precision NOT NULL DEFAULT 1,
    max_running          integer,
    deliveries_per_sec   double precision,
    creates_per_sec      double precision,
    creates_burst        integer,
    create_bytes_per_sec integer,
    max_pending_jobs     integer,
    caps_changed_at      timestamp with time zone,
    jitter_sec           integer NOT NULL DEFAULT 0,
    CONSTRAINT tenants_pkey PRIMARY KEY (id),
    CONSTRAINT tenants_name_key UNIQUE (name),
    CONSTRAINT tenants_create_bytes_per_sec_check CHECK ((create_bytes_per_sec > 0)),
    CONSTRAINT tenants_creates_burst_check CHECK ((creates_burst >= 1)),
    CONSTRAINT tenants_creates_per_sec_check CHECK ((creates_per_sec > (0)::double precision)),
    CONSTRAINT tenants_deliveries_per_sec_check CHECK ((deliveries_per_sec > (0)::double precision)),
    CONSTRAINT tenants_jitter_sec_check CHECK (((jitter_sec >= 0) AND (jitter_sec <= 86400))),
    CONSTRAINT tenants_max_pending_jobs_check CHECK ((max_pending_jobs >= 0)),
    CONSTRAINT tenants_max_running_check CHECK ((max_running >= 0)),
    CONSTRAINT tenants_weight_check CHECK ((weight > (0)::double precision))
);
CREATE INDEX tenants_capped ON tenants USING btree (id) WHERE (max_running IS NOT NULL);
CREATE INDEX tenants_caps_changed ON tenants USING btree (caps_changed_at) WHERE (caps_changed_at IS NOT NULL);
CREATE INDEX tenants_rates ON tenants USING btree (id) WHERE (deliveries_per_sec IS NOT NULL);
CREATE INDEX tenants_weight ON tenants USING btree (id) WHERE (weight <> (1)::double precision);

CREATE TABLE timers (
    job_id           uuid NOT NULL,
    occurrence_at    timestamp with time zone NOT NULL,
    due_at           timestamp with time zone NOT NULL,
    schedule_version integer NOT NULL,
    seq              integer NOT NULL,
    shard            smallint NOT NULL,
    awaited          boolean NOT NULL DEFAULT false,
    catch_up_to      timestamp with time zone
) PARTITION BY RANGE (due_at);
CREATE INDEX timers_job ON timers USING btree (job_id);

CREATE TABLE wanted_slots (
    lane        text NOT NULL,
    slots       integer NOT NULL,
    reason      text NOT NULL,
    service_sec double precision NOT NULL,
    changed_at  timestamp with time zone NOT NULL,
    CONSTRAINT wanted_slots_pkey PRIMARY KEY (lane),
    CONSTRAINT wanted_slots_service_sec_check CHECK ((service_sec > (0)::double precision)),
    CONSTRAINT wanted_slots_slots_check CHECK ((slots >= 0))
) WITH (fillfactor=50);

CREATE TABLE workers (
    id         uuid NOT NULL,
    role       text NOT NULL,
    name       text NOT NULL,
    host       text NOT NULL,
    pid        integer NOT NULL,
    slots      integer NOT NULL DEFAULT 0,
    in_flight  integer NOT NULL DEFAULT 0,
    granted    json,
    stopping   boolean NOT NULL DEFAULT false,
    started_at timestamp with time zone NOT NULL,
    seen_at    timestamp with time zone NOT NULL,
    vitals     json,
    lanes      json,
    catch_up   json,
    CONSTRAINT workers_pkey PRIMARY KEY (id)
) WITH (fillfactor=50);
