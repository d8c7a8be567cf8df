"""What a process of Noonday is told before it starts.

A value comes from the command line, else from a ``NOONDAY_*`` variable, else from a TOML file,
else from its default. Nothing else reads the environment, and all faults are reported at once.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_origin

import msgspec

FILE: Final = "noonday.toml"
PREFIX: Final = "NOONDAY_"

# A container platform adds such variables for each service it knows, also one named "noonday".
_OF_THE_PLATFORM: Final = re.compile(r"_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)$")
_PLATFORM_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")
_NOT_SETTINGS: Final = ("NOONDAY_CONFIG", "NOONDAY_TEST_")

_Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
_WebPort = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_Days = Annotated[int, msgspec.Meta(ge=1, le=36_500)]
_Objective = Annotated[str, msgspec.Meta(pattern=r"^[^=\s]+=[1-9][0-9]{0,5}$")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,63}$")]


MOST_WORKERS: Final = 64
"""Worker processes of one ``noonday up``."""
MOST_SLOTS: Final = 10_000
"""Of one pool."""
_LANE: Final = re.compile(r"\*|[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")

_SECRET: Final = (
    "database_url", "database_direct_url", "api_key", "alert_url", "alert_authorization",
)  # fmt: skip


class SettingsError(Exception):
    """One or more settings are wrong. ``faults`` lists them all, each beginning with its key."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class Retention(msgspec.Struct, frozen=True):
    """How long history is kept: ``[retention]`` in the file, ``NOONDAY_RETENTION_*`` outside."""

    success_days: _Days = 7
    """Days that attempts that succeeded, and one-off jobs that did, are kept."""
    failure_days: _Days = 90
    """Days that other attempts, and one-off jobs that ended otherwise, are kept."""
    ledger_days: _Days = 400
    """Days that occurrences and their outcomes are kept; nothing older can be materialized."""
    idempotency_hours: Annotated[int, msgspec.Meta(ge=24, le=8_760)] = 24
    """Hours that the answer to an ``Idempotency-Key`` is kept; the API promises 24."""


