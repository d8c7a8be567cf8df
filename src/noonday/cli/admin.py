"""Commands for those who run the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.documents import NONE, given
from noonday.cli.output import show, show_list

tenants = typer.Typer(no_args_is_help=True, help="Who shares this service.")
keys = typer.Typer(no_args_is_help=True, help="Who may call, and what they may do.")

TENANTS: Final = (
    "id", "name", "max_running", "weight", "max_payload_bytes", "creates_per_sec", "creates_burst",
    "create_bytes_per_sec", "max_pending_jobs", "deliveries_per_sec", "jitter_sec",
    "keep_responses",
    "created_at", "secrets_rotated_at",
)  # fmt: skip
KEYS: Final = ("id", "tenant", "role", "name", "created_at", "expires_at", "revoked_at")
WORKERS: Final = (
    "name", "role", "host", "pid", "slots", "in_flight", "alive", "stopping", "seen_at",
)  # fmt: skip
SHARDS: Final = ("shard", "epoch", "owner_id", "leased_until")
ALERTS: Final = (
    "state", "name", "labels", "severity", "since", "times", "value", "summary", "samples",
)  # fmt: skip
AUDIT: Final = ("at", "actor", "action", "object_type", "object_id", "request_id")


def _number(text: str) -> float | str:
    """A number as it is given, or ``none``."""
    if text == NONE:
        return text
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise typer.BadParameter("must be a number, or none to take it away") from None


def _quota(help: str) -> Any:
    return typer.Option(parser=_number, metavar="NUMBER|none", help=help)


CreatesPerSec = Annotated[Any, _quota("Jobs and triggers that may be posted a second.")]
CreatesBurst = Annotated[Any, _quota("How many of them at once after a pause.")]
CreateBytesPerSec = Annotated[Any, _quota("Bytes of payload that may be posted a second.")]
MaxPendingJobs = Annotated[Any, _quota("Jobs that have not ended; with more none is created.")]
DeliveriesPerSec = Annotated[Any, _quota("Requests that are sent a second, by all workers.")]
MaxRunning = Annotated[Any, _quota("Its runs that are carried out at a time.")]


@tenants.command("list")
def list_tenants(
    limit: Limit = 200,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List tenants."""
    with connect(config, url, key) as noonday:
        show_list(noonday.tenants.list(), TENANTS, limit, as_json)


@tenants.command("create")
def create_tenant(
    name: Annotated[str, typer.Argument(help="A name that no tenant has yet.")],
    max_payload_bytes: Annotated[int | None, typer.Option(help="The largest payload.")] = None,
    creates_per_sec: CreatesPerSec = None,
    creates_burst: CreatesBurst = None,
    create_bytes_per_sec: CreateBytesPerSec = None,
    max_pending_jobs: MaxPendingJobs = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Make a tenant. Its signing secret is shown now and never again."""
    settings = given(
        max_payload_bytes=max_payload_bytes,
        creates_per_sec=creates_per_sec,
        creates_burst=creates_burst,
        create_bytes_per_sec=create_bytes_per_sec,
        max_pending_jobs=max_pending_jobs,
    )
    with connect(config, url, key) as noonday:
        show(noonday.tenants.create(name, **settings), as_json)


@tenants.command("set")
def change_tenant(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    keep_responses: Annotated[
        bool | None, typer.Option(help="Whether excerpts of what receivers answer are kept.")
    ] = None,
    max_payload_bytes: Annotated[int | None, typer.Option(help="The largest payload.")] = None,
    creates_per_sec: CreatesPerSec = None,
    creates_burst: CreatesBurst = None,
    create_bytes_per_sec: CreateBytesPerSec = None,
    max_pending_jobs: MaxPendingJobs = None,
    deliveries_per_sec: DeliveriesPerSec = None,
    max_running: MaxRunning = None,
    weight: Annotated[
        float | None, typer.Option(help="Its part of the slots, against other tenants'.")
    ] = None,
    jitter_sec: Annotated[
        int | None, typer.Option(help="Of recurring jobs that name none.", min=0)
    ] = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Change a tenant's settings; what is not given stays.

    \b
    Example:
      noonday tenants set shop --creates-per-sec 50 --max-pending-jobs none
    """
    settings = given(
        keep_responses=keep_responses,
        max_payload_bytes=max_payload_bytes,
        weight=weight,
        jitter_sec=jitter_sec,
        max_running=max_running,
        creates_per_sec=creates_per_sec,
        creates_burst=creates_burst,
        create_bytes_per_sec=create_bytes_per_sec,
        max_pending_jobs=max_pending_jobs,
        deliveries_per_sec=deliveries_per_sec,
    )
    with connect(config, url, key) as noonday:
        show(noonday.tenants.change(name, **settings), as_json)


@tenants.command("rotate-secret")
def rotate_secret(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Make a new signing secret. It is shown now; the old one signs beside it for a day."""
    with connect(config, url, key) as noonday:
        show(noonday.tenants.rotate_secret(name), as_json)


@keys.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose jobs the key is for.")] = "default",
    role: Annotated[str, typer.Option(help="viewer, submitter, operator or admin.")] = "submitter",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires_at: Annotated[
        str | None, typer.Option(help="Until when it is good: 2028-01-01T00:00:00Z.")
    ] = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Make an API key. It is shown now and never again.

    \b
    Example:
      noonday keys create --tenant shop --role submitter --name checkout
    """
    wishes = {"tenant": tenant, "role": role, "name": name}
    if expires_at is not None:
        wishes["expires_at"] = expires_at
    with connect(config, url, key) as noonday:
        show(noonday.api_keys.create(**wishes), as_json)


@keys.command("list")
def list_keys(
    limit: Limit = 200,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List API keys, without their secrets."""
    with connect(config, url, key) as noonday:
        show_list(noonday.api_keys.list(), KEYS, limit, as_json)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id.", metavar="ID")],
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Refuse an API key from now on."""
    with connect(config, url, key) as noonday:
        show(noonday.api_keys.revoke(key_id), as_json)


def workers(
    limit: Limit = 200,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the service's processes: who is alive, and what each is doing."""
    with connect(config, url, key) as noonday:
        show_list(noonday.service.workers(), WORKERS, limit, as_json)


def shards(
    limit: Limit = 64,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the slices of timers and the scheduler that owns each."""
    with connect(config, url, key) as noonday:
        show_list(noonday.service.shards(), SHARDS, limit, as_json)


def backlog(
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Say what is late after an outage: how much is left, how fast it goes, what it waits for."""
    with connect(config, url, key) as noonday:
        show(noonday.service.backlog(), as_json)


def alerts(
    limit: Limit = 200,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List what is wrong with the service, or was lately; what fires comes first."""
    with connect(config, url, key) as noonday:
        show_list(noonday.service.alerts(), ALERTS, limit, as_json)


def audit(
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List what people and programs changed, newest first."""
    with connect(config, url, key) as noonday:
        show_list(noonday.service.audit(), AUDIT, limit, as_json)


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "workers": workers,
    "shards": shards,
    "backlog": backlog,
    "alerts": alerts,
    "audit": audit,
}
