"""Ids in paths. What cannot be an id is answered like an id that nothing has."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from starlette.requests import Request

from noonday.api.problems import not_found
from noonday.domain.model import RunKey, parse_run_id

_JOB_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NAME: Final = re.compile(r"[!-~]{1,255}")


def job_id_of(request: Request, what: str = "No job") -> UUID:
    """The job, or what else has such an id, that the path names; a 404 for what is not an id."""
    text = request.path_params["id"]
    if not _JOB_ID.fullmatch(text):
        raise not_found(what)
    return UUID(text)


def run_key_of(request: Request, what: str = "No run") -> RunKey:
    """The run that the path names; a 404 for what is not an id."""
    key = parse_run_id(request.path_params["id"])
    if key is None:
        raise not_found(what)
    return key


def name_of(request: Request, what: str, parameter: str = "name") -> str:
    """A name in the path; a 404 for what no name looks like."""
    text: str = request.path_params[parameter]
    if not _NAME.fullmatch(text):
        raise not_found(what)
    return text
