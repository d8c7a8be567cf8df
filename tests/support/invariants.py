"""What must hold in any database of ours, at any moment between two transactions."""

from __future__ import annotations

from noonday.store import Store

# Each query finds what should not be there. (With OFFSET 0 the planner does not weigh the indexes
# of a hundred empty partitions against each other.)
BROKEN = {
    "an open occurrence has a run, an ended one has none": """
        SELECT o.job_id, o.outcome, r.state FROM occurrences o
        FULL JOIN runs r USING (job_id, occurrence_at, kind)
        WHERE (o.job_id IS NULL) OR (o.outcome IS NULL) <> (r.job_id IS NOT NULL)""",
    "a lease has at most one execution": """
        SELECT job_id, lease_version FROM executions
        GROUP BY job_id, occurrence_at, kind, lease_version HAVING count(*) > 1""",
    "attempt numbers are given once": """
        SELECT job_id, attempt FROM (
            SELECT job_id, occurrence_at, kind, attempt FROM executions
            UNION ALL SELECT job_id, occurrence_at, kind, attempt FROM runs
            WHERE state = 'RUNNING') AS given
        GROUP BY job_id, occurrence_at, kind, attempt HAVING count(*) > 1""",
    "attempt numbers have no hole": """
        SELECT e.job_id, max(e.attempt), count(*) FROM executions e
        GROUP BY e.job_id, e.occurrence_at, e.kind HAVING max(e.attempt) <> count(*)""",
    "a later attempt has a later lease version and begins no earlier": """
        SELECT e.job_id FROM executions e JOIN executions l USING (job_id, occurrence_at, kind)
        WHERE l.attempt > e.attempt
          AND (l.lease_version <= e.lease_version
               OR l.leased_at < least(e.finished_at, e.locked_until))""",
    "the last word is the last lease's": """
        SELECT o.job_id FROM occurrences o JOIN executions e USING (job_id, occurrence_at, kind)
        WHERE o.outcome = 'COMPLETE' GROUP BY o.job_id, o.occurrence_at, o.kind, o.attempts
        HAVING max(e.attempt) <> o.attempts
            OR count(*) FILTER (WHERE e.status = 'SUCCESS') <> 1
            OR max(e.lease_version) <> max(e.lease_version) FILTER (WHERE e.status = 'SUCCESS')""",
    "a run's budget is what its executions used": """
        SELECT r.job_id, r.failures, r.interruptions FROM runs r
        LEFT JOIN dead_letters d USING (job_id, occurrence_at, kind)
        LEFT JOIN executions e ON e.job_id = r.job_id AND e.occurrence_at = r.occurrence_at
             AND e.kind = r.kind AND e.attempt > coalesce(d.attempts, 0)
        GROUP BY r.job_id, r.occurrence_at, r.kind, r.failures, r.interruptions
        HAVING count(*) FILTER (WHERE e.status IN ('FAILED', 'LEASE_EXPIRED')) <> r.failures
            OR count(*) FILTER (WHERE e.status = 'INTERRUPTED') <> r.interruptions""",
    "a failed occurrence and only that has a dead letter that was not replayed": """
        SELECT o.job_id, o.outcome, d.reason FROM occurrences o
        FULL JOIN dead_letters d USING (job_id, occurrence_at, kind)
        WHERE (o.outcome IS NOT DISTINCT FROM 'FAILED')
           <> (d.job_id IS NOT NULL AND d.state <> 'REPLAYED')""",
    "a job has at most one timer": """
        SELECT job_id FROM (SELECT job_id FROM timers OFFSET 0) AS t
        GROUP BY job_id HAVING count(*) > 1""",
    "only an active job has a timer": """
        SELECT t.job_id, j.state FROM (SELECT job_id FROM timers OFFSET 0) AS t
        LEFT JOIN jobs AS j ON j.id = t.job_id
        WHERE j.state IS DISTINCT FROM 'ACTIVE'""",
    "where a job stood is noted of those that are out of service": """
        SELECT j.id, j.state, p.job_id FROM jobs j FULL JOIN pauses p ON p.job_id = j.id
        WHERE j.id IS NULL OR (p.job_id IS NOT NULL) AND j.state NOT IN ('PAUSED', 'SUSPENDED')
           OR (p.job_id IS NULL) AND j.state = 'PAUSED'""",
    "no nominal time is in the ledger twice": """
        SELECT r.job_id, r.from_at, r.to_at, o.from_at FROM occurrence_ranges r
        JOIN (SELECT job_id, occurrence_at AS from_at, occurrence_at AS to_at FROM occurrences
              WHERE kind = 0
              UNION ALL SELECT job_id, from_at, to_at FROM occurrence_ranges) AS o USING (job_id)
        WHERE o.from_at <= r.to_at AND o.to_at >= r.from_at
          AND (o.from_at, o.to_at) <> (r.from_at, r.to_at)""",
    "what waits has neither timer nor run, is active, and waits for as many as it says": """
        SELECT d.job_id, j.state, d.open FROM dependents d LEFT JOIN jobs j ON j.id = d.job_id
        WHERE j.state IS DISTINCT FROM 'ACTIVE' OR d.open < 1
           OR d.open <> (SELECT count(*) FROM dependencies e WHERE e.child_id = d.job_id)
           OR EXISTS (SELECT FROM runs r WHERE r.job_id = d.job_id AND r.kind = 0)
           OR EXISTS (SELECT FROM timers t WHERE t.job_id = d.job_id)""",
    "an edge leads from an older job to one that waits": """
        SELECT e.* FROM dependencies e LEFT JOIN dependents d ON d.job_id = e.child_id
        WHERE d.job_id IS NULL OR e.parent_id >= e.child_id""",
    "whoever is waited for has not ended, or its end is noted": """
        SELECT e.parent_id FROM dependencies e LEFT JOIN jobs j ON j.id = e.parent_id
        WHERE NOT EXISTS (SELECT FROM endings n WHERE n.parent_id = e.parent_id)
          AND NOT EXISTS (SELECT FROM dependents d WHERE d.job_id = j.id AND d.awaited)
          AND NOT EXISTS (SELECT FROM timers t WHERE t.job_id = j.id AND t.awaited)
          AND NOT EXISTS (SELECT FROM pauses p WHERE p.job_id = j.id AND p.awaited)
          AND NOT EXISTS (SELECT FROM runs r WHERE r.job_id = j.id AND r.kind = 0
                          AND r.awaited)""",
    "no shard has half an owner": """
        SELECT shard FROM shards WHERE (owner_id IS NULL) <> (leased_until IS NULL)""",
}  # fmt: skip


async def broken(store: Store) -> dict[str, list[dict[str | int, object]]]:
    """The invariants that do not hold, with the rows that break them."""
    found = {}
    async with store.transaction() as tx:
        for promise, query in BROKEN.items():
            rows = await tx.rows(query)
            if rows:
                found[promise] = [dict(row) for row in rows]
    return found


WIPED = (
    "runs", "timers", "occurrences", "executions", "dead_letters", "jobs", "targets",
    "dependencies", "dependents", "endings", "limits", "pauses", "occurrence_ranges",
    "schedule_versions", "payload_versions",
)  # fmt: skip


async def wipe(store: Store) -> None:
    """Empty the tables of jobs and runs, for the next order of the same play."""
    async with store.transaction() as tx:
        for table in WIPED:
            await tx.execute(f"DELETE FROM {table}")
        await tx.execute("UPDATE shards SET owner_id = NULL, leased_until = NULL")
