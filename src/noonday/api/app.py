"""The application: every route on one screen, and the way of a request to its handler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from starlette.applications import Starlette
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from noonday.api import (
    admin,
    alerts,
    backfills,
    backlog,
    bodies,
    cancels,
    dlq,
    explain,
    forecast,
    headers,
    jobs,
    lanes,
    limits,
    operations,
    patching,
    pausing,
    posting,
    public,
    replays,
    runs,
    schedules,
    targets,
)
from noonday.api.auth import Gate
from noonday.api.commits import Commits
from noonday.api.context import AppContext
from noonday.api.documents import (
    AlertDocument,
    ApiKeyDocument,
    AuditDocument,
    BackfillCount,
    BacklogDocument,
    BatchAnswer,
    ChangedJobDocument,
    ExecutionDocument,
    ExplanationDocument,
    ForecastDocument,
    JobDocument,
    LaneDocument,
    LimitDocument,
    OccurrenceDocument,
    OperationDocument,
    Page,
    PreviewDocument,
    ResumedDocument,
    RunDocument,
    ShardDocument,
    TargetStateDocument,
    TenantDocument,
    WorkerDocument,
)
from noonday.api.letter_documents import (
    DeadLetterDocument,
    LetterGroups,
    ReplayCount,
    ReplayDocument,
)
from noonday.api.parameters import (
    DRY_RUN,
    FORECAST,
    GROUP_BY,
    IF_MATCH,
    IF_NONE_MATCH,
    JOB_FILTERS,
    LETTER_FILTERS,
    LINK,
    PAGE,
    RUNNING,
    TARGET_STATE,
    TENANT,
    TRACEPARENT,
    WHY,
)
from noonday.api.problems import HANDLERS, Problem
from noonday.api.public import Description
from noonday.api.queries import check_names
from noonday.api.quotas import QuotaKeeper
from noonday.api.replay_bodies import ReplayBody, WhyBody
from noonday.api.requests import Endpoint, Requests
from noonday.api.routes import (
    ETAG,
    IDEMPOTENCY_KEY,
    LOCATION,
    RATE_LIMIT,
    RATE_LIMIT_POLICY,
    REPLAYED,
    Answer,
    Route,
)
from noonday.api.schemas import (
    ApiKeyBody,
    BackfillBody,
    BatchBody,
    BulkCancelBody,
    CancelBody,
    HostLimitBody,
    JobPatchBody,
    KeyLimitBody,
    LaneBody,
    PauseBody,
    PreviewBody,
    ResumeBody,
    TenantBody,
    TenantChanges,
    TriggerBody,
)
from noonday.api.wire import JobBody
from noonday.domain.roles import Role
from noonday.store.forecasts import HotMinutes
from noonday.store.lanes import Lanes

VIEWER, SUBMITTER, OPERATOR, ADMIN = Role

_MADE: Final = (LOCATION, REPLAYED)
_LIMITED: Final = (RATE_LIMIT, RATE_LIMIT_POLICY)
_LISTED: Final = (LINK,)

# fmt: off
ROUTES: Final[tuple[Route, ...]] = (
    Route("POST", "/v1/jobs", "create_job", SUBMITTER, "Create a job", posting.create,
          Answer(202, "The job is durable.", JobDocument, (*_MADE, *_LIMITED)), JobBody,
          (IDEMPOTENCY_KEY, TRACEPARENT), (409, 429)),
    Route("POST", "/v1/jobs:batch", "create_jobs", SUBMITTER, "Create up to 1,000 jobs",
          posting.create_batch, Answer(202, "Each result in order.", BatchAnswer, _LIMITED),
          BatchBody, (TRACEPARENT,), (409, 429)),
    Route("GET", "/v1/jobs", "list_jobs", VIEWER, "List jobs, newest first", jobs.page,
          Answer(200, "A page; a filtered one may be short.", Page[JobDocument], _LISTED), None,
          (*JOB_FILTERS, *PAGE), (400,)),
    Route("GET", "/v1/jobs/{id}", "get_job", VIEWER, "Show a job", jobs.get,
          Answer(200, "The job.", JobDocument, (ETAG,)), None, (IF_NONE_MATCH,)),
    Route("DELETE", "/v1/jobs/{id}", "cancel_job", SUBMITTER,
          "Cancel what a job has left to run; an attempt under way is the last one", jobs.cancel,
          Answer(200, "As it stands now; one that had ended stays as it was.", JobDocument,
                 (ETAG,)), None, (RUNNING,)),
    Route("POST", "/v1/jobs:cancel", "cancel_jobs", OPERATOR,
          "Cancel all jobs that a filter matches", operations.cancel_jobs,
          Answer(202, "The operation is durable.", OperationDocument, _MADE), BulkCancelBody,
          (IDEMPOTENCY_KEY,), (409,)),
    Route("POST", "/v1/jobs/{id}/trigger", "trigger_job", OPERATOR,
          "Run a job now, beside its schedule", jobs.trigger,
          Answer(202, "The run is durable.", RunDocument, (*_MADE, *_LIMITED)), TriggerBody,
          (IDEMPOTENCY_KEY,), (409, 429), body_optional=True),
    Route("POST", "/v1/jobs/{id}/backfill", "backfill_job", OPERATOR,
          "Run what has not run of a past range of a recurring job", backfills.create,
          Answer(202, "The operation is durable.", OperationDocument, _MADE), BackfillBody,
          (IDEMPOTENCY_KEY,), (409,),
          also=(Answer(200, "What it would find, for a dry run.", BackfillCount),)),
    Route("PATCH", "/v1/jobs/{id}", "change_job", SUBMITTER, "Change a job, or see what that does",
          patching.change,
          Answer(200, "As it is now, or with `dry_run` would be; nothing of what it was fires "
                 "after this answer.", ChangedJobDocument, (ETAG,)), JobPatchBody,
          (IF_MATCH, DRY_RUN), (409, 412, 428), body_types=bodies.MERGE_PATCH),
    Route("POST", "/v1/jobs/{id}/pause", "pause_job", OPERATOR,
          "Fire nothing of a job for now; runs that are there go on", pausing.pause,
          Answer(200, "Nothing of it fires after this answer.", JobDocument, (ETAG,)), PauseBody,
          (), (409,), body_optional=True),
    Route("POST", "/v1/jobs/{id}/resume", "resume_job", OPERATOR,
          "Let a job fire again that was paused or suspended", pausing.resume,
          Answer(200, "The job; one that was neither stays as it was.", JobDocument, (ETAG,)),
          ResumeBody, (), (409,), body_optional=True),
    Route("GET", "/v1/jobs/{id}/executions", "list_executions", VIEWER,
          "List a job's attempts, newest first", runs.executions,
          Answer(200, "A page.", Page[ExecutionDocument], _LISTED), None, PAGE, (400,)),
    Route("GET", "/v1/jobs/{id}/occurrences", "list_occurrences", VIEWER,
          "The ledger of a job, latest first", runs.ledger,
          Answer(200, "A page.", Page[OccurrenceDocument], _LISTED), None, PAGE, (400,)),
    Route("GET", "/v1/jobs/{id}/explain", "explain_job", VIEWER,
          "Say why a job is, or is not, running now", explain.explain,
          Answer(200, "The one constraint that holds it.", ExplanationDocument)),
    Route("POST", "/v1/schedules/preview", "preview_schedule", VIEWER,
          "Say what a schedule would do; nothing is created", schedules.show,
          Answer(200, "In English, and the next occurrences.", PreviewDocument), PreviewBody),
    Route("GET", "/v1/forecast", "get_forecast", VIEWER,
          "Say what is due in the next 72 hours, minute by minute", forecast.show,
          Answer(200, "As it was counted last.", ForecastDocument), None, FORECAST),
    Route("GET", "/v1/runs/{id}", "get_run", VIEWER, "Show a run", runs.get,
          Answer(200, "The run, unfinished or ended.", RunDocument)),
    Route("POST", "/v1/runs/{id}/cancel", "cancel_run", SUBMITTER,
          "Cancel a run, or have it cut off where it is under way", cancels.run,
          Answer(200, "As it stands now: ended, or with `cancel` saying how far that is.",
                 RunDocument), CancelBody, (), (409,), body_optional=True),
    Route("GET", "/v1/operations", "list_operations", VIEWER, "List bulk actions, newest first",
          operations.page, Answer(200, "A page.", Page[OperationDocument], _LISTED), None, PAGE,
          (400,)),
    Route("GET", "/v1/operations/{id}", "get_operation", VIEWER,
          "Show a bulk action and how far it is", operations.get,
          Answer(200, "The operation.", OperationDocument)),
    Route("POST", "/v1/operations/{id}/abort", "abort_operation", OPERATOR,
          "Stop a bulk action where it is", operations.abort,
          Answer(200, "What it has done stays done.", OperationDocument), None, (), (409,)),
    Route("GET", "/v1/dlq", "list_dead_letters", VIEWER,
          "List dead letters, newest first, or count them by kind", dlq.page,
          Answer(200, "A page, which may be short with a filter; or groups.",
                 Page[DeadLetterDocument], _LISTED), None,
          (*LETTER_FILTERS, GROUP_BY, *PAGE), (400,), also=(Answer(200, "", LetterGroups),)),
    Route("GET", "/v1/dlq/replays", "list_replays", VIEWER, "List replays, newest first",
          replays.page, Answer(200, "A page.", Page[ReplayDocument], _LISTED), None, PAGE, (400,)),
    Route("POST", "/v1/dlq/replays", "create_replay", OPERATOR, "Replay dead letters behind a gate",
          replays.create, Answer(202, "The replay is durable.", ReplayDocument, _MADE),
          ReplayBody, (IDEMPOTENCY_KEY,), (409,),
          also=(Answer(200, "What it would find, with `dry_run`.", ReplayCount),)),
    Route("GET", "/v1/dlq/replays/{id}", "get_replay", VIEWER, "Show a replay", replays.get,
          Answer(200, "The replay, as it stands.", ReplayDocument)),
    Route("POST", "/v1/dlq/replays/{id}/pause", "pause_replay", OPERATOR,
          "Reopen no more for now", replays.pause, Answer(200, "The replay.", ReplayDocument),
          WhyBody, (), (409,), body_optional=True),
    Route("POST", "/v1/dlq/replays/{id}/resume", "resume_replay", OPERATOR,
          "Go on; after a stop with a new canary", replays.resume,
          Answer(200, "The replay.", ReplayDocument), WhyBody, (), (409,), body_optional=True),
    Route("POST", "/v1/dlq/replays/{id}/abort", "abort_replay", OPERATOR,
          "Reopen no more for good", replays.abort, Answer(200, "The replay.", ReplayDocument),
          WhyBody, (), (409,), body_optional=True),
    Route("GET", "/v1/dlq/{id}", "get_dead_letter", VIEWER, "Show a dead letter", dlq.get,
          Answer(200, "The dead letter.", DeadLetterDocument)),
    Route("GET", "/v1/targets", "list_targets", VIEWER,
          "List what has been left alone because it failed, by host", targets.page,
          Answer(200, "A page.", Page[TargetStateDocument], _LISTED), None,
          (TARGET_STATE, *PAGE), (400,)),
    Route("POST", "/v1/targets/{host}/resume", "resume_target", OPERATOR,
          "Let the runs of a host go on, those to its suspended URLs too", targets.resume,
          Answer(200, "What was resumed.", ResumedDocument), None, (), (409,)),
    Route("GET", "/v1/limits", "list_limits", VIEWER,
          "List what the tenant, its hosts and its concurrency keys are limited to", limits.page,
          Answer(200, "A page; the tenant itself comes first.", Page[LimitDocument], _LISTED),
          None, PAGE, (400,)),
    Route("PUT", "/v1/limits/hosts/{host}", "limit_host", OPERATOR, "Limit runs that call a host",
          limits.put_host, Answer(200, "As it is limited now.", LimitDocument), HostLimitBody),
    Route("DELETE", "/v1/limits/hosts/{host}", "free_host", OPERATOR, "Take a host's limits away",
          limits.free_host, Answer(200, "As it is limited now: not at all.", LimitDocument)),
    Route("PUT", "/v1/limits/keys/{key}", "limit_key", OPERATOR,
          "Say how many runs of a concurrency key are carried out at a time", limits.put_key,
          Answer(200, "As it is limited now.", LimitDocument), KeyLimitBody),
    Route("DELETE", "/v1/limits/keys/{key}", "free_key", OPERATOR,
          "Have a concurrency key carried out one at a time, as if nothing had been said",
          limits.free_key, Answer(200, "As it is limited now: to 1.", LimitDocument)),
    Route("DELETE", "/v1/dlq/{id}", "discard_dead_letter", OPERATOR,
          "Lay a dead letter aside for good", dlq.discard,
          Answer(200, "The dead letter, discarded.", DeadLetterDocument), None, (WHY,), (409,)),
    Route("GET", "/v1/lanes", "list_lanes", VIEWER, "List lanes, by name", lanes.page,
          Answer(200, "A page.", Page[LaneDocument], _LISTED), None, PAGE, (400,)),
    Route("PUT", "/v1/lanes/{name}", "put_lane", ADMIN, "Make a lane, or change one", lanes.put,
          Answer(200, "The lane as it is now.", LaneDocument), LaneBody, (), (409,),
          also=(Answer(201, "The lane is new.", LaneDocument),)),
    Route("DELETE", "/v1/lanes/{name}", "delete_lane", ADMIN,
          "Delete a lane that is not ready-made and that no job belongs to", lanes.delete,
          Answer(200, "The lane as it was.", LaneDocument), None, (), (409,)),
    Route("POST", "/v1/lanes/{name}/pause", "pause_lane", OPERATOR,
          "Start nothing more of a lane", lanes.pause,
          Answer(200, "Nothing of it starts after this answer.", LaneDocument), WhyBody,
          body_optional=True),
    Route("POST", "/v1/lanes/{name}/resume", "resume_lane", OPERATOR,
          "Let the runs of a lane start again", lanes.resume,
          Answer(200, "The lane.", LaneDocument), WhyBody, body_optional=True),
    Route("GET", "/v1/backlog", "get_backlog", VIEWER,
          "Say what is late after an outage, and how it is caught up on", backlog.show,
          Answer(200, "As it stands now, over all tenants.", BacklogDocument)),
    Route("GET", "/v1/tenants", "list_tenants", ADMIN, "List tenants", admin.tenants_page,
          Answer(200, "A page.", Page[TenantDocument], _LISTED), None, PAGE, (400,)),
    Route("POST", "/v1/tenants", "create_tenant", ADMIN, "Create a tenant", admin.create_tenant,
          Answer(201, "The tenant; its signing secret is shown once.", TenantDocument,
                 (LOCATION,)), TenantBody, (), (409,)),
    Route("GET", "/v1/tenants/{name}", "get_tenant", ADMIN, "Show a tenant", admin.tenant,
          Answer(200, "The tenant.", TenantDocument)),
    Route("PATCH", "/v1/tenants/{name}", "change_tenant", ADMIN, "Change a tenant's settings",
          admin.change_tenant, Answer(200, "The tenant as it is now.", TenantDocument),
          TenantChanges),
    Route("POST", "/v1/tenants/{name}/signing-secret", "rotate_signing_secret", ADMIN,
          "Make a new signing secret; the one before holds for 24 hours more",
          admin.rotate_secret, Answer(200, "The secret is shown once.", TenantDocument)),
    Route("GET", "/v1/api-keys", "list_api_keys", ADMIN, "List API keys", admin.api_keys_page,
          Answer(200, "A page.", Page[ApiKeyDocument], _LISTED), None, (TENANT, *PAGE), (400,)),
    Route("POST", "/v1/api-keys", "create_api_key", ADMIN, "Create an API key",
          admin.create_api_key, Answer(201, "The key is shown once.", ApiKeyDocument),
          ApiKeyBody),
    Route("DELETE", "/v1/api-keys/{id}", "revoke_api_key", ADMIN, "Revoke an API key",
          admin.revoke_api_key, Answer(200, "The key, revoked.", ApiKeyDocument), None, (), (409,)),
    Route("GET", "/v1/workers", "list_workers", ADMIN, "List the service's processes",
          admin.workers_list, Answer(200, "A page.", Page[WorkerDocument], _LISTED), None, PAGE,
          (400,)),
    Route("GET", "/v1/shards", "list_shards", ADMIN, "List shards and who owns them",
          admin.shards_list, Answer(200, "A page.", Page[ShardDocument], _LISTED), None, PAGE,
          (400,)),
    Route("GET", "/v1/alerts", "list_alerts", ADMIN, "List alerts, those that fire first",
          alerts.page, Answer(200, "A page.", Page[AlertDocument], _LISTED), None, PAGE, (400,)),
    Route("GET", "/v1/audit", "list_audit", ADMIN, "List changes, newest first",
          admin.audit_page, Answer(200, "A page.", Page[AuditDocument], _LISTED), None, PAGE,
          (400,)),
    Route("GET", "/healthz", "healthz", None, "Whether this process answers", public.healthz,
          Answer(200, "It does."), media_type="text/plain"),
    Route("GET", "/openapi.json", "openapi", None, "This description", public.openapi,
          Answer(200, "OpenAPI 3.1.", dict)),
    Route("GET", "/docs", "docs", None, "This description, for people", public.docs,
          Answer(200, "A page that needs nothing else."), media_type="text/html"),
)
# fmt: on


def create_app(context: AppContext) -> Starlette:
    """The HTTP API. It has nothing to start or stop: what it has taken, its requests wait for."""
    endpoints = {path: _endpoints(routes) for path, routes in _by_path().items()}
    app = Starlette(routes=[_path(*each) for each in endpoints.items()])
    app.router.redirect_slashes = False
    app.middleware_stack = Requests(
        ExceptionMiddleware(app.router, HANDLERS), context.metrics, _straight(endpoints)
    )
    app.state.context = context
    app.state.description = Description(ROUTES)
    app.state.gate = Gate(context.store)
    app.state.commits = Commits(context)
    app.state.quotas = QuotaKeeper(context)
    app.state.lanes = Lanes(context.store)
    app.state.hot = HotMinutes(context.store)
    return app


def _by_path() -> dict[str, list[Route]]:
    found: dict[str, list[Route]] = {}
    for route in ROUTES:
        found.setdefault(route.path, []).append(route)
    return found


def _endpoints(routes: Sequence[Route]) -> dict[str, Endpoint]:
    """All methods of a path."""
    endpoints = {route.method: _endpoint(route) for route in routes}
    if "GET" in endpoints:
        endpoints["HEAD"] = endpoints["GET"]
    return endpoints


def _path(path: str, endpoints: Mapping[str, Endpoint]) -> Path:
    """All methods of a path together, so that a 405 can name them all. (A key may have slashes.)"""

    async def endpoint(request: Request) -> Response:
        return await endpoints[request.method](request)

    return Path(path.replace("{key}", "{key:path}"), endpoint, methods=list(endpoints))


def _straight(found: Mapping[str, Mapping[str, Endpoint]]) -> dict[tuple[str, str], Endpoint]:
    """What needs no search, since its path has no parameter: by method and path."""
    return {
        (method, path): endpoint
        for path, endpoints in found.items()
        if "{" not in path
        for method, endpoint in endpoints.items()
    }


def _endpoint(route: Route) -> Endpoint:
    """A route's handler behind all that every route checks."""
    takes_key = IDEMPOTENCY_KEY in route.parameters

    async def endpoint(request: Request) -> Response:
        state = request.scope["state"]
        state["route"] = route.path
        if route.role is not None:
            gate = cast("Gate", request.app.state.gate)
            state["caller"] = await gate.admit(request, route.role)
            if request.scope["query_string"]:
                check_names(request, route)
            if (
                route.method == "POST"
                and not takes_key
                and headers.field(request, b"idempotency-key") is not None
            ):
                raise Problem(
                    422,
                    "not_supported",
                    "This call takes no Idempotency-Key, so that a retry of it is not safe.",
                )
        return await route.handler(request)

    return endpoint
