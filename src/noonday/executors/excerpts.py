"""What is kept of an answer for people: a few of its headers, and the beginning of its text."""

from __future__ import annotations

import asyncio
import codecs
import re
from contextlib import suppress
from typing import Final

from multidict import CIMultiDictProxy

from noonday.domain.model import Attempt, Excerpt
from noonday.executors.echoes import Echoes
from noonday.executors.wire import Response

MAX_BODY_READ: Final = 64 * 1024
"""No more is read of an answer's body; a longer one costs the connection, not the success."""
MAX_TEXT: Final = 1_000
"""Bytes of a body that are kept."""
MAX_VALUE: Final = 200
_LOOKED_AT: Final = MAX_TEXT + 20 * 1024
_PATIENCE_SEC: Final = 0.25
"""How long the beginning of a body is waited for that is too long to be read."""

HEADERS: Final = (
    "allow",
    "cf-ray",
    "content-encoding",
    "content-length",
    "content-type",
    "retry-after",
    "server",
    "via",
    "www-authenticate",
    "x-amzn-requestid",
    "x-correlation-id",
    "x-request-id",
)
"""All that is kept, and nothing that may hold a secret: no cookies, no location."""
_ASIDE: Final = frozenset(
    ("content-encoding", "content-length", "content-type", "server", "via")
)  # fmt: skip
"""Not worth keeping by themselves when all went well."""

_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([a-z0-9_-]{3,20})""", re.IGNORECASE)
_CHARSETS: Final = (
    {name: name for name in ("utf-16le", "utf-16be", "koi8-r", "koi8-u", "big5")}
    | {name: name for name in ("gb18030", "euc-jp", "euc-kr")}
    | {f"iso-8859-{part}": f"iso-8859-{part}" for part in (*range(2, 12), 13, 14, 15, 16)}
    | {f"windows-125{part}": f"cp125{part}" for part in range(9)}
    | {"iso-8859-1": "cp1252", "latin1": "cp1252", "latin-1": "cp1252", "shift_jis": "cp932"}
    | {"gb2312": "gb18030", "gbk": "gb18030", "utf-16": "utf-16le"}
)
"""The rest is read as UTF-8. A closed table: Python remembers each wrong name for ever."""
_ODD: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
"""What no text has, or only by accident."""
_PICTURES: Final = ("image/", "audio/", "video/", "font/")


class Body:
    """The body of an answer, as far as it was read."""

    __slots__ = ("begins", "count", "needless", "whole")

    def __init__(self) -> None:
        self.begins = b""
        self.count = 0
        """Bytes that were read."""
        self.whole = False
        self.needless = False
        """Whether how it goes on is of no more interest."""

    async def read(self, response: Response) -> None:
        """Read to the end, so that the connection can be used again, or to the limit."""
        if (response.content_length or 0) > MAX_BODY_READ:
            self.needless = True
            with suppress(Exception):
                async with asyncio.timeout(_PATIENCE_SEC):
                    await self._take(response, _LOOKED_AT)
            return
        await self._take(response, MAX_BODY_READ)
        self.whole = response.content.at_eof()
        self.needless = True

    async def _take(self, response: Response, limit: int) -> None:
        while self.count < limit and (chunk := await response.content.readany()):
            self.count += len(chunk)
            if len(self.begins) < _LOOKED_AT:
                self.begins += chunk[: _LOOKED_AT - len(self.begins)]


def excerpt(
    response: Response, body: Body, attempt: Attempt, own: dict[str, str]
) -> Excerpt | None:
    """What is kept of an answer; None when there is nothing beside its status.

    Neither a credential nor the payload of ``attempt`` is in it, nor a signature that stands in
    ``own``, though the answer repeat them.
    """
    headers = _chosen(response.headers)
    if not body.count and _says_nothing(response.status, headers):
        return None
    echoes = Echoes(attempt, own)
    text = _shown(headers, body, response.content_length, echoes)
    shown = {name: _clean(_hidden(value, echoes)).strip() for name, value in headers.items()}
    if not text and _says_nothing(response.status, headers):
        return None
    return Excerpt(shown, text, body.count > MAX_TEXT or not body.whole)


def _says_nothing(status: int, headers: dict[str, str]) -> bool:
    return not headers or (status < 300 and headers.keys() <= _ASIDE)


def _chosen(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    chosen = {name: ", ".join(headers.getall(name)) for name in HEADERS if name in headers}
    if chosen.get("content-length") == "0":
        del chosen["content-length"]
    return chosen


def _hidden(value: str, echoes: Echoes) -> str:
    if len(value) > MAX_VALUE:
        value = value[: MAX_VALUE + echoes.ahead]
    return echoes.hide(value, MAX_VALUE)


def _shown(headers: dict[str, str], body: Body, length: int | None, echoes: Echoes) -> str:
    if not body.count:
        return ""
    size = f"{body.count:,} bytes"
    if not body.whole:
        size = f"{body.count:,} bytes or more" if length is None else f"{length:,} bytes"
    if headers.get("content-encoding", "identity").lower() != "identity":
        return f"(compressed, {size})"
    media_type = headers.get("content-type", "").lower()
    if media_type.startswith(_PICTURES):
        return f"(binary, {size})"
    ahead = echoes.ahead if body.count > MAX_TEXT else 0
    head, tail = _decoded(body, media_type, ahead)
    if len(_ODD.findall(head)) > 2 + len(head) // 8:
        return f"(binary, {size})"
    text = echoes.hide(head + tail, len(head)).removeprefix("\ufeff")
    return _clean(text.replace("\r\n", "\n").replace("\r", "\n")).rstrip()


def _decoded(body: Body, media_type: str, ahead: int) -> tuple[str, str]:
    """What is kept of the text, and some of what follows it. No cut goes through a character."""
    given = _CHARSET.search(media_type)
    charset = _CHARSETS.get(given[1] if given else "", "utf-8")
    decoder = codecs.getincrementaldecoder(charset)("replace")
    head = decoder.decode(body.begins[:MAX_TEXT], body.whole and body.count <= MAX_TEXT)
    tail = body.begins[MAX_TEXT : MAX_TEXT + 4 * ahead]
    return head, decoder.decode(tail)[:ahead] if tail else ""


def _clean(text: str) -> str:
    """No control, escape or invisible characters, but lines and columns as they are."""
    if text.isprintable():
        return text
    return "".join([mark if mark.isprintable() or mark in "\n\t" else " " for mark in text])
