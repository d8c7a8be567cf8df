"""Query parameters, read strictly: whatever is not understood is refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from starlette.requests import Request

from noonday.api.problems import Problem
from noonday.api.reading import Fault
from noonday.api.routes import Route

DEFAULT_LIMIT: Final = 50
MOST: Final = 200

LATER: Final = frozenset(("count", "due_from", "due_to", "sort", "tenant_id", "until"))
"""Names that have a meaning, but not in this release."""

_Instant = Annotated[datetime, msgspec.Meta(tz=True)]
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_names(request: Request, route: Route) -> None:
    """Refuse parameters that a route does not have, and those given twice."""
    known = {parameter.name for parameter in route.parameters if parameter.where == "query"}
    faults = []
    for name in request.query_params:
        if name in known:
            if len(request.query_params.getlist(name)) > 1:
                faults.append(_fault(name, "duplicate", "must be given once"))
        elif name in LATER:
            faults.append(_fault(name, "not_supported", "is not carried out in this release"))
        else:
            faults.append(_fault(name, "unknown_parameter", "is not a parameter of this call"))
    _raise(faults)


class Query:
    """Reads parameters one by one and keeps what is wrong with them for :meth:`check`.

    A parameter that is not given is None."""

    def __init__(self, request: Request) -> None:
        self._given = request.query_params
        self._faults: list[Fault] = []

    def text(self, name: str, longest: int = 255) -> str | None:
        """A text without control characters."""
        value = self._given.get(name)
        if value is not None and (len(value) > longest or _CONTROLS.search(value)):
            self._refuse(name, f"must be up to {longest} characters, none of them control")
        return value

    def required(self, name: str, longest: int = 255) -> str:
        """A text that has to be given, and says something."""
        value = self.text(name, longest)
        if not (value or "").strip():
            self._faults.append(_fault(name, "missing", "is required"))
        return value or ""

    def choice(self, name: str, of: Collection[str]) -> str | None:
        """One of several words."""
        value = self._given.get(name)
        if value is not None and value not in of:
            self._refuse(name, f"must be one of {', '.join(of)}")
        return value

    def instant(self, name: str) -> datetime | None:
        """A time with an offset (RFC 3339)."""
        value = self._given.get(name)
        try:
            return None if value is None else msgspec.convert(value, _Instant)
        except msgspec.ValidationError:
            self._refuse(name, "must be a time with an offset, as 2027-03-28T01:00:00Z")
            return None

    def uuid(self, name: str) -> UUID | None:
        """An id of a job."""
        value = self._given.get(name)
        try:
            return None if value is None else msgspec.convert(value, UUID)
        except msgspec.ValidationError:
            self._refuse(name, "must be a UUID")
            return None

    def pair(self, name: str) -> tuple[str, str] | None:
        """``key:value``; the key holds no colon."""
        value = self.text(name, 320)
        key, colon, of_key = (value or "").partition(":")
        if value is not None and not (colon and key):
            self._refuse(name, "must be key:value")
        return None if value is None else (key, of_key)

    def number(self, name: str, least: int, most: int) -> int | None:
        """A whole number."""
        value = self._given.get(name)
        if value is None:
            return None
        if not re.fullmatch("[0-9]{1,9}", value) or not least <= int(value) <= most:
            self._refuse(name, f"must be from {least} to {most}")
            return None
        return int(value)

    def limit(self) -> int:
        """How many items a page has."""
        value = self._given.get("limit", str(DEFAULT_LIMIT))
        if not re.fullmatch("[0-9]{1,3}", value) or not 1 <= int(value) <= MOST:
            self._refuse("limit", f"must be from 1 to {MOST}")
            return DEFAULT_LIMIT
        return int(value)

    def cursor(self) -> str | None:
        """Where the page before ended."""
        return self._given.get("cursor")

    def check(self) -> None:
        """Raise one problem with everything that was refused."""
        _raise(self._faults)

    def _refuse(self, name: str, detail: str) -> None:
        self._faults.append(_fault(name, "invalid", detail))


def _fault(name: str, code: str, detail: str) -> Fault:
    return Fault(f"/query/{name.replace('~', '~0').replace('/', '~1')}", code, detail)


def _raise(faults: list[Fault]) -> None:
    if faults:
        code = "not_supported" if all(f.code == "not_supported" for f in faults) else "invalid"
        raise Problem(422, code, "The query has faults; see errors.", errors=faults)
