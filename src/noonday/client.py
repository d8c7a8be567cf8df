"""The Python client, in two colours: :class:`Client` and :class:`AsyncClient`.

Both have the same calls. They answer with the API's JSON documents as dictionaries, and lists of
things are iterated over page by page as they are consumed::

    with Client("http://127.0.0.1:8000", key) as noonday:
        job = noonday.jobs.create({"schedule": {"type": "once"}, "target": {...}})
        for execution in noonday.jobs.executions(job["id"]):
            ...

Jobs are created and triggered under an ``Idempotency-Key``, so that a request whose answer was
lost is sent again without being carried out twice. What can be sent again safely is, a bounded
number of times, when the server cannot be reached or asks for patience (429, 503,
``Retry-After``).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit
from uuid import uuid4

import httpx2

Document: TypeAlias = dict[str, Any]
"""A JSON object of the API."""

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
FIRST_WAIT_SEC: Final = 0.2

_D_co = TypeVar("_D_co", covariant=True)
_I_co = TypeVar("_I_co", covariant=True)


class NoondayClientError(Exception):
    """Root of what this client raises."""


class NoondayConnectionError(NoondayClientError):
    """No answer was had: the server cannot be reached, or was too slow.

    Unless the call can be repeated safely it may have been carried out.
    """


class NoondayApiError(NoondayClientError):
    """The server refused. ``code`` is for programs, ``detail`` for people.

    ``errors`` lists each fault of an invalid body: ``{"pointer": …, "code": …, "detail": …}``.
    ``request_id`` finds the request in the server's logs.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[Mapping[str, str]] = (),
        request_id: str | None = None,
    ) -> None:
        faults = [f"{fault.get('pointer')}: {fault.get('detail')}" for fault in errors]
        super().__init__(" ".join([f"{status} {code}: {detail}", *faults]))
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.request_id = request_id


