"""Dead letters over HTTP: lists, groups, one, and discarding."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from noonday.domain.fingerprint import fingerprint
from noonday.domain.roles import Role
from noonday.store import letters, runs
from noonday.store.letters import LetterFilter, LetterPosition
from tests.support.database_locks import value
from tests.support.letters import FINGERPRINT, lie_there
from tests.support.outcomes import bring
from tests.support.servers import NOW, Api


async def lie(api: Api, count: int = 1, **how: Any) -> list[str]:
    """Letters of the tenant, by their ids, oldest first."""
    async with api.store.transaction() as tx:
        return [str(key) for key in await lie_there(tx, count, **how)]


async def listed(api: Api, query: str) -> list[str]:
    answer = await api.admin.get(f"/v1/dlq?{query}")
    assert answer.status == 200, answer
    return [letter["id"] for letter in answer.body["data"]]


async def execute(api: Api, statement: str, *args: object) -> None:
    async with api.store.transaction() as tx:
        await tx.execute(statement, *args)


async def test_a_letter_says_what_was_called_and_answered_and_where_its_payload_is(
    api: Api,
) -> None:
    target = {"type": "http", "url": "https://receiver.example/run?key=s3cret", "method": "PUT"}
    job = await api.admin.create(schedule=NOW, target=target, payload={"n": 12345})
    await bring(api.store, job, "dead")
    response = '{"headers": {"server": "x"}, "body": "no", "truncated": false}'
    await execute(api, "UPDATE dead_letters SET response = $1", response)
    (letter,) = (await api.admin.get("/v1/dlq")).body["data"]
    assert letter == (await api.admin.get(f"/v1/dlq/{letter['id']}")).body
    shown = {
        name: letter[name]
        for name in ("job_id", "state", "reason", "http_status", "error", "attempts", "deaths")
    }
    assert shown == {
        "job_id": job, "state": "DEAD", "reason": "permanent_answer", "http_status": 400,
        "error": "the receiver said no", "attempts": 1, "deaths": 1,
    }  # fmt: skip
    assert letter["fingerprint"] == fingerprint("permanent_answer", 400, "the receiver said no")
    assert letter["first_dead_at"] == letter["dead_at"]
    assert letter["request"] == {
        "method": "PUT", "url": "https://receiver.example/run",
        "content_type": "application/json", "attempts": 1,
    }  # fmt: skip
    assert letter["response"] == {"headers": {"server": "x"}, "body": "no", "truncated": False}
    assert letter["payload"] == {"job_id": job, "version": 1, "bytes": len('{"n":12345}')}
    unset = ("replayed_at", "replay_id", "replay_outcome", "discard")
    assert [letter[name] for name in unset] == [None] * 4


async def test_each_filter_narrows_a_list_to_what_it_names(api: Api) -> None:
    (one,) = await lie(api, reason="timeout", before=timedelta(hours=3))
    (two,) = await lie(api, fingerprint="f", before=timedelta(hours=2))
    (three,) = await lie(api, host="a.b", before=timedelta(hours=1))
    await api.admin.delete(f"/v1/dlq/{two}?reason=old")
    job = (await api.admin.get(f"/v1/dlq/{three}")).body["job_id"]
    at = (await api.admin.get(f"/v1/dlq/{two}")).body["dead_at"]
    assert await listed(api, "") == [three, two, one]
    for query, found in (
        ("reason=timeout", [one]),
        ("fingerprint=f", [two]),
        (f"fingerprint={FINGERPRINT}", [three, one]),
        ("target_host=a.b", [three]),
        (f"job_id={job}", [three]),
        ("state=DEAD", [three, one]),
        ("state=DISCARDED", [two]),
        ("state=REPLAYED", []),
        (f"dead_from={at}", [three, two]),
        (f"dead_to={at}", [one]),
        (f"state=DEAD&dead_to={at}&reason=timeout", [one]),
    ):
        assert await listed(api, query) == found, query
    assert (await api.admin.get("/v1/dlq?state=GONE")).status == 422
    assert (await api.admin.get("/v1/dlq?group_by=colour")).status == 422


async def test_a_filter_that_matches_little_looks_at_a_bounded_number_of_letters(
    api: Api,
) -> None:
    rare = await lie(api, reason="timeout", before=timedelta(hours=2))
    await lie(api, 25)
    before, pages, found = LetterPosition(), 0, []
    async with api.store.transaction() as tx:
        while True:
            by = LetterFilter(reason="timeout")
            page = await letters.dead_letters(tx, 1, before, by, 5, scanned=10)
            found += [str(runs.key_of(row)) for row in page.rows]
            pages += 1
            if page.next_before is None:
                break
            before = page.next_before
    assert (found, pages) == (rare, 3)


async def test_groups_say_how_many_since_when_until_when_and_one_of_the_errors(api: Api) -> None:
    first = await lie(api, 3, reason="timeout", fingerprint="a", before=timedelta(hours=3))
    await lie(api, 2, reason="timeout", fingerprint="b", before=timedelta(hours=2))
    last = await lie(api, 4, reason="transient", fingerprint="c")
    await lie(api, 1, tenant=2)
    answer = (await api.admin.get("/v1/dlq?group_by=reason")).body
    assert [(group["reason"], group["count"]) for group in answer["data"]] == [
        ("timeout", 5),
        ("transient", 4),
    ]
    assert answer["complete"] is True
    assert {group["fingerprint"] for group in answer["data"]} == {None}
    newest = (await api.admin.get(f"/v1/dlq/{last[-1]}")).body
    assert answer["data"][1]["last_seen"] == newest["dead_at"]
    assert answer["data"][1]["sample_error"] == newest["error"]
    assert answer["data"][1]["sample_id"] == newest["id"]
    oldest = (await api.admin.get(f"/v1/dlq/{first[0]}")).body
    assert answer["data"][0]["first_seen"] == oldest["dead_at"] == answer["counted_from"]
    both = (await api.admin.get("/v1/dlq?group_by=reason,fingerprint&reason=timeout")).body
    assert [(group["fingerprint"], group["count"]) for group in both["data"]] == [
        ("a", 3),
        ("b", 2),
    ]
    none = (await api.admin.get("/v1/dlq?group_by=fingerprint&state=REPLAYED")).body
    assert (none["data"], none["complete"]) == ([], True)


async def test_counting_is_bounded_and_says_how_far_it_went(api: Api) -> None:
    made = await lie(api, 10)
    async with api.store.transaction() as tx:
        found = await letters.groups(
            tx, 1, LetterFilter(), reason=True, fingerprint=False, counted=4
        )
    assert ([row["count"] for row in found.rows], found.complete) == ([4], False)
    seventh = (await api.admin.get(f"/v1/dlq/{made[6]}")).body["dead_at"]
    rest = f"group_by=reason&dead_to={seventh}"
    assert (await api.admin.get(f"/v1/dlq?{rest}")).body["data"][0]["count"] == 6


async def test_a_discarded_letter_says_who_and_why_and_stays_so(api: Api) -> None:
    (letter,) = await lie(api)
    operator = await api.client(Role.OPERATOR)
    answer = await operator.delete(f"/v1/dlq/{letter}?reason=a%20mistake")
    assert (answer.status, answer.body["state"]) == (200, "DISCARDED")
    discard = answer.body["discard"]
    assert (discard["by"], discard["reason"]) == (operator.key_id, "a mistake")
    again = await api.admin.delete(f"/v1/dlq/{letter}?reason=another")
    assert again.body == answer.body
    log = (await api.admin.get("/v1/audit")).body["data"]
    done = [entry for entry in log if entry["action"] == "dead_letter.discard"]
    assert [(entry["actor"], entry["object_id"], entry["after"]) for entry in done] == [
        (operator.key_id, letter, {"reason": "a mistake"})
    ]


@pytest.mark.parametrize("query", ["", "?reason=", "?reason=%20", "?because=x"])
async def test_a_discard_needs_a_reason(api: Api, query: str) -> None:
    (letter,) = await lie(api)
    answer = await api.admin.delete(f"/v1/dlq/{letter}{query}")
    assert answer.status == 422
    assert (await api.admin.get(f"/v1/dlq/{letter}")).body["state"] == "DEAD"


async def test_a_letter_whose_run_was_opened_again_is_not_discarded(api: Api) -> None:
    (letter,) = await lie(api)
    await execute(api, "UPDATE dead_letters SET state = 'REPLAYED', replayed_at = now()")
    answer = await api.admin.delete(f"/v1/dlq/{letter}?reason=late")
    assert (answer.status, answer.code) == (409, "not_dead")
    assert await value(api.store, "SELECT discarded_at FROM dead_letters") is None


async def test_letters_of_the_release_before_are_shown_as_well(api: Api) -> None:
    (letter,) = await lie(api)
    await execute(api, "UPDATE dead_letters SET request = NULL, fingerprint = ''")
    shown = (await api.admin.get(f"/v1/dlq/{letter}")).body
    assert shown["request"] == {"method": None, "url": None, "content_type": None, "attempts": 1}
    assert shown["payload"]["bytes"] is None
