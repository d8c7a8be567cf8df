"""A scheduler that is killed between a notice and its note of it."""

from __future__ import annotations

import json

from tests.support.cluster import Cluster
from tests.support.receivers import Answer

PATH = "/alerts"
DEAD = """
INSERT INTO dead_letters (job_id, occurrence_at, kind, tenant_id, reason, error, attempts,
                          lease_version, payload_version, target_host, dead_at)
SELECT gen_random_uuid(), now(), 0, 1, 'timeout', 'no answer', 1, 1, 1, 'a.example', now()
FROM generate_series(1, 5000)
"""
LEAVE = "UPDATE shards SET owner_id = NULL, leased_until = NULL"
DUE = "UPDATE alerts SET tell_at = now() WHERE told_at IS NULL RETURNING tries"
TOLD = "SELECT count(*) FROM alerts WHERE told_at IS NOT NULL AND state = 'FIRING' AND tries = 0"


async def test_whoever_takes_over_tells_again_what_nobody_knows_to_have_been_told(
    cluster: Cluster,
) -> None:
    url = cluster.receiver.url + PATH
    cluster.receiver.answer(PATH, Answer(hold=True), 200)
    first = cluster.add("scheduler", alert_url=url)
    await first.ready()
    await cluster.execute(DEAD)
    await cluster.receiver.wait_for(1, 15, path=PATH)
    first.kill()
    await cluster.execute(LEAVE)
    assert await cluster.value(DUE) == 1
    second = cluster.add("scheduler", alert_url=url)
    await second.ready()
    assert await cluster.until(TOLD) == 1
    notices = [json.loads(request.body) for request in cluster.receiver.of(PATH)]
    assert len(notices) == 2
    assert {len(notice["alerts"]) for notice in notices} == {1}
    assert notices[0]["alerts"][0]["fingerprint"] == notices[1]["alerts"][0]["fingerprint"]
    assert await second.metric("noonday_shards_owned") > 0
    assert await second.metric("noonday_alert_notices_total") == 1
    await cluster.until("SELECT vitals IS NOT NULL FROM workers WHERE pid = $1", second.pid)
