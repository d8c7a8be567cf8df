"""A process of Noonday with two changes for the bench, otherwise as it is in service.

Runs whose target is :data:`NOOP` succeed without a call, so that all else about them is measured.
Where ``BENCH_CLAIMS`` names a file, the instant and the time taken of each claim that found
something are left there when the process ends: pairs of doubles, in seconds.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from noonday import supervisor
from noonday.domain.model import Attempt, Outcome, OutcomeKind
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from noonday.store import runs

NOOP = "http://127.0.0.1:1/"
_DONE = Outcome(OutcomeKind.SUCCESS, http_status=200)


Execute = Callable[[HttpExecutor, Attempt, Sent], Coroutine[Any, Any, Outcome]]


def partly(execute: Execute) -> Execute:
    """``execute``, but for :data:`NOOP`."""

    async def executing(executor: HttpExecutor, attempt: Attempt, sent: Sent) -> Outcome:
        if attempt.target.url != NOOP:
            return await execute(executor, attempt, sent)
        sent.maybe = True
        return _DONE

    return executing


Claim = Callable[..., Coroutine[Any, Any, runs.Claimed | None]]


def timed(claim: Claim, took: array[float]) -> Claim:
    """``claim``, noting when and for how long."""

    async def noting(*args: Any) -> runs.Claimed | None:
        began = time.perf_counter()
        claimed = await claim(*args)
        if claimed is not None and claimed.rows:
            took.extend((time.time(), time.perf_counter() - began))
        return claimed

    return noting


def main() -> int:
    took: array[float] = array("d")
    path = os.environ.get("BENCH_CLAIMS")
    setattr(HttpExecutor, "execute", partly(HttpExecutor.execute))  # noqa: B010 - as mypy wants it
    if path:
        vars(runs)["claim_known"] = timed(runs.claim_known, took)
    code = supervisor.main()
    if path:
        Path(path).write_bytes(took.tobytes())
    return code


if __name__ == "__main__":
    sys.exit(main())
