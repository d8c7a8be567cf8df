"""What an answer repeats of its request: secrets and payload are taken out before it is kept."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl, quote

from noonday.domain.model import Attempt
from noonday.domain.target import carries_credentials

HIDDEN: Final = "…"
RUN: Final = 24
"""So many characters in a row that stand in the payload too are no coincidence."""

_SHORTEST_PAYLOAD: Final = 8
_SHORTEST_SECRET: Final = 4
_SHORTEST_PART: Final = 6
_DIGEST: Final = 40
"""No signature is shorter; the time beside it is no secret."""
_SIGNATURES: Final = ("X-Scheduler-Signature", "webhook-signature")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]* +")

# All is compared without what quoting as JSON, or laying it out anew, adds or takes away.
_LOOSE: Final = b' \t\r\n\\"'
_NO_LOOSE: Final = dict.fromkeys(_LOOSE)
_MARK: Final = re.compile(r"""\\u([0-9a-fA-F]{4})|[^ \t\r\n\\"]""")

_GREAT: Final = 20_000
"""From so long a payload on, its blocks are looked up in a set and not in the text."""

Span = tuple[int, int]


class Echoes:
    """Knows what one request said that must not be kept.

    Args:
        attempt: Gives the payload, the customer's headers and the target's URL.
        sent: Our headers of the request as it was sent, the signatures too.
    """

    def __init__(self, attempt: Attempt, sent: Mapping[str, str]) -> None:
        self._attempt = attempt
        self._sent = sent

    @property
    def ahead(self) -> int:
        """How many characters behind the last one that is kept are to be looked at."""
        return 4 * RUN + 2 * max(map(len, self._secrets | self._signatures), default=0)

    def hide(self, text: str, upto: int) -> str:
        """The first ``upto`` characters of ``text``, echoes replaced by ``HIDDEN``.

        The rest of the text is looked at, to know what begins before ``upto``.
        """
        if len(text) < _SHORTEST_SECRET:
            return text[:upto]
        flat = text.translate(_NO_LOOSE)
        places: list[Span] = []
        if "\\u" in text:
            flat, places = _placed(text)
        spans = sorted((*self._repeated(flat), *self._quoted(flat)))
        if not spans:
            return text[:upto]
        if not places:
            flat, places = _placed(text)
        kept: list[str] = []
        end = 0
        for first, last in _joined(spans):
            start = places[first][0]
            if start >= upto:
                break
            kept += text[end:start], HIDDEN
            end = places[last - 1][1]
        kept.append(text[end:upto])
        return "".join(kept)

    def _repeated(self, flat: str) -> Iterator[Span]:
        # Most answers are too short to hold one: then none is taken apart.
        for secret in self._secrets | (self._signatures if len(flat) >= _DIGEST else set()):
            place = flat.find(secret)
            while place >= 0:
                yield place, place + len(secret)
                place = flat.find(secret, place + 1)

    def _quoted(self, flat: str) -> Iterator[Span]:
        """Where ``flat`` has ``RUN`` characters in a row of the payload, or all of a short one."""
        if not self._attempt.body or len(flat) < _SHORTEST_PAYLOAD:
            return
        run = min(RUN, len(self._said))
        if run < _SHORTEST_PAYLOAD or len(flat) < run:
            return
        found = _runs(flat, self._said, run)
        if not found:
            return
        for place in range(len(flat) - run + 1):
            if flat[place : place + run] in found:
                yield place, place + run

    @cached_property
    def _secrets(self) -> set[str]:
        return set(_secrets(self._attempt))

    @cached_property
    def _signatures(self) -> set[str]:
        values = [self._sent[name] for name in _SIGNATURES if name in self._sent]
        parts = (part for value in values for part in (value, *_parts(value)))
        return {form for part in parts for form in _forms(part, _DIGEST)}

    @cached_property
    def _said(self) -> str:
        payload = self._attempt.body
        if b"\\u" in payload and payload.isascii():
            return payload.decode("raw_unicode_escape", "replace").translate(_NO_LOOSE)
        return payload.translate(None, _LOOSE).decode("utf-8", "replace")


def _placed(text: str) -> tuple[str, list[Span]]:
    """The text as it is compared, and where each of its characters stands."""
    marks = [(_mark(found), found.span()) for found in _MARK.finditer(text)]
    return "".join([mark for mark, _ in marks]), [place for _, place in marks]


def _mark(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[0]


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, without those that touch or overlap."""
    joined: list[Span] = []
    for first, last in spans:
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def _runs(flat: str, said: str, run: int) -> set[str]:
    """The runs that both have. Any such run has a whole block of ``said`` in it, and those are
    few: the time this takes does not depend on what a stranger answers."""
    size = (run + 1) // 2
    blocks: str | set[str] = flat
    if len(said) > _GREAT:
        blocks = {flat[place : place + size] for place in range(len(flat) - size + 1)}
    hits = [
        place
        for place in range(0, len(said) - size + 1, size)
        if said[place : place + size] in blocks
    ]
    if not hits:
        return set()
    runs = {flat[place : place + run] for place in range(len(flat) - run + 1)}
    return {
        said[start : start + run]
        for place in hits
        for start in range(max(place + size - run, 0), place + 1)
        if said[start : start + run] in runs
    }


def _secrets(attempt: Attempt) -> Iterator[str]:
    """The customer's secrets in the forms in which answers repeat them, as ``flat`` has them."""
    for name, value in attempt.headers.items():
        if carries_credentials(name):
            yield from _forms(value, _SHORTEST_SECRET)
            for part in _parts(value):
                yield from _forms(part, _SHORTEST_PART)
    query = attempt.target.url.partition("?")[2]
    if query:
        raw = (pair.partition("=")[2] for pair in query.split("&"))
        for value in (*raw, *(value for _, value in parse_qsl(query))):
            yield from _forms(value, _SHORTEST_PART)


def _forms(secret: str, shortest: int) -> Iterator[str]:
    alike = (secret,) if secret.isalnum() else (secret, html.escape(secret), quote(secret, safe=""))
    for form in alike:
        flat = form.translate(_NO_LOOSE)
        if len(flat) >= shortest:
            yield flat


def _parts(value: str) -> Iterator[str]:
    """What is secret by itself: a token without its scheme, a cookie without its name."""
    scheme = _SCHEME.match(value)
    rest = value[scheme.end() :] if scheme else value
    if scheme and scheme[0].strip().lower() == "basic":
        yield from _basic(rest)
    for word in re.split(r"[\s;,]+", rest):
        yield word
        yield word.partition("=")[2]


def _basic(token: str) -> Iterator[str]:
    try:
        pair = base64.b64decode(token, validate=True).decode("utf-8", "replace")
    except ValueError:
        return
    yield pair
    yield pair.partition(":")[2]
