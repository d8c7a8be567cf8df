"""Receive Noonday's webhooks: verify them, and make each effect happen once.

One file that needs nothing but Python 3.11: install Noonday, or copy the file. ::

    receiver = Receiver("whsec_...", SqliteStore("deliveries.db"))

    def webhook(headers, body):          # body: the raw bytes as they came
        try:
            accepted = receiver.accept(headers, body)
        except InvalidSignature:
            return 401, {}
        if accepted.verdict is not Verdict.NEW:
            return accepted.status, accepted.headers    # a duplicate says so to Noonday
        bill(accepted.delivery)          # the effect; if it fails, answer 500
        return (200 if receiver.done(accepted.delivery) else 409), {}

Delivery is at least once: an attempt may come twice, late, or beside its successor. The run id
stays the same over all attempts and replays, and the lease version grows from each to the next.
``accept`` lets an attempt in only while no later one has been seen; ``done`` commits it only if
none has come meanwhile.

A job may name a ``cancel_url``, which is called when a request is cut off since its run was
cancelled. ``receiver.cancelled(headers, body)`` verifies such a call; ``verify`` and ``accept`` let
none in, so it may come to the same address. ::

            if notice := receiver.cancelled(headers, body):
                stop_billing(notice.run_id)
                return 200, {}

A crash between the effect and ``done`` still makes the effect happen twice. Close that gap where
the effect is kept in a database: keep the deliveries there too, call ``finish`` in the transaction
of the effect, and roll back when it says False. ``SqliteStore.finish`` takes your connection for
this. For other databases write a ``DedupeStore``; its ``finish`` is one statement ::

    update noonday_deliveries set done = true
     where run_id = $1 and lease_version = $2 and not done

that must change one row, and its ``begin`` applies ``judge`` to the row under a lock.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from os import PathLike
from typing import Any, Final, NamedTuple, Protocol

TOLERANCE_SEC: Final = 300
"""How far the time of a signature may be from ours, before or after."""

_EVENT: Final = "x-noonday-event"
_CANCEL: Final = "cancel"
_SIGNED: Final = (
    "x-job-id",
    "x-run-id",
    "x-occurrence",
    "x-attempt",
    "x-lease-version",
    "x-scheduler-signature",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
)


class InvalidSignature(ValueError):
    """The request was not sent by Noonday as it stands, or not now. ``reason`` is for a log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Delivery:
    """A verified request."""

    job_id: str
    run_id: str
    """The same over all attempts and replays: the key to dedupe effects by."""
    occurrence: datetime
    """The nominal time of the run, whenever it was sent."""
    attempt: int
    lease_version: int
    """The fencing token: grows from each attempt to the next."""
    timestamp: int
    """When this attempt was sent, in seconds since 1970."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """A verified call of a job's ``cancel_url``: the request for this attempt was cut off."""

    job_id: str
    run_id: str
    """The run that was cancelled. No further attempt follows."""
    occurrence: datetime
    attempt: int
    lease_version: int
    """That of the attempt; a delivery with the same one or a lower one may be dropped."""
    timestamp: int
    """When this was sent, in seconds since 1970."""
    reason: str
    """For people; may be empty."""


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    *,
    tolerance_sec: float = TOLERANCE_SEC,
    now: float | None = None,
) -> Delivery:
    """Check both signatures of a delivery and give what it says.

    Args:
        headers: The request's headers; the case of their names does not matter.
        body: The raw bytes as they came, before any parsing.
        secrets: The tenant's secret, ``whsec_...``, or several while one replaces another.
        tolerance_sec: How old, or how early, the signature may be.
        now: Seconds since 1970, for tests.

    Raises:
        InvalidSignature: a signature is missing, wrong or too old, the headers contradict it, or
            the request is a call of a ``cancel_url``.
        ValueError: a secret is none.
    """
    said, timestamp = _verified(headers, body, secrets, tolerance_sec, now)
    if said["webhook-id"].endswith(f"-{_CANCEL}"):  # by what is signed, whatever the headers say
        raise InvalidSignature("is a cancellation, not a delivery")
    return Delivery(**_about(said, said["x-run-id"]), timestamp=timestamp, body=body)


def verify_cancel(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    *,
    tolerance_sec: float = TOLERANCE_SEC,
    now: float | None = None,
) -> Cancel:
    """Check both signatures of a call of a ``cancel_url`` and give what it says.

    Arguments and errors are those of ``verify``; a delivery is refused as InvalidSignature.
    """
    said, timestamp = _verified(headers, body, secrets, tolerance_sec, now)
    about = _about(said, f"{said['x-run-id']}-{_CANCEL}")
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, LookupError, TypeError):
        reason = ""
    return Cancel(**about, timestamp=timestamp, reason=str(reason))


def _verified(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    tolerance_sec: float,
    now: float | None,
) -> tuple[dict[str, str], int]:
    """The headers by their names in lower case, and the time of the signatures."""
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise ValueError("there is no secret to verify with")
    said = _collect(headers)
    timestamp = _timestamp(said, tolerance_sec, time.time() if now is None else now)
    _check_own(said, body, keys)
    _check_standard(said, body, keys)
    return said, timestamp


