"""Commands about jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.documents import Wishes, job_document, patch_document
from noonday.cli.output import show, show_list

app = typer.Typer(
    no_args_is_help=True,
    help="Create jobs, look at them, change, pause, cancel, trigger and backfill them.",
)

JobId: TypeAlias = Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")]

COLUMNS: Final = (
    "id", "name", "status", "schedule.type", "next_run_at", "lane", "priority", "target.url",
)  # fmt: skip
EXECUTIONS: Final = (
    "run_id", "attempt", "status", "started_at", "duration_ms", "http_status", "error",
)  # fmt: skip
OCCURRENCES: Final = (
    "occurrence_at", "kind", "outcome", "late_ms", "attempts", "reason", "run_id", "range.from_at",
    "range.count",
)  # fmt: skip


@app.command()
def create(
    target: Annotated[
        str | None, typer.Argument(help="The URL to call.", metavar="URL", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="Send this JSON document as it is instead; - is standard input."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Run once, at this instant: 2027-01-31T09:00:00+01:00.")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Run once, after so long: PT30S, P1D.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Run whenever this matches: '0 3 * * *'.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Whose clock --cron means: Europe/Paris. [default: UTC]")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Run every so many seconds.", min=1)] = None,
    starts_at: Annotated[
        str | None, typer.Option(help="Nothing before, and where --every counts from.")
    ] = None,
    ends_at: Annotated[str | None, typer.Option(help="Nothing after.")] = None,
    max_occurrences: Annotated[
        int | None, typer.Option(help="So many times at most.", min=1)
    ] = None,
    misfire: Annotated[
        str | None,
        typer.Option(help="one, skip or all, when several are due at once. [default: one]"),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            help="skip, allow, queue or replace, while a run is unfinished. [default: skip]"
        ),
    ] = None,
    jitter_sec: Annotated[int | None, typer.Option(help="Spread over so many seconds.")] = None,
    method: Annotated[str | None, typer.Option(help="The HTTP method. [default: POST]")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="'name: value', may be repeated.")
    ] = None,
    timeout_sec: Annotated[float | None, typer.Option(help="Bounds one attempt.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", "-d", help="JSON to send; @file reads a file.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Most attempts at a run.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 (most urgent) to 9. [default: 5]")] = None,
    on_unknown: Annotated[
        str | None,
        typer.Option(help="retry or dead_letter, when nobody knows whether the work was done."),
    ] = None,
    cancel_url: Annotated[
        str | None, typer.Option(help="Called when a request is cut off by a cancellation.")
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option(help="default or long. [default: long if --timeout-sec is above 120]"),
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(help="Runs of one such key are carried out one at a time.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="'key=value', may be repeated.")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(help="The id of a job that has to end first, may be repeated."),
    ] = None,
    after_on: Annotated[
        str | None,
        typer.Option(help="success or any: what those jobs have to come to. [default: success]"),
    ] = None,
    cascade_cancel: Annotated[
        bool | None,
        typer.Option("--cascade-cancel", help="Cancelled as soon as one of those jobs is."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="The same key again answers with the same job. [default: a new one]"),
    ] = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Create a job. When this ends well, the job is durable.

    Without --at, --delay, --cron or --every it runs now.

    \b
    Examples:
      noonday jobs create https://example.com/hook -d '{"report": 7}'
      noonday jobs create https://example.com/hook --cron '0 3 * * *' --timezone Europe/Paris
      noonday jobs create https://example.com/hook --every 300 --name ping -H 'x-team: infra'
      noonday jobs create https://example.com/report --after 019ace00-0000-7000-8000-000000000000
      noonday jobs create --file job.json --idempotency-key order-4711
    """
    wishes = Wishes(
        target=target, name=name, at=at, delay=delay, cron=cron, timezone=timezone, every=every,
        starts_at=starts_at, ends_at=ends_at, max_occurrences=max_occurrences, misfire=misfire,
        overlap=overlap, jitter_sec=jitter_sec, method=method, headers=header,
        timeout_sec=timeout_sec, payload=payload, max_attempts=max_attempts, priority=priority,
        on_unknown=on_unknown, cancel_url=cancel_url, lane=lane, concurrency_key=concurrency_key,
        labels=label, after=after, after_on=after_on, cascade_cancel=cascade_cancel,
    )  # fmt: skip
    document = job_document(wishes, file)
    with connect(config, url, key) as noonday:
        show(noonday.jobs.create(document, idempotency_key=idempotency_key), as_json)


