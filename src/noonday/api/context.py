"""What handlers work with: the parts of the process, and who calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from starlette.requests import Request

from noonday.domain.quotas import Quotas
from noonday.domain.ranking import Ranks, by_time
from noonday.domain.roles import Role
from noonday.store import Store
from noonday.store.backlogs import Backlogs
from noonday.store.blobs import BlobStore
from noonday.store.forecasts import HotMinutes
from noonday.store.lanes import Lanes
from noonday.store.secretbox import SecretBox
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

INLINE_BYTES: Final = 32_768
"""A bigger payload lives in the blob store."""


@dataclass(frozen=True)
class AppContext:
    """The parts of the process that the API uses, and what it was told."""

    store: Store
    blobs: BlobStore
    secretbox: SecretBox
    wakeups: Wakeups
    metrics: Metrics
    backlogs: Backlogs
    ranks: Ranks = by_time
    """Where what becomes due at once queues."""
    allow_private_targets: bool = False
    allowed_ports: tuple[int, ...] = (80, 443)
    """The ports that webhooks may call; none allows all."""
    blobs_shared: bool = False
    """True when workers on other hosts see the same blobs."""
    body_limit: int = 2 * 1024 * 1024
    batch_body_limit: int = 10 * 1024 * 1024


class Caller(NamedTuple):
    """Who a request comes from."""

    key_id: str
    tenant_id: int
    tenant: str
    role: Role
    max_payload_bytes: int
    quotas: Quotas | None = None
    """None without any, so that nothing more is looked at."""
    jitter_sec: int = 0
    """What its tenant's recurring jobs have that name no jitter, unless their lane says it."""


def context_of(request: Request) -> AppContext:
    """The parts that the application was made with."""
    return cast("AppContext", request.app.state.context)


def caller_of(request: Request) -> Caller:
    """Who calls; only on routes with a role."""
    return cast("Caller", request.scope["state"]["caller"])


def lanes_of(request: Request) -> Lanes:
    """The lanes as this process knows them."""
    return cast("Lanes", request.app.state.lanes)


def hot_of(request: Request) -> HotMinutes:
    """The hot minutes as this process knows them."""
    return cast("HotMinutes", request.app.state.hot)
