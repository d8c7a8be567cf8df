"""Errors that are alike get one fingerprint, so that a flood of them can be told by its kinds."""

from __future__ import annotations

import hashlib
import re
from typing import Final

# What differs between errors of one kind: numbers, ids, addresses, what stands in quotes.
_VARIABLE: Final = re.compile(
    r"""[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|"[^"]*"|'[^']*'|\b[0-9a-f]{16,}\b|\d+(?:[.:]\d+)*""",
    re.IGNORECASE,
)


def fingerprint(reason: str, http_status: int | None, error: str | None) -> str:
    """Sixteen hex digits: the same reason, status, and error but for what varies in it."""
    kind = _VARIABLE.sub("#", error or "")
    text = f"{reason}\n{http_status or ''}\n{' '.join(kind.split())}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