@app.command("list")
def list_jobs(
    status: Annotated[
        str | None, typer.Option(help="PENDING, RUNNING, COMPLETE, FAILED, PAUSED …")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Names that begin so.")] = None,
    label: Annotated[str | None, typer.Option(help="'key=value'.")] = None,
    lane: Annotated[str | None, typer.Option(help="Jobs of this lane.")] = None,
    target_host: Annotated[str | None, typer.Option(help="Jobs that call this host.")] = None,
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first.

    \b
    Examples:
      noonday jobs list --status FAILED
      noonday jobs list --label env=prod --json
    """
    filters: dict[str, Any] = {
        "status": status,
        "name_prefix": name,
        "label": None if label is None else label.replace("=", ":", 1),
        "lane": lane,
        "target_host": target_host,
        "limit": min(limit, 200),
    }
    with connect(config, url, key) as noonday:
        show_list(noonday.jobs.list(**filters), COLUMNS, limit, as_json)


@app.command()
def get(
    job_id: JobId, config: Config = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Show a job: what was asked for, how it stands, when it fires next."""
    with connect(config, url, key) as noonday:
        show(noonday.jobs.get(job_id), as_json)


Running: TypeAlias = Annotated[
    bool, typer.Option("--running", help="Have attempts under way cut off as well.")
]


@app.command()
def cancel(
    job_id: JobId,
    running: Running = False,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Cancel all future runs of a job."""
    with connect(config, url, key) as noonday:
        show(noonday.jobs.delete(job_id, running=_running(running)), as_json)


def _running(wanted: bool) -> str:
    return "cancel" if wanted else "finish"


@app.command("cancel-all")
def cancel_all(
    name_prefix: Annotated[str | None, typer.Option(help="What their names begin with.")] = None,
    label: Annotated[str | None, typer.Option(help="One of their labels: 'key:value'.")] = None,
    lane: Annotated[str | None, typer.Option(help="Their lane.")] = None,
    target_host: Annotated[str | None, typer.Option(help="The host that they call.")] = None,
    schedule_type: Annotated[str | None, typer.Option(help="once, cron or interval.")] = None,
    created_from: Annotated[
        str | None, typer.Option(help="Created then or later: 2027-01-31T09:00:00Z.")
    ] = None,
    created_to: Annotated[str | None, typer.Option(help="Created before then.")] = None,
    running: Running = False,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it later.")] = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Cancel all jobs that match everything given, as an operation.

    \b
    Example:
      noonday jobs cancel-all --label env:test --running
      noonday operations get 0190a3b2-…
    """
    given = {
        "name_prefix": name_prefix, "label": label, "lane": lane, "target_host": target_host,
        "schedule_type": schedule_type, "created_from": created_from, "created_to": created_to,
    }  # fmt: skip
    by = {name: value for name, value in given.items() if value is not None}
    with connect(config, url, key) as noonday:
        made = noonday.jobs.cancel_many(running=_running(running), reason=reason, **by)
        show(made, as_json)


@app.command()
def trigger(
    job_id: JobId,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Run a job now, beside its schedule."""
    with connect(config, url, key) as noonday:
        show(noonday.jobs.trigger(job_id, reason=reason), as_json)


@app.command()
def backfill(
    job_id: JobId,
    from_at: Annotated[
        str, typer.Option("--from", help="The first nominal time: 2027-01-01T00:00:00Z.")
    ],
    to_at: Annotated[str, typer.Option("--to", help="The last one, not in the future.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    rate: Annotated[float | None, typer.Option(help="So many a second at most [10].")] = None,
    lane: Annotated[str | None, typer.Option(help="The lane of their runs [batch].")] = None,
    priority: Annotated[
        int | None, typer.Option(help="0 (most urgent) to 9. [default: that of the job]")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Run what has not run of a past range of a recurring job, as an operation.

    \b
    Example:
      noonday jobs backfill JOB --from 2027-01-01T00:00:00Z --to 2027-01-07T23:59:59Z --dry-run
      noonday jobs backfill JOB --from 2027-01-01T00:00:00Z --to 2027-01-07T23:59:59Z --rate 2
      noonday operations get 0190a3b2-…
    """
    given: dict[str, Any] = {"rate_per_sec": rate, "lane": lane, "priority": priority}
    terms = {name: value for name, value in given.items() if value is not None}
    with connect(config, url, key) as noonday:
        made = noonday.jobs.backfill(
            job_id, from_at=from_at, to_at=to_at, dry_run=dry_run, reason=reason, **terms
        )
        show(made, as_json)


@app.command()
def pause(
    job_id: JobId,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it later.")] = "",
    until: Annotated[
        str | None, typer.Option(help="When it goes on by itself: 2027-01-31T09:00:00+01:00.")
    ] = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Fire nothing of a job for now. Runs that are there go on."""
    with connect(config, url, key) as noonday:
        show(noonday.jobs.pause(job_id, reason=reason, until=until), as_json)


@app.command()
def resume(
    job_id: JobId,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Decide about what it left out as after an outage.")
    ] = False,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Let a job fire again that was paused or suspended."""
    with connect(config, url, key) as noonday:
        show(noonday.jobs.resume(job_id, reason=reason, catch_up=catch_up), as_json)


@app.command()
def update(
    job_id: JobId,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="'field=value' or 'field.member=value', may be repeated."),
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", "-d", help="JSON to send; @file reads a file.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="Send this merge patch as it is instead; - is standard input."
        ),
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Only if the job has this version. [default: any]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what it would come to.")
    ] = False,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Change a job. A value is JSON, or else text; null takes it away.

    \b
    Examples:
      noonday jobs update JOB --set 'schedule.cron=0 4 * * *' --dry-run
      noonday jobs update JOB --set priority=2 --set labels.env=null --version 3
      noonday jobs update JOB -d '{"report": 8}'
    """
    changes = patch_document(settings, payload, file)
    with connect(config, url, key) as noonday:
        show(noonday.jobs.update(job_id, changes, version=version, dry_run=dry_run), as_json)


def executions(
    job_id: JobId,
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the attempts at a job's runs, newest first."""
    with connect(config, url, key) as noonday:
        found = noonday.jobs.executions(job_id, limit=min(limit, 200))
        show_list(found, EXECUTIONS, limit, as_json)


def occurrences(
    job_id: JobId,
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List what a job fired and how late, and what it skipped or missed and why."""
    with connect(config, url, key) as noonday:
        found = noonday.jobs.occurrences(job_id, limit=min(limit, 200))
        show_list(found, OCCURRENCES, limit, as_json)


def explain(
    job_id: JobId, config: Config = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Say why a job is not running now, what would free it, and when it may start."""
    with connect(config, url, key) as noonday:
        show(noonday.jobs.explain(job_id), as_json)


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "explain": explain,
    "executions": executions,
    "occurrences": occurrences,
}
"""Commands that stand on their own, beside ``jobs``."""
