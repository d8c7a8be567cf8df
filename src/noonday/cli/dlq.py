"""Commands about dead letters, and about replaying them."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.failures import Code, fail
from noonday.cli.output import show, show_list, show_rows

app = typer.Typer(no_args_is_help=True, help="Look at dead letters, discard and replay them.")
replays = typer.Typer(no_args_is_help=True, help="Watch replays, and steer them.")
app.add_typer(replays, name="replays")

RunId: TypeAlias = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")]
ReplayId: TypeAlias = Annotated[str, typer.Argument(help="The replay's id.", metavar="REPLAY")]
Reason: TypeAlias = Annotated[
    str | None, typer.Option(help="timeout, permanent_answer, lease_expired …")
]
Fingerprint: TypeAlias = Annotated[
    str | None, typer.Option(help="Of errors that are alike; see `dlq groups`.")
]
Job: TypeAlias = Annotated[str | None, typer.Option(help="Of this job.", metavar="JOB")]
Host: TypeAlias = Annotated[str | None, typer.Option(help="Calls to this host.")]
From: TypeAlias = Annotated[
    str | None, typer.Option(help="Given up at this time or later: 2027-01-31T12:00:00Z.")
]
To: TypeAlias = Annotated[str | None, typer.Option(help="Given up before this time.")]
Why: TypeAlias = Annotated[str, typer.Option("--why", help="Why, for the audit log.")]

COLUMNS: Final = (
    "id", "state", "reason", "fingerprint", "http_status", "attempts", "target_host", "dead_at",
    "error",
)  # fmt: skip
GROUPS: Final = ("count", "reason", "fingerprint", "first_seen", "last_seen", "sample_error")
REPLAYS: Final = (
    "id", "state", "matched", "replayed", "succeeded", "failed", "unfinished", "created_at",
    "state_reason",
)  # fmt: skip


@app.command("list")
def list_dead_letters(
    reason: Reason = None,
    fingerprint: Fingerprint = None,
    state: Annotated[str | None, typer.Option(help="DEAD, REPLAYED or DISCARDED.")] = None,
    job: Job = None,
    target_host: Host = None,
    dead_from: From = None,
    dead_to: To = None,
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List dead letters, newest first.

    \b
    Example:
      noonday dlq list --state DEAD --reason timeout --json
    """
    filters = _narrowed(reason, fingerprint, job, target_host, dead_from, dead_to)
    with connect(config, url, key) as noonday:
        found = noonday.dlq.list(**filters, state=state, limit=min(limit, 200))
        show_list(found, COLUMNS, limit, as_json)


@app.command()
def groups(
    by: Annotated[str, typer.Option(help="reason, fingerprint, or both.")] = "reason,fingerprint",
    reason: Reason = None,
    fingerprint: Fingerprint = None,
    state: Annotated[str, typer.Option(help="DEAD, REPLAYED or DISCARDED.")] = "DEAD",
    job: Job = None,
    target_host: Host = None,
    dead_from: From = None,
    dead_to: To = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Say how many dead letters there are of each kind, the most first."""
    filters = _narrowed(reason, fingerprint, job, target_host, dead_from, dead_to)
    with connect(config, url, key) as noonday:
        found = noonday.dlq.groups(by, **filters, state=state)
        show_rows(found, found["data"], GROUPS, as_json)
    if not found["complete"]:
        typer.echo(f"… only those from {found['counted_from']} on; see --dead-to", err=True)


@app.command("get")
@app.command("show", hidden=True)
def get_dead_letter(
    run_id: RunId, config: Config = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Show a dead letter: why it was given up, and after how many attempts."""
    with connect(config, url, key) as noonday:
        show(noonday.dlq.get(run_id), as_json)


@app.command()
def discard(
    run_id: RunId,
    why: Annotated[str, typer.Option("--why", help="Why; it is kept with the letter.")],
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Lay a dead letter aside for good."""
    with connect(config, url, key) as noonday:
        show(noonday.dlq.discard(run_id, reason=why), as_json)


# --- replays ----------------------------------------------------------------------------------


@app.command()
def replay(
    run_ids: Annotated[
        list[str] | None, typer.Argument(help="Dead letters, by the ids of their runs.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that lie there, when nothing narrows them.")
    ] = False,
    reason: Reason = None,
    fingerprint: Fingerprint = None,
    job: Job = None,
    target_host: Host = None,
    dead_from: From = None,
    dead_to: To = None,
    canary: Annotated[
        int | None, typer.Option(help="So many must succeed before the rest [1].")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="So many a second at most [10].")] = None,
    ramp_sec: Annotated[
        float | None, typer.Option(help="Until the whole rate is reached [60].")
    ] = None,
    failure_ratio: Annotated[
        float | None, typer.Option(help="Stop when more than this part has failed [0.2].")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Of the last so many, which is also the most at work [50].")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also those that were replayed before.")
    ] = False,
    why: Why = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Replay dead letters: a canary first, then the rest at a rate, until too many fail.

    \b
    Examples:
      noonday dlq replay --target-host shop.example --dry-run
      noonday dlq replay --target-host shop.example --rate 20 --why "the shop is back"
      noonday dlq replays get REPLAY
    """
    filters = _given(**_narrowed(reason, fingerprint, job, target_host, dead_from, dead_to))
    if not (run_ids or filters or everything):
        fail(Code.USAGE, "give ids or filters, or --all for everything that lies there")
    if run_ids and (filters or everything):
        fail(Code.USAGE, "ids and filters do not go together")
    body = _given(
        ids=run_ids or None,
        filter=None if run_ids else filters,
        canary=canary,
        rate_per_sec=rate,
        ramp_sec=ramp_sec,
        stop_when=_given(failure_ratio=failure_ratio, window=window),
        again=again,
        reason=why,
        dry_run=dry_run,
    )
    with connect(config, url, key) as noonday:
        show(noonday.replays.create(body), as_json)


@replays.command("list")
def list_replays(
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List replays, newest first."""
    with connect(config, url, key) as noonday:
        show_list(noonday.replays.list(limit=min(limit, 200)), REPLAYS, limit, as_json)


@replays.command("get")
def get_replay(
    replay_id: ReplayId,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show how far a replay is, and why it stopped."""
    with connect(config, url, key) as noonday:
        show(noonday.replays.get(replay_id), as_json)


@replays.command()
def pause(
    replay_id: ReplayId,
    why: Why = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Reopen no more for now; what is reopened goes on."""
    with connect(config, url, key) as noonday:
        show(noonday.replays.pause(replay_id, reason=why), as_json)


@replays.command()
def resume(
    replay_id: ReplayId,
    why: Why = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Go on; a replay that its gate has stopped begins with a new canary."""
    with connect(config, url, key) as noonday:
        show(noonday.replays.resume(replay_id, reason=why), as_json)


@replays.command()
def abort(
    replay_id: ReplayId,
    why: Why = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Reopen no more for good; what is reopened goes on."""
    with connect(config, url, key) as noonday:
        show(noonday.replays.abort(replay_id, reason=why), as_json)


def _narrowed(
    reason: str | None,
    fingerprint: str | None,
    job: str | None,
    target_host: str | None,
    dead_from: str | None,
    dead_to: str | None,
) -> dict[str, Any]:
    return {
        "reason": reason,
        "fingerprint": fingerprint,
        "job_id": job,
        "target_host": target_host,
        "dead_from": dead_from,
        "dead_to": dead_to,
    }


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
