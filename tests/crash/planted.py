"""Violations to plant in a history: the invariant that is broken, how, and in which statements.

``{done}``, ``{running}``, ``{ready}``, ``{later}`` and ``{hourly}`` stand for the jobs' ids.
"""

from __future__ import annotations

COPY_OF_A_RUN = """
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  claimable, state, due_at, ready_at)
SELECT {0}, kind, tenant_id, 1, 'default', 5, now(), true, 'READY', due_at, now()
FROM occurrences WHERE {1}
"""
COPY_OF_A_LEDGER_ROW = """
INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                         shard_epoch, outcome, reason, ended_at, attempts)
SELECT {0}, 0, 1, now(), now(), {1}, {2} FROM occurrences WHERE {3}
"""
MISSED = "'MISSED', 'grace', now(), 0"
HOURLY_AND_OPEN = "job_id = {hourly} AND outcome IS NULL"
FIRST = " ORDER BY occurrence_at LIMIT 1"
OPEN = "NULL, NULL, NULL, 0"
STALE_SUCCESS = """
INSERT INTO executions SELECT job_id, occurrence_at, kind, tenant_id, attempt, lease_version,
       worker_id, 'SUCCESS', leased_at, locked_until, now(), NULL, 200, NULL, false
FROM executions WHERE {0} AND attempt = 1
"""
DELETE_AND_COMPLETE = (
    "DELETE FROM runs WHERE {0}",
    "UPDATE occurrences SET outcome = 'COMPLETE', ended_at = now() WHERE {0}",
)