@dataclass(frozen=True)
class Call:
    """A request before it is sent. ``repeatable``: sent twice it has the effect of once."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    idempotency_key: str | None = None
    if_match: str | None = None
    repeatable: bool = False

    def arguments(self) -> dict[str, Any]:
        """What the HTTP library is called with."""
        arguments: dict[str, Any] = {"method": self.method, "url": self.path, "headers": {}}
        arguments["params"] = {
            name: _text(value) for name, value in self.query.items() if value is not None
        }
        if self.body is not None:
            arguments["content"] = self.body if isinstance(self.body, bytes) else _encode(self.body)
            arguments["headers"]["Content-Type"] = "application/json"
        if self.idempotency_key is not None:
            arguments["headers"]["Idempotency-Key"] = self.idempotency_key
        if self.if_match is not None:
            arguments["headers"]["If-Match"] = self.if_match
        return arguments


def _read(path: str, query: Mapping[str, Any] | None = None) -> Call:
    return Call("GET", path, query or {}, repeatable=True)


class _Sender(Protocol[_D_co, _I_co]):
    def send(self, call: Call) -> _D_co: ...

    def pages(self, call: Call) -> _I_co: ...


class Resource(Generic[_D_co, _I_co]):
    """A noun of the API. Its calls answer with a document, or with an iterator over a list."""

    def __init__(self, sender: _Sender[_D_co, _I_co]) -> None:
        self._send = sender.send
        self._pages = sender.pages


class Jobs(Resource[_D_co, _I_co]):
    """What is to run, and when."""

    def create(
        self, job: Mapping[str, Any] | bytes, *, idempotency_key: str | None = None
    ) -> _D_co:
        """Create a job; when this returns it is durable.

        ``job`` is the document of ``POST /v1/jobs``; instants may be aware datetimes, and one
        given as bytes is sent as it is. Give an ``idempotency_key`` of your own to be safe over
        restarts of your process, too.
        """
        key = idempotency_key or str(uuid4())
        return self._send(Call("POST", "/v1/jobs", body=job, idempotency_key=key, repeatable=True))

    def create_many(
        self,
        jobs: Sequence[Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str] | None = None,
        atomic: bool = False,
    ) -> _D_co:
        """Create up to 1,000 jobs; the answer has a result for each, in order.

        With ``atomic`` all are created or none is. Each job has a key, as with :meth:`create`.
        """
        keys = idempotency_keys or [str(uuid4()) for _ in jobs]
        items = [{"idempotency_key": key, "job": job} for key, job in zip(keys, jobs, strict=True)]
        body = {"atomic": atomic, "jobs": items}
        return self._send(Call("POST", "/v1/jobs:batch", body=body, repeatable=True))

    def get(self, job_id: str) -> _D_co:
        """A job: what was asked for, how it stands, when it fires next."""
        return self._send(_read(f"/v1/jobs/{_segment(job_id)}"))

    def list(self, **filters: Any) -> _I_co:
        """Jobs, newest first, by the filters of ``GET /v1/jobs``."""
        return self._pages(_read("/v1/jobs", filters))

    def delete(self, job_id: str, *, running: str = "finish") -> _D_co:
        """Cancel all future runs. ``running="cancel"`` has attempts under way cut off as well."""
        path = f"/v1/jobs/{_segment(job_id)}"
        query = {} if running == "finish" else {"running": running}
        return self._send(Call("DELETE", path, query=query, repeatable=True))

    def cancel_many(
        self,
        *,
        running: str = "finish",
        reason: str = "",
        idempotency_key: str | None = None,
        **filter: Any,
    ) -> _D_co:
        """Cancel all jobs that match a filter, as an operation; see ``operations``."""
        return self._send(
            Call(
                "POST",
                "/v1/jobs:cancel",
                body={"filter": filter, "running": running, "reason": reason},
                idempotency_key=idempotency_key or str(uuid4()),
                repeatable=True,
            )
        )

    def trigger(
        self, job_id: str, *, reason: str = "", idempotency_key: str | None = None
    ) -> _D_co:
        """Run now, beside the schedule; ``reason`` goes into the audit log."""
        return self._send(
            Call(
                "POST",
                f"/v1/jobs/{_segment(job_id)}/trigger",
                body={"reason": reason},
                idempotency_key=idempotency_key or str(uuid4()),
                repeatable=True,
            )
        )

    def backfill(
        self,
        job_id: str,
        *,
        from_at: datetime | str,
        to_at: datetime | str,
        idempotency_key: str | None = None,
        **terms: Any,
    ) -> _D_co:
        """Run the nominal times of a past range of a recurring job that have not run, as an
        operation; see ``operations``. Both ends are included.

        ``terms`` are the other fields of ``POST /v1/jobs/{id}/backfill``: ``rate_per_sec``,
        ``lane``, ``priority``, ``reason``. With ``dry_run=True`` they are counted only.
        """
        return self._send(
            Call(
                "POST",
                f"/v1/jobs/{_segment(job_id)}/backfill",
                body={"from": from_at, "to": to_at, **terms},
                idempotency_key=idempotency_key or str(uuid4()),
                repeatable=True,
            )
        )

    def update(
        self,
        job_id: str,
        changes: Mapping[str, Any] | bytes,
        *,
        version: int | None = None,
        dry_run: bool = False,
    ) -> _D_co:
        """Change a job by a merge patch: what is given replaces what is there, None takes it away.

        With ``version`` only if the job still has that one (else 412), without it whichever it has.
        ``dry_run`` changes nothing. The answer's ``changes`` say what it comes to.
        """
        tag = "*" if version is None else f'"v{version}"'
        query = {"dry_run": "true"} if dry_run else {}
        path = f"/v1/jobs/{_segment(job_id)}"
        again = version is None or dry_run  # sent twice, the second would find another version
        return self._send(
            Call("PATCH", path, query=query, body=changes, if_match=tag, repeatable=again)
        )

    def pause(self, job_id: str, *, reason: str = "", until: datetime | str | None = None) -> _D_co:
        """Fire nothing of a job until it is resumed, or until then."""
        body = {"reason": reason, "until": until}
        path = f"/v1/jobs/{_segment(job_id)}/pause"
        return self._send(Call("POST", path, body=body, repeatable=True))

    def resume(self, job_id: str, *, reason: str = "", catch_up: bool = False) -> _D_co:
        """Let a job fire again; with ``catch_up`` it decides about what it left out, as after an
        outage."""
        body = {"reason": reason, "catch_up": catch_up}
        path = f"/v1/jobs/{_segment(job_id)}/resume"
        return self._send(Call("POST", path, body=body, repeatable=True))

    def explain(self, job_id: str) -> _D_co:
        """Why the job is, or is not, running now."""
        return self._send(_read(f"/v1/jobs/{_segment(job_id)}/explain"))

    def executions(self, job_id: str, **filters: Any) -> _I_co:
        """Attempts, newest first."""
        return self._pages(_read(f"/v1/jobs/{_segment(job_id)}/executions", filters))

    def occurrences(self, job_id: str, **filters: Any) -> _I_co:
        """The ledger: what fired and how late, what was skipped or missed and why."""
        return self._pages(_read(f"/v1/jobs/{_segment(job_id)}/occurrences", filters))


class Runs(Resource[_D_co, _I_co]):
    """Occurrences being carried out."""

    def get(self, run_id: str) -> _D_co:
        """One run, also after it has ended."""
        return self._send(_read(f"/v1/runs/{_segment(run_id)}"))

    def cancel(self, run_id: str, *, reason: str = "", dead_letter: bool = False) -> _D_co:
        """Cancel a run, or have it cut off where it is under way. ``dead_letter`` sets it aside
        as one. Raises :class:`NoondayApiError` (409) when it has ended otherwise."""
        path = f"/v1/runs/{_segment(run_id)}/cancel"
        body = {"reason": reason, "dead_letter": dead_letter}
        return self._send(Call("POST", path, body=body, repeatable=True))


class DeadLetters(Resource[_D_co, _I_co]):
    """Runs that will not be tried again by themselves."""

    def get(self, run_id: str) -> _D_co:
        """One dead letter."""
        return self._send(_read(f"/v1/dlq/{_segment(run_id)}"))

    def list(self, **filters: Any) -> _I_co:
        """Dead letters, by the filters of ``GET /v1/dlq``."""
        return self._pages(_read("/v1/dlq", filters))

    def groups(self, by: str = "reason,fingerprint", **filters: Any) -> _D_co:
        """How many there are of each kind: by ``reason``, ``fingerprint``, or both."""
        return self._send(_read("/v1/dlq", {**filters, "group_by": by}))

    def discard(self, run_id: str, *, reason: str) -> _D_co:
        """Lay one aside for good."""
        query = {"reason": reason}
        return self._send(Call("DELETE", f"/v1/dlq/{_segment(run_id)}", query, repeatable=True))


class Replays(Resource[_D_co, _I_co]):
    """Dead letters that are reopened behind a gate."""

    def create(self, replay: Mapping[str, Any], *, idempotency_key: str | None = None) -> _D_co:
        """Start one; ``replay`` is the document of ``POST /v1/dlq/replays``.

        With ``dry_run`` in it nothing is started, and the answer says what there is.
        """
        key = idempotency_key or str(uuid4())
        call = Call("POST", "/v1/dlq/replays", body=replay, idempotency_key=key, repeatable=True)
        return self._send(call)

    def get(self, replay_id: str) -> _D_co:
        """How far one is."""
        return self._send(_read(f"/v1/dlq/replays/{_segment(replay_id)}"))

    def list(self, **filters: Any) -> _I_co:
        """Replays, newest first."""
        return self._pages(_read("/v1/dlq/replays", filters))

    def pause(self, replay_id: str, *, reason: str = "") -> _D_co:
        """Reopen no more for now."""
        return self._turn(replay_id, "pause", reason)

    def resume(self, replay_id: str, *, reason: str = "") -> _D_co:
        """Go on; after a stop with a new canary."""
        return self._turn(replay_id, "resume", reason)

    def abort(self, replay_id: str, *, reason: str = "") -> _D_co:
        """Reopen no more for good."""
        return self._turn(replay_id, "abort", reason)

    def _turn(self, replay_id: str, verb: str, reason: str) -> _D_co:
        path = f"/v1/dlq/replays/{_segment(replay_id)}/{verb}"
        return self._send(Call("POST", path, body={"reason": reason}, repeatable=True))


class Schedules(Resource[_D_co, _I_co]):
    """Schedules without jobs."""

    def preview(
        self,
        schedule: Mapping[str, Any],
        *,
        count: int = 5,
        after: datetime | str | None = None,
        lane: str | None = None,
    ) -> _D_co:
        """What a schedule would do, in English and by its next occurrences; nothing is created.
        ``lane`` is that of such a job, which may have a jitter for it."""
        body: Document = {"schedule": schedule, "count": count, "after": after}
        if lane is not None:
            body["lane"] = lane
        return self._send(Call("POST", "/v1/schedules/preview", body=body, repeatable=True))


class Targets(Resource[_D_co, _I_co]):
    """What is called, and whether it is left alone."""

    def list(self, **filters: Any) -> _I_co:
        """Targets whose breaker has opened before or whose host has a rate, by the filters of
        ``GET /v1/targets``."""
        return self._pages(_read("/v1/targets", filters))

    def resume(self, host: str) -> _D_co:
        """Let the runs of a host go on, those to its suspended URLs too."""
        return self._send(Call("POST", f"/v1/targets/{_segment(host)}/resume"))


class Lanes(Resource[_D_co, _I_co]):
    """Streams of runs with limits of their own."""

    def list(self) -> _I_co:
        """All lanes, by name."""
        return self._pages(_read("/v1/lanes"))

    def put(self, name: str, **settings: Any) -> _D_co:
        """For admins: make a lane, or change one: ``weight``, ``max_running``, ``ageing_sec``,
        ``objective_sec``, ``sheddable``, ``jitter_sec``. What is not given stays; None takes a
        limit away."""
        return self._send(Call("PUT", _lane(name), body=settings, repeatable=True))

    def delete(self, name: str) -> _D_co:
        """For admins: delete a lane that is not ready-made and that no job belongs to."""
        return self._send(Call("DELETE", _lane(name), repeatable=True))

    def pause(self, name: str, reason: str = "") -> _D_co:
        """Start nothing more of a lane."""
        call = Call("POST", f"{_lane(name)}/pause", body={"reason": reason}, repeatable=True)
        return self._send(call)

    def resume(self, name: str, reason: str = "") -> _D_co:
        """Let the runs of a lane start again."""
        call = Call("POST", f"{_lane(name)}/resume", body={"reason": reason}, repeatable=True)
        return self._send(call)


def _lane(name: str) -> str:
    return f"/v1/lanes/{_segment(name)}"


class Limits(Resource[_D_co, _I_co]):
    """What the tenant's hosts and concurrency keys are limited to."""

    def list(self) -> _I_co:
        """The tenant's own cap, then its limits, each with the slots in use and who waits."""
        return self._pages(_read("/v1/limits"))

    def set_host(
        self, host: str, *, max_running: int | None = None, rate_per_sec: float | None = None
    ) -> _D_co:
        """Limit runs that call a host: how many at a time, how many in a second. None: any."""
        body = {"max_running": max_running, "rate_per_sec": rate_per_sec}
        return self._put("hosts", host, body)

    def set_key(self, key: str, *, max_running: int | None) -> _D_co:
        """How many runs of a concurrency key are carried out at a time. None: any number."""
        return self._put("keys", key, {"max_running": max_running})

    def clear_host(self, host: str) -> _D_co:
        """Take a host's limits away."""
        return self._send(Call("DELETE", f"/v1/limits/hosts/{_segment(host)}", repeatable=True))

    def clear_key(self, key: str) -> _D_co:
        """Have a concurrency key carried out one at a time, as if nothing had been said."""
        return self._send(Call("DELETE", f"/v1/limits/keys/{_segment(key)}", repeatable=True))

    def _put(self, kind: str, name: str, body: Document) -> _D_co:
        path = f"/v1/limits/{kind}/{_segment(name)}"
        return self._send(Call("PUT", path, body=body, repeatable=True))