def _key(secret: str) -> bytes:
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError("a secret must be whsec_ and base64")
    return key


def _collect(headers: Mapping[str, str]) -> dict[str, str]:
    said: dict[str, str] = {}
    for name, value in headers.items():
        lowered = name.lower()
        if lowered in said and lowered in _SIGNED:
            raise InvalidSignature(f"{lowered} is there twice")
        said[lowered] = value
    for name in _SIGNED:
        if not said.get(name, "").isascii() or not said.get(name):
            raise InvalidSignature(f"{name} is missing")
    return said


def _timestamp(said: dict[str, str], tolerance_sec: float, now: float) -> int:
    timestamp = _number(said, "webhook-timestamp")
    if abs(now - timestamp) > tolerance_sec:
        raise InvalidSignature("the signature is too old, or from the future")
    return timestamp


def _check_own(said: dict[str, str], body: bytes, keys: Sequence[bytes]) -> None:
    """``t=<seconds>,v1=<hex>[,v1=<hex>]``: covers what fences, and the body by its digest."""
    fields = [field.partition("=") for field in said["x-scheduler-signature"].split(",")]
    if [value for name, _, value in fields if name == "t"] != [said["webhook-timestamp"]]:
        raise InvalidSignature("the two signatures have different times")
    digest = hashlib.sha256(body).hexdigest()
    parts = ("webhook-timestamp", "webhook-id", "x-attempt", "x-lease-version", "x-occurrence")
    content = ".".join([*(said[part] for part in parts), digest]).encode()
    given = [value for name, _, value in fields if name == "v1"]
    expected = [hmac.digest(key, content, "sha256").hex() for key in keys]
    if not _any_equal(given, expected):
        raise InvalidSignature("x-scheduler-signature does not match")


def _check_standard(said: dict[str, str], body: bytes, keys: Sequence[bytes]) -> None:
    """``v1,<base64>[ v1,<base64>]``, as Standard Webhooks 1.0 has it."""
    content = f"{said['webhook-id']}.{said['webhook-timestamp']}.".encode() + body
    fields = [field.partition(",") for field in said["webhook-signature"].split(" ")]
    given = [value for name, _, value in fields if name == "v1"]
    digests = (hmac.digest(key, content, "sha256") for key in keys)
    if not _any_equal(given, [base64.b64encode(digest).decode() for digest in digests]):
        raise InvalidSignature("webhook-signature does not match")


def _any_equal(given: Sequence[str], expected: Sequence[str]) -> bool:
    """Compare every pair, so that the time taken tells nothing."""
    matches = [hmac.compare_digest(one, other) for one in given for other in expected]
    return any(matches)


def _about(said: dict[str, str], message_id: str) -> dict[str, Any]:
    """What is signed of the attempt, if it is a message of this id."""
    run_id = said["x-run-id"]
    if {said["webhook-id"], said.get("idempotency-key", message_id)} != {message_id}:
        raise InvalidSignature("the ids of the run differ")
    # The job's id is not signed itself, but the run's id begins with it.
    if run_id.partition("-")[0] != said["x-job-id"].replace("-", ""):
        raise InvalidSignature("x-job-id is of another job")
    try:
        occurrence = datetime.fromisoformat(said["x-occurrence"])
    except ValueError:
        raise InvalidSignature("x-occurrence is not a time") from None
    return {
        "job_id": said["x-job-id"],
        "run_id": run_id,
        "occurrence": occurrence,
        "attempt": _number(said, "x-attempt"),
        "lease_version": _number(said, "x-lease-version"),
    }


def _number(said: dict[str, str], name: str) -> int:
    if not said[name].isdigit() or len(said[name]) > 18:
        raise InvalidSignature(f"{name} is not a number")
    return int(said[name])


class Verdict(Enum):
    """What to do with a verified request, and the answer that says so."""

    NEW = (200, None)
    """Make the effect happen, then call ``done``. Any earlier attempt is fenced off from now."""
    DUPLICATE = (200, ("X-Noonday-Duplicate", "1"))
    """The effect has happened: a success, with nothing left to do."""
    IN_PROGRESS = (425, None)
    """This very attempt came before and has not finished, or died. The answer makes Noonday try
    again, with a higher lease version that will be let in."""
    STALE = (409, None)
    """A later attempt has been seen: its sender has lost its lease, and nobody waits for it."""

    def __init__(self, status: int, header: tuple[str, str] | None) -> None:
        self.status: Final = status
        """The HTTP status to answer with."""
        self.headers: Final = dict([header] if header else [])
        """Headers to answer with."""


class Seen(NamedTuple):
    """What a store knows of a run."""

    lease_version: int
    """The highest so far."""
    done: bool


def judge(lease_version: int, seen: Seen | None) -> Verdict:
    """The verdict on an attempt, given what is known of its run."""
    if seen is None:
        return Verdict.NEW
    if lease_version < seen.lease_version:
        return Verdict.STALE
    if seen.done:
        return Verdict.DUPLICATE
    return Verdict.NEW if lease_version > seen.lease_version else Verdict.IN_PROGRESS


