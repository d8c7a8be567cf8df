"""``noonday up --demo``: example jobs, and a receiver that shows each delivery as it comes.

It acts as a customer would: jobs are made through the API, and each webhook is verified with the
receiver library before it is answered.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Final

import msgspec

from noonday import __version__
from noonday.client import Client, NoondayApiError, NoondayClientError
from noonday.demo.examples import ANSWERS, Examples
from noonday.demo.inbox import receiving
from noonday.demo.output import say
from noonday.settings import Settings, SettingsError, read_client_file
from noonday.supervisor import Running

PATIENCE_SEC: Final = 30.0
"""How long the API may take to come up."""


def permissive(settings: Settings) -> Settings:
    """The settings, but webhooks may call this machine on any port."""
    return msgspec.structs.replace(settings, allow_private_targets=True, allowed_ports=())


def show(running: Running, *, once: bool) -> int:
    """Make the examples and print what arrives; the exit code, for ``supervisor.up``.

    ``once``: end when all that is expected has arrived, or has not within ``DEADLINE_SEC``.
    Otherwise go on showing for as long as the process lives; a negative code leaves it alone.
    """
    try:
        access = _access(running)
        with (
            receiving(access.signing_secret, ANSWERS) as inbox,
            Client(running.address, access.key) as api,
        ):
            _cancel(api)  # what the last demo has left
            say(f"Noonday {__version__} is at {running.address}, its reference at /docs there")
            say("private targets (loopback) and all ports are allowed here: to try things out")
            demo = Examples(api, inbox)
            faults = demo.run()
            if once:
                _cancel(api)
                return 1 if faults else 0
            say(_invitation(running.address, access, inbox.url))
            demo.go_on()
    except (NoondayClientError, SettingsError, OSError) as error:
        print(f"the demo failed: {error}", file=sys.stderr, flush=True)
    return 1 if once else -1


# --- The tenant -------------------------------------------------------------------------------


class _Access(msgspec.Struct, frozen=True):
    """The demo's tenant. Kept beside the data, so that the next start finds its jobs."""

    key: str
    signing_secret: str


def _access(running: Running) -> _Access:
    """The tenant of the last demo if it is still there, else a new one."""
    file = running.settings.home / "demo.json"
    with Client(running.address, _admin_key(running), timeout_sec=PATIENCE_SEC) as admin:
        next(admin.tenants.list(), None)  # returns when the API is up
        kept = _kept(file)
        if kept is not None and _opens(running.address, kept.key):
            return kept
        tenant = admin.tenants.create(f"demo-{secrets.token_hex(4)}")
        key = admin.api_keys.create(tenant=tenant["name"], role="operator", name="demo")
    access = _Access(key["key"], tenant["signing_secret"])
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as kept_in:
        kept_in.write(msgspec.json.encode(access))
    return access


def _admin_key(running: Running) -> str:
    settings = running.settings
    key = running.init.token or settings.api_key or read_client_file(settings).key
    if key is None:
        raise SettingsError([f"no admin key is known: {settings.cli_file} holds none"])
    return key


def _kept(file: Path) -> _Access | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Access)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _opens(address: str, key: str) -> bool:
    with Client(address, key) as api:
        try:
            next(api.jobs.list(limit=1), None)
        except NoondayApiError as error:
            if error.status != 401:
                raise
            return False
    return True


def _cancel(api: Client) -> None:
    for status in ("PENDING", "RUNNING"):
        for job in list(api.jobs.list(status=status)):
            api.jobs.delete(job["id"])


def _invitation(address: str, access: _Access, receiver_url: str) -> str:
    key = access.key
    job = (
        '{"name": "mine", "schedule": {"type": "once", "delay": "PT2S"}, '
        f'"target": {{"type": "http", "url": "{receiver_url}/mine"}}, '
        '"payload": {"hello": "world"}}'
    )
    return f"""
Your turn, in another terminal:

  curl -sS -w '\\n' '{address}/v1/jobs' -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' -d '{job}'

  curl -sS -w '\\n' '{address}/v1/jobs?name_prefix=mine' -H 'Authorization: Bearer {key}'

  NOONDAY_URL={address} NOONDAY_API_KEY={key} \\
    {sys.argv[0]} jobs list

The delivery of your job is shown here, below those of the jobs that recur. Ctrl-C stops all.
This key is one of the demo's own tenant, whose deliveries are signed with {access.signing_secret};
the admin key is in cli.json, and belongs to the tenant `default`.
"""