class Tenants(Resource[_D_co, _I_co]):
    """For admins: who shares this service."""

    def list(self) -> _I_co:
        """All tenants."""
        return self._pages(_read("/v1/tenants"))

    def change(self, name: str, **settings: Any) -> _D_co:
        """Change settings: ``max_payload_bytes``, ``keep_responses``, ``weight``, ``jitter_sec``;
        ``max_running``, ``deliveries_per_sec`` and the quotas ``creates_per_sec``,
        ``creates_burst``, ``create_bytes_per_sec`` and ``max_pending_jobs``, of which None takes
        one away."""
        path = f"/v1/tenants/{_segment(name)}"
        return self._send(Call("PATCH", path, body=settings, repeatable=True))

    def create(self, name: str, **limits: Any) -> _D_co:
        """A new tenant; the answer shows its signing secret, once."""
        return self._send(Call("POST", "/v1/tenants", body={"name": name, **limits}))

    def rotate_secret(self, name: str) -> _D_co:
        """A new signing secret, shown once; the one before is signed with for a day more."""
        return self._send(Call("POST", f"/v1/tenants/{_segment(name)}/signing-secret"))


class ApiKeys(Resource[_D_co, _I_co]):
    """For admins: who may call."""

    def list(self, **filters: Any) -> _I_co:
        """All keys, without their secrets."""
        return self._pages(_read("/v1/api-keys", filters))

    def create(self, **wishes: Any) -> _D_co:
        """A new key (``tenant``, ``role``, ``name``); the answer shows it, once."""
        return self._send(Call("POST", "/v1/api-keys", body=wishes))

    def revoke(self, key_id: str) -> _D_co:
        """Refuse a key from now on."""
        return self._send(Call("DELETE", f"/v1/api-keys/{_segment(key_id)}", repeatable=True))


