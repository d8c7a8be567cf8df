"""The exception tree of Noonday.

::

    NoondayError
    ├── ScheduleError          a schedule that cannot be computed; names the field
    ├── FenceLost              this process no longer owns a shard it was about to write
    ├── StoreUnavailable       Postgres cannot be reached or did not answer in time
    │   └── CommitUnknown      the answer to COMMIT was lost: look before answering
    ├── UnsafeDatabase         fsync or full_page_writes is off
    ├── SchemaMismatch         the database's migrations are not the ones of this release
    ├── NoRoom                 the settings ask for more than machine or database will give
    ├── BlobMissing            a payload's reference leads nowhere
    └── SecretUnreadable       a stored secret does not open with the key at hand

Expected results are values (``Outcome``), never exceptions.
"""

from __future__ import annotations


class NoondayError(Exception):
    """Root of all errors that Noonday raises on purpose."""


class ScheduleError(NoondayError):
    """A schedule that cannot be computed, now or ever."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class FenceLost(NoondayError):
    """A shard this process was about to write belongs to another owner by now."""


class StoreUnavailable(NoondayError):
    """Postgres cannot be reached, refuses work, or did not answer in time."""


class CommitUnknown(StoreUnavailable):
    """The connection was lost while COMMIT was under way; it may have happened."""


class UnsafeDatabase(NoondayError):
    """The database runs with a setting under which a committed job can be lost."""


class SchemaMismatch(NoondayError):
    """The database's migrations are not the ones this release was built for."""


class NoRoom(NoondayError):
    """The settings ask for more than this machine or this database will give."""


class BlobMissing(NoondayError):
    """A payload's reference leads to nothing in the blob store."""


class SecretUnreadable(NoondayError):
    """A stored secret does not open with the key at hand."""
