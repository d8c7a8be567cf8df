"""The composition root: the one place where parts are built, started and stopped.

``ROLES`` says what each process consists of. A role runs until it is told to stop (SIGTERM,
SIGINT, or the end of its standard input when a supervisor started it) and then leaves in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import structlog
import uuid_utils.compat
import uvloop

from noonday import __version__
from noonday.api.admin_port import create_admin_app
from noonday.api.app import create_app
from noonday.api.context import AppContext
from noonday.domain.model import HttpTarget
from noonday.executors.http import HttpExecutor
from noonday.http_server import HttpServer, serve
from noonday.loops import Loop, janitor, reaper, retries, scheduler, worker
from noonday.settings import Settings
from noonday.store import Store, migrate as migrations, workers
from noonday.store.blobs import LocalBlobs
from noonday.store.gauges import QueueGauges
from noonday.store.secretbox import SecretBox
from noonday.store.signing import SigningKeys
from noonday.store.wakeups import RUNS, TIMERS, Wakeups
from noonday.telemetry import Metrics, configure_logs