class Operations(Resource[_D_co, _I_co]):
    """Bulk actions."""

    def list(self) -> _I_co:
        """Operations, newest first."""
        return self._pages(_read("/v1/operations"))

    def get(self, operation_id: str) -> _D_co:
        """An operation, and how far it is."""
        return self._send(_read(f"/v1/operations/{_segment(operation_id)}"))

    def abort(self, operation_id: str) -> _D_co:
        """Stop it where it is; what it has done stays done."""
        path = f"/v1/operations/{_segment(operation_id)}/abort"
        return self._send(Call("POST", path, repeatable=True))


class Service(Resource[_D_co, _I_co]):
    """What the service is doing."""

    def workers(self) -> _I_co:
        """The processes that are alive, or were lately."""
        return self._pages(_read("/v1/workers"))

    def shards(self) -> _I_co:
        """The slices of timers and who owns each."""
        return self._pages(_read("/v1/shards"))

    def backlog(self) -> _D_co:
        """What is late after an outage, how fast it is caught up on, and what it waits for."""
        return self._send(_read("/v1/backlog"))

    def forecast(self, **filters: Any) -> _D_co:
        """What is due in the next hours, minute by minute, by the parameters of
        ``GET /v1/forecast``: ``hours``, ``lane``, ``target_host``, ``tenant``, ``hot_only``, and
        ``jitter_sec`` to see what a jitter would do to it."""
        return self._send(_read("/v1/forecast", filters))

    def alerts(self) -> _I_co:
        """What is wrong with the service, or was lately; what fires comes first."""
        return self._pages(_read("/v1/alerts"))

    def audit(self, **filters: Any) -> _I_co:
        """What people and programs changed, newest first."""
        return self._pages(_read("/v1/audit", filters))