class DedupeStore(Protocol):
    """Remembers runs. Each call is atomic, also between processes that share the store.

    It must remember a run for as long as it may be sent again: replays come days later.
    """

    def begin(self, run_id: str, lease_version: int) -> Verdict:
        """``judge`` an attempt, and remember its lease version if that is the highest."""

    def finish(self, run_id: str, lease_version: int) -> bool:
        """Note the effect as done; False, and nothing noted, when another attempt has the run."""
        ...


class MemoryStore:
    """For tests, and for effects that end with the process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, Seen] = {}

    def begin(self, run_id: str, lease_version: int) -> Verdict:
        """See ``DedupeStore``."""
        with self._lock:
            seen = self._runs.get(run_id)
            verdict = judge(lease_version, seen)
            if seen is None or lease_version > seen.lease_version:
                self._runs[run_id] = Seen(lease_version, seen is not None and seen.done)
            return verdict

    def finish(self, run_id: str, lease_version: int) -> bool:
        """See ``DedupeStore``."""
        with self._lock:
            if self._runs.get(run_id) != Seen(lease_version, done=False):
                return False
            self._runs[run_id] = Seen(lease_version, done=True)
            return True


class SqliteStore:
    """Remembers runs in an SQLite file. Threads and processes may share it.

    The table ``noonday_deliveries`` may stand in the file of your own data.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        with closing(self._connect()) as db:
            db.execute(
                "create table if not exists noonday_deliveries (run_id text primary key,"
                " lease_version integer not null, done integer not null, seen_at real not null)"
            )

    def begin(self, run_id: str, lease_version: int) -> Verdict:
        """See ``DedupeStore``."""
        with closing(self._connect()) as db, db:
            db.execute("begin immediate")
            row = db.execute(
                "select lease_version, done from noonday_deliveries where run_id = ?", (run_id,)
            ).fetchone()
            verdict = judge(lease_version, row and Seen(row[0], bool(row[1])))
            db.execute(
                "insert into noonday_deliveries values (?, ?, 0, ?) on conflict (run_id) do update"
                " set lease_version = max(lease_version, excluded.lease_version),"
                " seen_at = excluded.seen_at",
                (run_id, lease_version, time.time()),
            )
            return verdict

    def finish(
        self, run_id: str, lease_version: int, connection: sqlite3.Connection | None = None
    ) -> bool:
        """See ``DedupeStore``. With a ``connection`` it is part of that one's transaction."""
        if connection is None:
            with closing(self._connect()) as db:
                return self.finish(run_id, lease_version, db)
        changed = connection.execute(
            "update noonday_deliveries set done = 1"
            " where run_id = ? and lease_version = ? and not done",
            (run_id, lease_version),
        )
        return changed.rowcount == 1

    def forget(self, older_than_sec: float) -> int:
        """Drop runs not seen for so long; gives their number. A replay of one would be new."""
        with closing(self._connect()) as db:
            limit = time.time() - older_than_sec
            return db.execute("delete from noonday_deliveries where seen_at < ?", (limit,)).rowcount

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)


class Accepted(NamedTuple):
    """A verified request and what to do with it."""

    verdict: Verdict
    delivery: Delivery

    @property
    def status(self) -> int:
        """The HTTP status to answer with; of one that is new, when it is done."""
        return self.verdict.status

    @property
    def headers(self) -> dict[str, str]:
        """Headers to answer with: ``X-Noonday-Duplicate: 1`` where the effect had happened."""
        return dict(self.verdict.headers)


class Receiver:
    """Verifies, fences and dedupes the webhooks of one tenant.

    Args:
        secrets: The tenant's secret, or several while one replaces another.
        store: Remembers runs.
        tolerance_sec: How old, or how early, a signature may be.
    """

    def __init__(
        self,
        secrets: str | Sequence[str],
        store: DedupeStore,
        *,
        tolerance_sec: float = TOLERANCE_SEC,
    ) -> None:
        self._secrets = secrets
        self._store = store
        self._tolerance_sec = tolerance_sec

    def accept(self, headers: Mapping[str, str], body: bytes) -> Accepted:
        """Verify a delivery and judge it. Raises InvalidSignature."""
        delivery = verify(headers, body, self._secrets, tolerance_sec=self._tolerance_sec)
        verdict = self._store.begin(delivery.run_id, delivery.lease_version)
        return Accepted(verdict, delivery)

    def cancelled(self, headers: Mapping[str, str], body: bytes) -> Cancel | None:
        """What a call of a ``cancel_url`` says; None when the request is none.

        It leaves no trace in the store. Raises InvalidSignature.
        """
        events = {value for name, value in headers.items() if name.lower() == _EVENT}
        if events != {_CANCEL}:
            return None
        return verify_cancel(headers, body, self._secrets, tolerance_sec=self._tolerance_sec)

    def done(self, delivery: Delivery) -> bool:
        """Call when the effect has happened. False: a later attempt has taken the run over."""
        return self._store.finish(delivery.run_id, delivery.lease_version)