class Settings(msgspec.Struct, frozen=True):
    """All settings, each with a default that suits one machine and a first look."""

    home: Path = Path(".noonday")
    """The folder for all that is kept on this machine: the embedded Postgres, blobs, keys."""

    database_url: str | None = None
    """``postgresql://…`` of a Postgres 15 to 18; none means an embedded one below ``home``."""
    database_direct_url: str | None = None
    """The same database without the pooler between, for migrations, LISTEN and partition upkeep.
    None means ``database_url``."""
    pgbouncer: bool = False
    """True when ``database_url`` leads through a pooler in transaction mode."""
    unsafe_database: Literal["refuse", "allow"] = "refuse"
    """What to do when ``fsync`` or ``full_page_writes`` is off, so that a 202 could be lost."""
    postgres_bin: Path | None = None
    """The folder of the programs for the embedded Postgres; none looks for them."""
    pool_size: _Count = 8
    """Most connections to the database, per process."""

    host: str = "127.0.0.1"
    """The address that the API and the admin port listen on."""
    port: _Port = 0
    """The port of the API; 0 takes a free one and says which."""
    admin_port: _Port = 0
    """The port of ``/healthz``, ``/readyz`` and ``/metrics``; 0 takes a free one and says which."""

    allow_private_targets: bool = False
    """Whether webhooks may call loopback and private addresses; link-local ones never."""
    allowed_ports: tuple[_WebPort, ...] = (80, 443)
    """The ports that webhooks may call; an empty list allows all."""

    blobs: Path | None = None
    """The folder for payloads too big for the database; none means ``blobs`` in ``home``."""
    blobs_shared: bool = False
    """True when all hosts see the same ``blobs`` folder."""
    secret_key_file: Path | None = None
    """The key that seals stored secrets; none means ``secret.key`` in ``home``."""

    lane_objective_sec: Annotated[float, msgspec.Meta(gt=0, le=604_800)] = 60.0
    """Seconds that a run may wait although it could be claimed; longer is an alert."""
    lane_objectives: tuple[_Objective, ...] = ()
    """Lanes with objectives of their own, in seconds: ``batch=3600``."""

    catch_up_share: Annotated[float, msgspec.Meta(ge=0.01, le=0.99)] = 0.5
    """After an outage: the most that what is late gets beside what is due now, of schedulers and,
    for each tenant, of slots."""
    catch_up_limit_sec: Annotated[float, msgspec.Meta(ge=1, le=604_800)] = 30.0
    """Seconds that the runs of a lane may have waited for its recurring timers that are late to be
    fired as well; the most urgent ones are for twice as long."""

    alert_url: str | None = None
    """Where notices of alerts are posted; none means nowhere. Private addresses are allowed."""
    alert_authorization: str | None = None
    """The ``Authorization`` header of those notices: ``Bearer …``."""
    alert_repeat_sec: Annotated[int, msgspec.Meta(ge=60, le=604_800)] = 3_600
    """Seconds after which a notice of an alert that still fires is repeated."""

    workers: int | str = 1
    """Worker processes of ``noonday up``: a number, or bounds like ``"1..8"`` between which it
    follows how many slots are wanted."""
    scale_ahead_sec: Annotated[float, msgspec.Meta(ge=0, le=540)] = 120.0
    """Seconds before a known peak at which its slots are wanted: as long as a worker takes to
    come."""
    scale_down_sec: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0
    """Seconds that slots are wanted on although nothing needs them."""

    forecast_every_sec: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 300.0
    """Seconds from one forecast of the next 72 hours to the next one, at the least."""

    worker_pools: tuple[str, ...] = ("critical=16", "default,batch,*=48", "long=32")
    """The slots of one worker process, each of which carries out an attempt at a time, and the
    lanes that share them; ``*`` is every lane that is not named."""
    worker_grace_sec: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 20.0
    """Seconds that running attempts get to finish when a worker stops."""
    breaker_pause_sec: Annotated[float, msgspec.Meta(ge=1, le=3_600)] = 30.0
    """Seconds that a target which fails is left alone the first time; up to ten times as long if
    it goes on failing."""
    worker_name: _Name | None = None
    """How a process is shown in lists and logs; none means its host and pid."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """JSON lines, or text for people; ``auto`` is text on a terminal, else JSON."""

    url: str | None = None
    """Where client commands find the API; none means what ``cli.json`` in ``home`` says."""
    api_key: str | None = None
    """The key of client commands; none means what ``cli.json`` in ``home`` says."""

    retention: Retention = Retention()
    """How long history is kept."""

    @property
    def blobs_folder(self) -> Path:
        """The folder for big payloads."""
        return self.blobs or self.home / "blobs"

    @property
    def secret_key_path(self) -> Path:
        """The file of the key that seals stored secrets."""
        return self.secret_key_file or self.home / "secret.key"

    @property
    def pools(self) -> list[tuple[tuple[str, ...], int]]:
        """The pools of a worker process: lanes, and the slots that they share."""
        return _pools(self.worker_pools)

    @property
    def cli_file(self) -> Path:
        """Where ``init`` and ``up`` leave address and key for client commands."""
        return self.home / "cli.json"

    @property
    def worker_bounds(self) -> tuple[int, int]:
        """The least and the most worker processes of ``noonday up``. Raises ``ValueError`` when
        ``workers`` cannot be read."""
        least, dots, most = str(self.workers).partition("..")
        bounds = int(least), int(most if dots else least)
        if not 1 <= bounds[0] <= bounds[1] <= MOST_WORKERS:
            raise ValueError(self.workers)
        return bounds

    def objective_of(self, lane: str) -> float:
        """How many seconds runs of ``lane`` may wait."""
        own = dict(entry.split("=") for entry in self.lane_objectives)
        return float(own.get(lane, self.lane_objective_sec))

    def __repr__(self) -> str:
        """All settings, credentials left out."""
        shown = msgspec.structs.asdict(self)
        for name in _SECRET:
            shown[name] = None if shown[name] is None else "…"
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class ClientFile(msgspec.Struct, frozen=True):
    """What client commands on this machine use when nothing else is said: address and key."""

    url: str | None = None
    key: str | None = None


def read_client_file(settings: Settings) -> ClientFile:
    """What ``cli.json`` says; raises :class:`SettingsError` when it cannot be read."""
    try:
        return msgspec.json.decode(settings.cli_file.read_bytes(), type=ClientFile)
    except FileNotFoundError:
        return ClientFile()
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError([f"{settings.cli_file}: cannot be read: {error}"]) from None


def write_client_file(
    settings: Settings, *, url: str | None = None, key: str | None = None
) -> None:
    """Change what is given in ``cli.json``, which only its owner may read."""
    old = read_client_file(settings)
    new = ClientFile(url or old.url, key or old.key)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = settings.cli_file.with_suffix(f".{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(new))
    temporary.replace(settings.cli_file)


class _Given(NamedTuple):
    label: str  # how the person who gave it wrote its name
    value: object
    folder: Path  # what a relative path is relative to
    text: bool = False  # from a place where everything is text


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> Settings:
    """Read the settings.

    ``path`` is the TOML file; without one it is ``NOONDAY_CONFIG``, else ``noonday.toml`` here
    if there is one. ``environ`` is the environment of the process unless given; an empty variable
    counts as not set. ``options`` come from the command line, by the names of the fields, None
    for those not given. Paths in the file are relative to it, others to the current folder.

    Raises :class:`SettingsError` with every fault.
    """
    environ = os.environ if environ is None else environ
    faults: list[str] = []
    given = {
        **_from_file(path, environ, faults),
        **_from_environment(environ, faults),
        **_from_options(options or {}),
    }
    values = _convert(given, faults)
    settings = _build(values)
    faults.extend(_contradictions(settings))
    if faults:
        raise SettingsError(faults)
    return settings


def _from_file(
    path: Path | None, environ: Mapping[str, str], faults: list[str]
) -> dict[str, _Given]:
    chosen = path or (Path(environ["NOONDAY_CONFIG"]) if environ.get("NOONDAY_CONFIG") else None)
    file = (chosen or Path(FILE)).expanduser().absolute()
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if chosen is not None:
            faults.append(f"{file}: there is no such file")
        return {}
    except (OSError, ValueError) as error:
        faults.append(f"{file}: cannot be read: {error}")
        return {}
    entries = {name: _Given(name, value, file.parent) for name, value in _flat(document)}
    return _known(entries, faults, f"no such setting in {file.name}")


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", kept) for inner, kept in value.items())
        else:
            yield name, value


def _from_environment(environ: Mapping[str, str], faults: list[str]) -> dict[str, _Given]:
    names = {_variable(name): name for name in _fields()}
    entries = {
        names.get(variable, variable): _Given(variable, value, Path.cwd(), text=True)
        for variable, value in environ.items()
        if variable.startswith(PREFIX) and value and not _is_foreign(variable, value)
    }
    return _known(entries, faults, "no such setting")


def _is_foreign(variable: str, value: str) -> bool:
    return (
        variable.startswith(_NOT_SETTINGS)
        or _OF_THE_PLATFORM.search(variable) is not None
        or _PLATFORM_ADDRESS.match(value) is not None
    )


def _from_options(options: Mapping[str, object]) -> dict[str, _Given]:
    return {
        name: _Given(_option(name), value, Path.cwd(), isinstance(value, str))
        for name, value in options.items()
        if value is not None
    }


def _option(name: str) -> str:
    if name == "worker_pools":
        return "--pool"  # each time it is given adds one
    return f"--{name.removeprefix('worker_').removeprefix('api_').replace('_', '-')}"


def _known(entries: dict[str, _Given], faults: list[str], complaint: str) -> dict[str, _Given]:
    """The entries that are settings; the others become faults, by name."""
    for name in entries.keys() - _fields().keys():
        entry = entries.pop(name)
        known = [_variable(field) if entry.text else field for field in _fields()]
        close = get_close_matches(entry.label, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        faults.append(f"{entry.label}: {complaint}{hint}")
    faults.sort()
    return entries


@cache
def _fields() -> dict[str, Any]:
    """The type of each setting, by its dotted name."""
    flat: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        if field.type is Retention:
            inner = msgspec.structs.fields(Retention)
            flat |= {f"{field.name}.{kept.name}": kept.type for kept in inner}
        else:
            flat[field.name] = field.type
    return flat


def _variable(name: str) -> str:
    return PREFIX + name.replace(".", "_").upper()


def _convert(given: Mapping[str, _Given], faults: list[str]) -> dict[str, Any]:
    values = {}
    for name, entry in given.items():
        try:
            values[name] = _value(entry, _fields()[name])
        except msgspec.ValidationError as error:
            # Its text names the types, never the value, which may be a secret.
            faults.append(f"{entry.label}: {str(error).replace(' - at `$', ' at `')}")
    return values


def _value(entry: _Given, wanted: Any) -> Any:
    value = entry.value
    bare = wanted.__origin__ if hasattr(wanted, "__metadata__") else wanted
    if entry.text and isinstance(value, str) and get_origin(bare) is tuple:
        value = [part.strip() for part in value.split(",") if part.strip()]
    return msgspec.convert(
        value, wanted, strict=not entry.text, dec_hook=partial(_path, entry.folder)
    )


def _path(folder: Path, _wanted: object, value: object) -> Path:
    if not isinstance(value, str | Path):
        raise TypeError("Expected a path")
    return folder / Path(value).expanduser()


def _build(values: Mapping[str, Any]) -> Settings:
    top = {name: value for name, value in values.items() if "." not in name}
    kept = {name.partition(".")[2]: value for name, value in values.items() if "." in name}
    top.setdefault("home", Settings().home.absolute())
    return Settings(**top, retention=Retention(**kept))


def _contradictions(settings: Settings) -> Iterator[str]:
    for name in ("database_url", "database_direct_url"):
        url = getattr(settings, name)
        if url is not None and not url.startswith(("postgresql://", "postgres://")):
            yield f"{name}: has to begin with postgresql://"
    for name in ("url", "alert_url"):
        url = getattr(settings, name)
        if url is not None and not url.startswith(("http://", "https://")):
            yield f"{name}: has to begin with http:// or https://"
    if settings.alert_authorization is not None and settings.alert_url is None:
        yield "alert_authorization: goes with alert_url, which is not set"
    if settings.database_direct_url is not None and settings.database_url is None:
        yield "database_direct_url: goes with database_url, which is not set"
    if settings.pgbouncer and settings.database_direct_url is None:
        yield "pgbouncer: needs database_direct_url, since migrations cannot pass a pooler"
    if not _can_be_read(settings):
        yield f"workers: has to be a number up to {MOST_WORKERS}, or bounds like 1..8"
    try:
        _pools(settings.worker_pools)
    except ValueError as error:
        yield f"worker_pools: {error}"
    if settings.retention.ledger_days < settings.retention.failure_days:
        yield "retention.ledger_days: has to be at least retention.failure_days"


def _pools(texts: Sequence[str]) -> list[tuple[tuple[str, ...], int]]:
    """Read pools, however commas divide them; raises ``ValueError`` with what is wrong."""
    text = ",".join(texts).replace(" ", "")
    if re.sub(r"[^=]*=[^,=]*(,|$)", "", text):
        raise ValueError("each pool is written lane=slots, or lane,lane=slots")
    pools = [
        (tuple(found[1].split(",")), _slots_of(found[1], found[2]))
        for found in re.finditer(r"([^=]*)=([^,=]*)(?:,|$)", text)
    ]
    lanes = [lane for names, _ in pools for lane in names]
    for lane in lanes:
        if not _LANE.fullmatch(lane):
            raise ValueError(f"{lane!r} is no name of a lane")
        if lanes.count(lane) > 1:
            raise ValueError(f"the lane {lane} is named twice, and has one pool")
    if not any(slots for _, slots in pools):
        raise ValueError("a worker has to have at least one slot")
    return pools


def _slots_of(lanes: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_SLOTS):
        raise ValueError(f"the slots of {lanes} have to be a whole number, up to {MOST_SLOTS:,}")
    return int(text)


def _can_be_read(settings: Settings) -> bool:
    try:
        return bool(settings.worker_bounds)
    except ValueError:
        return False