class _Api(Generic[_D_co, _I_co]):
    def __init__(self, sender: _Sender[_D_co, _I_co]) -> None:
        self.jobs: Jobs[_D_co, _I_co] = Jobs(sender)
        self.runs: Runs[_D_co, _I_co] = Runs(sender)
        self.dlq: DeadLetters[_D_co, _I_co] = DeadLetters(sender)
        self.schedules: Schedules[_D_co, _I_co] = Schedules(sender)
        self.targets: Targets[_D_co, _I_co] = Targets(sender)
        self.lanes: Lanes[_D_co, _I_co] = Lanes(sender)
        self.limits: Limits[_D_co, _I_co] = Limits(sender)
        self.replays: Replays[_D_co, _I_co] = Replays(sender)
        self.tenants: Tenants[_D_co, _I_co] = Tenants(sender)
        self.api_keys: ApiKeys[_D_co, _I_co] = ApiKeys(sender)
        self.operations: Operations[_D_co, _I_co] = Operations(sender)
        self.service: Service[_D_co, _I_co] = Service(sender)


class Client(_Api[Document, Iterator[Document]]):
    """The client for programs with threads. May be shared by them.

    ``timeout_sec`` bounds connecting, and each wait for bytes. A call that may be repeated is
    sent at most ``retries`` times more; when the server asks for a longer pause than
    ``longest_wait_sec``, its refusal is raised at once.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_sec: float = 10.0,
        retries: int = 4,
        longest_wait_sec: float = 30.0,
    ) -> None:
        super().__init__(self)
        self._patience = _Patience(retries, longest_wait_sec)
        self._http = httpx2.Client(**_options(url, key, timeout_sec))

    def send(self, call: Call) -> Document:
        """Send any call of the API."""
        arguments = call.arguments()
        for attempt in range(self._patience.attempts):
            result: httpx2.Response | httpx2.TransportError
            try:
                result = self._http.request(**arguments)
            except httpx2.TransportError as error:
                result = error
            wait_sec = self._patience.wait_sec(call, attempt, result)
            if wait_sec is None:
                break
            time.sleep(wait_sec)
        return _document(result)

    def pages(self, call: Call) -> Iterator[Document]:
        """Iterate over a list, fetching its pages as they are needed."""
        cursor: str | None = None
        while True:
            page = self.send(_at(call, cursor))
            yield from page["data"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(_Api[Awaitable[Document], AsyncIterator[Document]]):
    """The client for asyncio; otherwise as :class:`Client`."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_sec: float = 10.0,
        retries: int = 4,
        longest_wait_sec: float = 30.0,
    ) -> None:
        super().__init__(self)
        self._patience = _Patience(retries, longest_wait_sec)
        self._http = httpx2.AsyncClient(**_options(url, key, timeout_sec))

    async def send(self, call: Call) -> Document:
        """Send any call of the API."""
        arguments = call.arguments()
        for attempt in range(self._patience.attempts):
            result: httpx2.Response | httpx2.TransportError
            try:
                result = await self._http.request(**arguments)
            except httpx2.TransportError as error:
                result = error
            wait_sec = self._patience.wait_sec(call, attempt, result)
            if wait_sec is None:
                break
            await asyncio.sleep(wait_sec)
        return _document(result)

    async def pages(self, call: Call) -> AsyncIterator[Document]:
        """Iterate over a list, fetching its pages as they are needed."""
        cursor: str | None = None
        while True:
            page = await self.send(_at(call, cursor))
            for document in page["data"]:
                yield document
            cursor = page.get("next_cursor")
            if not cursor:
                return

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()


