-- Alerts: what is wrong with the service itself, one row for each thing that can be.

-- One row per alert and what it is about; PENDING: not for long enough yet.
CREATE TABLE alerts (
    name        text NOT NULL,
    subject     text NOT NULL,                        -- a lane, a reason, a loop, a role; else ''
    state       text NOT NULL CHECK (state IN ('PENDING', 'FIRING', 'RESOLVED')),
    version     integer NOT NULL DEFAULT 1,           -- grows with each change of state
    since       timestamptz NOT NULL,                 -- when its condition began to hold
    seen_at     timestamptz NOT NULL,                 -- when it was last seen to hold
    fired_at    timestamptz,
    resolved_at timestamptz,
    times       integer NOT NULL DEFAULT 0,           -- how often it has fired
    value       double precision NOT NULL,
    samples     text[] NOT NULL,                      -- error texts, at most three
    announced   boolean NOT NULL DEFAULT false,       -- the receiver may believe that it fires
    tell_at     timestamptz,                          -- when a notice is due; null: none is
    tries       integer NOT NULL DEFAULT 0,           -- of the notice that is due
    told_at     timestamptz,
    PRIMARY KEY (name, subject),
    CONSTRAINT alerts_fired CHECK (state <> 'FIRING' OR fired_at IS NOT NULL),
    CONSTRAINT alerts_resolved CHECK (state <> 'RESOLVED' OR resolved_at IS NOT NULL)
) WITH (fillfactor = 50);

-- When somebody last looked: without a scheduler nobody does.
CREATE TABLE alert_checks (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    checked_at timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO alert_checks (checked_at) VALUES (now());

-- What a process says of itself, for the alerts: the last ten minutes in numbers.
ALTER TABLE workers ADD COLUMN vitals json;
