"""What an answer repeats of its request never gets into what is kept of it."""

from __future__ import annotations

import base64
import html
import json
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noonday.executors.echoes import HIDDEN, RUN, Echoes
from tests.executors.attempts import attempt

TOKEN = 'sk_live_"4eC39HqLyjWDarjtT1zdp7dc/+='
PAYLOAD = json.dumps({"card": "4111 1111 1111 1111", "name": "Zoë", "note": "left at the door"})


def hide(
    text: str, *, headers: dict[str, str] | None = None, body: str = "", query: str = ""
) -> str:
    made = attempt(f"https://a.b/x?{query}", headers=headers or {}, body=body.encode())
    return Echoes(made, {"X-Scheduler-Signature": f"t=1800000000,v1={'ab' * 32}"}).hide(
        text, len(text)
    )


FORMS: list[Callable[[str], str]] = [
    str,
    lambda text: json.dumps({"you said": text}),
    lambda text: json.dumps(json.dumps([text])),
    lambda text: json.dumps(text).replace("/", "\\/"),
    html.escape,
    lambda text: quote(text, safe=""),
    lambda text: f"<b>{text}</b> and once more {text}",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "header", ["Authorization", "cookie", "X-Api-Key", "x-hub-signature", "X-Auth-Token"]
)
def test_a_credential_is_hidden_in_whatever_form_it_is_repeated(
    form: Callable[[str], str], header: str
) -> None:
    shown = hide(f"before {form(TOKEN)} after", headers={header: TOKEN})
    assert "4eC39HqLyj" not in shown
    assert HIDDEN in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (f"Bearer {TOKEN}", TOKEN),
        (f"session={TOKEN}; theme=dark", TOKEN),
        (f'Digest username="me", response="{"f" * 32}"', "f" * 32),
        ("Basic " + base64.b64encode(b"me:hunter2secret").decode(), "hunter2secret"),
        ("Basic " + base64.b64encode(b"me:hunter2secret").decode(), "me:hunter2secret"),
    ],
)
def test_what_is_secret_within_a_credential_is_hidden_by_itself(header: str, said: str) -> None:
    assert hide(f"no access for {said}!", headers={"authorization": header}) == (
        f"no access for {HIDDEN}!"
    )


def test_words_that_are_no_secret_stay() -> None:
    headers = {"Authorization": "Bearer abcdefgh", "X-Team": "payments", "x-auth": "no"}
    text = "Bearer token of payments is no good at 1800000000"
    assert hide(text, headers=headers, query="a=1&b=no") == text


def test_signatures_and_the_values_of_a_query_are_hidden() -> None:
    assert hide(f"wrong: {'ab' * 32}") == f"wrong: {HIDDEN}"
    text = "cannot POST /x?token=tok%2F1234&b=2 (tok/1234)"
    assert hide(text, query="token=tok%2F1234&b=2") == (
        f"cannot POST /x?token={HIDDEN}&b=2 ({HIDDEN})"
    )


@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda text: json.dumps({"data": text, "ok": False}, ensure_ascii=False),
        lambda text: json.dumps(json.loads(text), indent=4, ensure_ascii=False),
        lambda text: json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False),
        lambda text: f"invalid: {text[:40]}",
        lambda text: f"invalid: {text[-45:]} at 7",
    ],
)
def test_the_payload_is_hidden_as_it_stands_quoted_laid_out_anew_or_in_part(
    form: Callable[[str], str],
) -> None:
    shown = hide(f"[{form(PAYLOAD)}]", body=PAYLOAD)
    assert HIDDEN in shown
    assert "4111" not in shown
    assert "the door" not in shown


def test_a_short_payload_is_hidden_as_a_whole_and_common_words_are_not() -> None:
    assert hide('got {"n":12345}', body='{"n": 12345}') == f"got {HIDDEN}"
    assert hide("all ok", body='"ok"') == "all ok"
    assert hide('{"card": "missing"}', body=PAYLOAD) == '{"card": "missing"}'


def test_nothing_is_shown_behind_the_cut_and_a_secret_across_it_is_hidden() -> None:
    echoes = Echoes(attempt("https://a.b/", headers={"Cookie": "s3cret-s3cret"}, body=b""), {})
    assert echoes.ahead >= len("s3cret-s3cret")
    text = "x" * 10 + "s3cret-s3cret and more"
    assert echoes.hide(text, 14) == "x" * 10 + HIDDEN
    assert echoes.hide(text, 10) == "x" * 10
    assert echoes.hide(text, len(text)) == "x" * 10 + HIDDEN + " and more"


letters = st.text("ab{}:", max_size=120)


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(letters, letters, letters)
@example("a" * 120, "", "a" * 100)
def test_no_run_of_a_payload_is_left_and_nothing_else_is_lost(
    before: str, after: str, payload: str
) -> None:
    text = f"{before}{payload}{after}"
    shown = hide(text, body=payload)
    run = min(RUN, len(payload))
    if run < 8:
        assert shown == text
        return
    assert HIDDEN in shown
    for piece in shown.split(HIDDEN):
        assert piece in text
        assert not any(payload[at : at + run] in piece for at in range(len(payload) - run + 1))


def test_a_hostile_answer_to_a_great_payload_takes_a_bounded_time() -> None:
    blocks = [f"{n % 7:x}" * 16 for n in range(65_536)]
    began = time.process_time()
    shown = hide("".join(blocks[:60]), body="".join(blocks))
    assert shown == HIDDEN
    assert hide("0" * 16 + "-".join(blocks[:60]), body="".join(blocks))
    assert time.process_time() - began < 5