@dataclass(frozen=True)
class _Patience:
    """When to send again, and how long to wait before."""

    retries: int
    longest_wait_sec: float

    @property
    def attempts(self) -> int:
        return self.retries + 1

    def wait_sec(
        self, call: Call, attempt: int, result: httpx2.Response | httpx2.TransportError
    ) -> float | None:
        """Seconds to wait before the next attempt, or None when this result is the last word."""
        if attempt >= self.retries or not _is_passing(call, result):
            return None
        # Callers that failed together should not come back together.
        own = random.uniform(0.5, 1.0) * min(FIRST_WAIT_SEC * 2.0**attempt, self.longest_wait_sec)  # noqa: S311
        asked = _retry_after_sec(result) if isinstance(result, httpx2.Response) else None
        if asked is not None and asked > self.longest_wait_sec:
            return None
        return max(own, asked or 0.0)


def _is_passing(call: Call, result: httpx2.Response | httpx2.TransportError) -> bool:
    """Whether the same call may do better later, and doing it twice is no risk."""
    if isinstance(result, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return True  # nothing was sent
    if isinstance(result, httpx2.TransportError):
        return call.repeatable
    if result.status_code == 409:  # the first sending of this key is still being carried out
        return call.idempotency_key is not None and "Retry-After" in result.headers
    return result.status_code == 429 or (call.repeatable and result.status_code in (502, 503, 504))


def _retry_after_sec(response: httpx2.Response) -> float | None:
    """``Retry-After`` in seconds (RFC 9110 §10.2.3), or None when there is none to be read."""
    text: str = response.headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max((at - datetime.now(UTC)).total_seconds(), 0.0) if at.tzinfo is not None else None


def _document(result: httpx2.Response | httpx2.TransportError) -> Document:
    if isinstance(result, httpx2.TransportError):
        raise NoondayConnectionError(str(result) or type(result).__name__) from result
    document = _json(result)
    if result.is_success and isinstance(document, dict):
        return document
    problem = document if isinstance(document, dict) else {}
    code = problem.get("code") or result.reason_phrase.lower().replace(" ", "_")
    detail = problem.get("detail") or f"{result.url} did not answer as Noonday does"
    raise NoondayApiError(
        result.status_code,
        str(code),
        str(detail),
        _faults(problem),
        problem.get("request_id") or result.headers.get("X-Request-Id"),
    )


def _faults(problem: Document) -> list[Document]:
    listed = problem.get("errors")
    return (
        [fault for fault in listed if isinstance(fault, dict)] if isinstance(listed, list) else []
    )


def _json(response: httpx2.Response) -> Any:
    """The body, or None when it is no JSON: something else may have answered."""
    try:
        return response.json() if response.content else {}
    except ValueError:
        return None


def _at(call: Call, cursor: str | None) -> Call:
    return _read(call.path, {**call.query, "cursor": cursor}) if cursor else call


def _options(url: str, key: str | None, timeout_sec: float) -> dict[str, Any]:
    return {
        "base_url": url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": timeout_sec,
        # A proxy of the environment leads away from this machine.
        "trust_env": urlsplit(url).hostname not in LOOPBACK,
    }


def _encode(body: Any) -> bytes:
    text = json.dumps(
        body, default=_text, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return text.encode()


def _segment(text: str) -> str:
    return quote(text, safe="")


def _text(value: Any) -> Any:
    """A value as JSON and queries carry it."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("an instant needs a time zone")
        return value.isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return value
    raise TypeError(f"not a value for the API: {type(value).__name__}")
