"""What is wrong with the service is listed for those who run it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from noonday.domain.alerts import AlertName, Condition, judge
from noonday.store import Store, alerts
from tests.support.servers import Api

NOW = datetime(2027, 3, 14, 12, tzinfo=UTC)


async def see(store: Store, now: datetime, *found: Condition) -> None:
    """Evaluate at ``now``, as if these were all that is wrong."""
    store.now = now
    async with store.transaction() as tx:
        standing = {one.key: one for one in map(alerts.alert_of, await alerts.every(tx))}
        await alerts.write(tx, judge(standing, found, now))


async def test_alerts_that_fire_come_first_with_all_that_is_known_of_them(api: Api) -> None:
    queue = Condition(AlertName.QUEUE_AGE, "default", 90.5)
    letters = Condition(AlertName.DEAD_LETTERS, "timeout", 11, ("no answer", "answered 503"))
    await see(api.store, NOW - timedelta(minutes=10), letters)
    await see(api.store, NOW - timedelta(minutes=5), letters._replace(subject="expired"))
    await see(api.store, NOW, queue, letters._replace(subject="expired"))
    async with api.store.transaction() as tx:
        await alerts.claim(tx)
    listed = (await api.admin.get("/v1/alerts")).body["data"]
    assert [(one["state"], one["name"], one["labels"]) for one in listed] == [
        ("FIRING", "dead_letters", {"reason": "expired"}),
        ("PENDING", "queue_age", {"lane": "default"}),
        ("RESOLVED", "dead_letters", {"reason": "timeout"}),
    ]
    assert listed[0] | {"summary": "", "action": ""} == {
        "name": "dead_letters",
        "labels": {"reason": "expired"},
        "state": "FIRING",
        "severity": "warning",
        "summary": "",
        "action": "",
        "runbook": "docs/operate.md#dead_letters",
        "value": 11.0,
        "samples": ["no answer", "answered 503"],
        "times": 1,
        "since": "2027-03-14T11:55:00.000Z",
        "last_sent_at": None,
        "unsent_tries": 1,
    }
    since = [one["since"] for one in listed[1:]]
    assert since == ["2027-03-14T12:00:00.000Z", "2027-03-14T11:55:00.000Z"]


async def test_the_list_goes_on_where_a_page_ended(api: Api) -> None:
    letters = Condition(AlertName.DEAD_LETTERS, "timeout", 11)
    reasons = ("expired", "timeout", "transient")
    await see(api.store, NOW, *(letters._replace(subject=reason) for reason in reasons))
    seen, path = [], "/v1/alerts?limit=2"
    while path:
        page = (await api.admin.get(path)).body
        seen += [one["labels"]["reason"] for one in page["data"]]
        path = f"/v1/alerts?limit=2&cursor={page['next_cursor']}" if page["has_more"] else ""
    assert seen == list(reasons)


async def test_that_nobody_evaluates_is_an_alert_although_nobody_evaluates(api: Api) -> None:
    await see(api.store, NOW)
    api.store.now = NOW + timedelta(minutes=1)
    assert (await api.admin.get("/v1/alerts")).body["data"] == []
    api.store.now = NOW + timedelta(minutes=1, seconds=1)
    (alert,) = (await api.admin.get("/v1/alerts")).body["data"]
    assert (alert["name"], alert["state"]) == ("no_scheduler", "FIRING")
    assert (alert["since"], alert["value"]) == ("2027-03-14T12:00:00.000Z", 61.0)