PLANTED = {
    "I1 a job that was acknowledged is deleted": ("DELETE FROM jobs WHERE id = {later}",),
    "I2 a ledger row of nobody's job": (
        COPY_OF_A_LEDGER_ROW.format(
            "gen_random_uuid(), occurrence_at", "NULL", MISSED, "job_id = {done}"
        ),
    ),
    "I2 a run beside the calendar": (
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 s'", "NULL", OPEN, "job_id = {done}"
        ),
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done} AND outcome IS NULL"),
    ),
    "I3 two ledger rows of one occurrence": (
        "ALTER TABLE occurrences DROP CONSTRAINT occurrences_pkey",
        COPY_OF_A_LEDGER_ROW.format("job_id, occurrence_at", "NULL", MISSED, "job_id = {done}"),
    ),
    "I3 a second run of an occurrence that ended": (
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done}"),
    ),
    "I3 a run that is not in the ledger": (
        COPY_OF_A_RUN.format("job_id, occurrence_at + interval '1 s'", "job_id = {done}"),
    ),
    "I3 an open ledger row without a run": (
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 hour'", "NULL", OPEN, "job_id = {ready}"
        ),
    ),
    "I3 a nominal time has a line of its own and is within a range": (
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, (SELECT from_at FROM occurrence_ranges)", "NULL", MISSED, HOURLY_AND_OPEN
        ),
    ),
    "I4 what was missed vanishes from the ledger": (
        "DELETE FROM occurrence_ranges WHERE job_id = {hourly}",
    ),
    "I4 a range speaks of fewer than there were": ("UPDATE occurrence_ranges SET count = 1",),
    "I4 a range ends early": ("UPDATE occurrence_ranges SET to_at = to_at - interval '1 s'",),
    "I4 the timer of a recurring job is lost": ("DELETE FROM timers WHERE job_id = {hourly}",),
    "I4 the timer of a one-off job is lost": ("DELETE FROM timers WHERE job_id = {later}",),
    "I4 a timer leaps over an occurrence": (
        "UPDATE timers SET occurrence_at = occurrence_at + interval '1 hour'"
        " WHERE job_id = {hourly}",
    ),
    "I4 a timer is due and nobody fires it": (
        "UPDATE timers SET due_at = now() - interval '1 minute' WHERE job_id = {hourly}",
    ),
    "I4 a job is suspended and its past is not written": (
        "DELETE FROM timers WHERE job_id = {hourly}",
        "UPDATE jobs SET state = 'SUSPENDED', state_changed_at = now() + interval '2 hours'"
        " WHERE id = {hourly}",
    ),
    "I5 a lease is granted while another holds": (
        "UPDATE runs SET lease_version = lease_version + 1, attempt = attempt + 1,"
        " worker_id = gen_random_uuid() WHERE job_id = {running}",
    ),
    "I5 an attempt reaches beyond its lease": (
        "UPDATE executions SET locked_until = locked_until + interval '1 h' WHERE attempt = 1",
    ),
    "I6 a lease version falls": (
        "UPDATE runs SET lease_version = lease_version - 1 WHERE job_id = {running}",
    ),
    "I6 a write of somebody who lost the lease": (STALE_SUCCESS.format("job_id = {done}"),),
    "I7 a result of somebody who lost the lease": (
        "UPDATE executions SET status = 'FAILED' WHERE attempt = 2",
        "UPDATE executions SET status = 'SUCCESS' WHERE attempt = 1",
    ),
    "I7 a success without an attempt": tuple(
        statement.format("job_id = {running}") for statement in DELETE_AND_COMPLETE
    ),
    "I8 a run completes without having run": tuple(
        statement.format("job_id = {ready}") for statement in DELETE_AND_COMPLETE
    ),
    "I8 a run vanishes": ("DELETE FROM runs WHERE job_id = {ready}",),
    "I8 a run is released for no reason": (
        "UPDATE runs SET state = 'READY', worker_id = NULL, leased_at = NULL, locked_until = NULL"
        " WHERE job_id = {running}",
    ),
    "I8 a lease is taken back before its end": (
        "UPDATE runs SET state = 'READY', worker_id = NULL, leased_at = NULL, locked_until = NULL,"
        " failures = failures + 1 WHERE job_id = {running}",
    ),
    "I8 what has ended ends again": (
        "UPDATE occurrences SET outcome = 'FAILED' WHERE job_id = {done}",
    ),
    "I8 what has ended comes back": (
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done}"),
    ),
    "I9 an attempt is missing": ("DELETE FROM executions WHERE attempt = 1",),
    "I9 an attempt number is given twice": ("UPDATE executions SET attempt = 1",),
    "I9 a run is tried too often": (
        "UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{{retry_policy,max_attempts}}', '0')",
    ),
    "I8 a run is put on hold and its attempt is kept": (
        "UPDATE runs SET state = 'READY', claimable = false, hold = 'breaker', hold_key = 'x',"
        " worker_id = NULL, leased_at = NULL, locked_until = NULL WHERE job_id = {running}",
    ),
    "I8 a waiting run is held by nobody's leave": (
        "UPDATE runs SET claimable = false, hold = 'breaker', hold_key = 'x'"
        " WHERE job_id = {ready}",
    ),
    "I8 what has succeeded is replayed": (
        "UPDATE occurrences SET outcome = NULL, ended_at = NULL WHERE job_id = {done}",
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done}"),
    ),
    "I14 a job overlaps itself": (
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 hour'", "NULL", OPEN, HOURLY_AND_OPEN
        ),
        COPY_OF_A_RUN.format("job_id, occurrence_at + interval '1 hour'", HOURLY_AND_OPEN + FIRST),
    ),
    "I15 a scheduler writes under an epoch that is over": (
        "UPDATE shards SET epoch = epoch + 1",
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 h'", "1", MISSED, HOURLY_AND_OPEN
        ),
    ),
    "I15 an epoch falls": ("UPDATE shards SET epoch = epoch - 1",),
    "I16 a timer stands where it has fired": (
        "UPDATE timers SET occurrence_at = occurrence_at - interval '1 hour'"
        " WHERE job_id = {hourly}",
    ),
    "I16 a timer leaps": (
        "UPDATE timers SET occurrence_at = occurrence_at + interval '1 hour'"
        " WHERE job_id = {hourly}",
    ),
    "I16 a timer stands beside the calendar": (
        "UPDATE timers SET occurrence_at = occurrence_at + interval '1 s' WHERE job_id = {hourly}",
    ),
    "I16 a timer of a schedule that was replaced": (
        "UPDATE jobs SET schedule_version = 2 WHERE id = {hourly}",
    ),
    "I20 two jobs under one key": ("UPDATE jobs SET name = 'one'",),
    "I21 a run waits and nobody claims it": (
        "UPDATE runs SET ready_at = now() - interval '1 minute' WHERE job_id = {ready}",
    ),
    "I21 a lease has run out and nobody reaps it": (
        "UPDATE runs SET locked_until = now() - interval '1 minute' WHERE job_id = {running}",
    ),
    "I21 a timer is due and nobody fires it": (
        "UPDATE timers SET due_at = now() - interval '1 minute' WHERE job_id = {hourly}",
    ),
    "I21 a shard without an owner": (
        "UPDATE shards SET owner_id = NULL, leased_until = NULL WHERE shard = 7",
    ),
}
