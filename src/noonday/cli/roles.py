"""Commands that run the service. The only ones that reach inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from noonday.cli.connection import Config
from noonday.cli.failures import Code, fail, settings_failures

if TYPE_CHECKING:
    from noonday.settings import Settings
    from noonday.supervisor import Running

STAY: Final = -1
"""Tells the supervisor to keep things running."""

Home: TypeAlias = Annotated[
    Path | None, typer.Option(help="The folder for all that is kept here. [default: .noonday]")
]
Host: TypeAlias = Annotated[
    str | None, typer.Option(help="The address to listen on. [default: 127.0.0.1]")
]
Port: TypeAlias = Annotated[
    int | None, typer.Option(help="The port of the API; 0 takes a free one. [default: 0]")
]
AdminPort: TypeAlias = Annotated[
    int | None, typer.Option(help="The port of /healthz, /readyz and /metrics. [default: 0]")
]
Pools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pool",
        metavar="LANES=SLOTS",
        help="Slots and the lanes that share them; may be given again. "
        "[default: critical=16 default,batch,*=48 long=32]",
    ),
]
Name: TypeAlias = Annotated[
    str | None, typer.Option(help="How the process is shown. [default: host and pid]")
]


def up(
    port: Port = None,
    admin_port: AdminPort = None,
    host: Host = None,
    home: Home = None,
    pool: Pools = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Worker processes: a number, or bounds like 1..8 to follow the load. [default: 1]"
        ),
    ] = None,
    schedulers: Annotated[int, typer.Option(min=1, max=64, help="Scheduler processes.")] = 1,
    apis: Annotated[
        int, typer.Option(min=1, max=64, help="API processes, which share the port.")
    ] = 1,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run example jobs against a receiver here.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="As --demo, and end when the example jobs have.")
    ] = False,
    config: Config = None,
) -> None:
    """Start everything on this machine: API, scheduler, worker, and a Postgres if none is named.

    \b
    Examples:
      noonday up --port 8000
      noonday up --workers 1..8
      noonday up --demo
    """
    settings = _settings(
        config,
        port=port,
        admin_port=admin_port,
        host=host,
        home=home,
        worker_pools=pool or None,
        workers=workers,
    )
    from noonday import demo as example
    from noonday import supervisor

    demo = demo or once
    if demo:
        settings = example.permissive(settings)

    def show(running: Running) -> int:
        _introduce(running)
        return example.show(running, once=once) if demo else STAY

    with _failures():
        code = supervisor.up(settings, schedulers=schedulers, apis=apis, say=_say, show=show)
    raise typer.Exit(code)


def _introduce(running: Running) -> None:
    """Say where everything is."""
    _say(f"API:   {running.address}  (documentation: {running.address}/docs)")
    for name, address in running.admin_addresses.items():
        _say(f"admin: {address}  ({name})")


def _say(line: str) -> None:
    typer.echo(f"noonday: {line}")


def init(
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make one more admin key: the last one was lost.")
    ] = False,
    home: Home = None,
    config: Config = None,
) -> None:
    """Prepare the database, the key that seals secrets, a first tenant and an admin key.

    Key and signing secret are shown now and never again. May be run again: what is there stays.
    """
    settings = _settings(config, home=home)
    from noonday import server
    from noonday.settings import write_client_file

    with _failures():
        result = server.init(settings, new_key=new_key)
    typer.echo(f"tenant:       {result.tenant}")
    typer.echo(f"admin key:    {result.token or 'made earlier (--new-key makes another)'}")
    typer.echo(f"signed with:  {result.signing_secret or 'made earlier'}")
    typer.echo(f"secrets' key: {result.key_file} (keep a copy: without it no secret opens)")
    if result.token is not None:
        with _failures():
            write_client_file(settings, key=result.token)


def migrate(config: Config = None) -> None:
    """Bring the database to this release. Safe beside processes of the release before."""
    settings = _settings(config)
    from noonday import server

    with _failures():
        applied = server.migrate_database(settings)
    for name in applied or ["nothing to do"]:
        typer.echo(name)


def api(
    port: Port = None,
    admin_port: AdminPort = None,
    host: Host = None,
    name: Name = None,
    config: Config = None,
) -> None:
    """Run one API process."""
    _run("api", _settings(config, port=port, admin_port=admin_port, host=host, worker_name=name))


def scheduler(
    admin_port: AdminPort = None, host: Host = None, name: Name = None, config: Config = None
) -> None:
    """Run one scheduler process."""
    _run("scheduler", _settings(config, admin_port=admin_port, host=host, worker_name=name))


def worker(
    pool: Pools = None,
    name: Name = None,
    grace_sec: Annotated[
        float | None, typer.Option(help="Seconds to finish in when stopped. [default: 20]")
    ] = None,
    admin_port: AdminPort = None,
    host: Host = None,
    config: Config = None,
) -> None:
    """Run one worker process.

    \b
    Examples:
      noonday worker --pool critical=16 --pool default,batch=48 --pool long=8
      noonday worker --pool "*=32"
    """
    settings = _settings(
        config,
        worker_pools=pool or None,
        worker_name=name,
        worker_grace_sec=grace_sec,
        admin_port=admin_port,
        host=host,
    )
    _run("worker", settings)


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "up": up,
    "init": init,
    "migrate": migrate,
    "api": api,
    "scheduler": scheduler,
    "worker": worker,
}


def _settings(config: Path | None, **options: object) -> Settings:
    from noonday.settings import load

    with settings_failures():
        return load(config, options=options)


def _run(role: str, settings: Settings) -> None:
    from noonday import server

    with _failures():
        code = server.run_role(role, settings)
    raise typer.Exit(code)


@contextmanager
def _failures() -> Iterator[None]:
    """What is wrong with this machine or its database ends the command with one sentence."""
    from noonday.domain.errors import NoondayError, StoreUnavailable
    from noonday.embedded import EmbeddedPostgresError

    with settings_failures():
        try:
            yield
        except StoreUnavailable as error:
            fail(Code.UNAVAILABLE, str(error))
        except (NoondayError, EmbeddedPostgresError, OSError) as error:
            fail(Code.FAILED, str(error))
