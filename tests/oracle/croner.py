"""croner as a second opinion, where its rules are ours.

It is asked about years of which all zone data tell the same. It differs in what happens in a gap
and, to several named hours, in a fold, joins ``*/2`` by "or", and has no H: none of that is asked.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

from noonday.domain.model import Cron
from tests.oracle.cases import HAND_MADE, Difference, Turn, expressions, fires, turns_of, zones

HERE = Path(__file__).parent
FOLDER = Path(".venv-oracle")
SINCE, UNTIL = datetime(2008, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
DIALECT = (
    *("0 0 L * *", "15 6 L 2 *", "0 9 * * 5#2", "0 9 * * MON#1", "0 0 * * 5#L", "0 12 1,15 * *"),
    *("0 8 * JAN-MAR MON-FRI", "*/30 * * * * *", "0 30 4 1 * *", "5 0 0 * * SUN", "0 0 * * 7"),
)
AS_WE_WRITE_IT = {"0 0 * * 5#L": "0 0 * * 5L"}


def compare(chance: random.Random, wanted: int, say: Callable[[str], None]) -> list[Difference]:
    """Compare so many fires with it; where it differs. Says so when it cannot be asked."""
    why = _missing()
    if why:
        say(f"croner is left out: {why}")
        return []
    count, differ = 0, list[Difference]()
    command = ["node", str(HERE / "croner.mjs"), str(FOLDER / "node_modules/croner/dist/croner.js")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text, zone, start, end in _questions(chance):
            if count >= wanted:
                break
            question = {"cron": text, "timezone": zone, "start": _shown(start), "end": _shown(end)}
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            said = _instants(json.loads(process.stdout.readline()))
            job = Cron(cron=AS_WE_WRITE_IT.get(text, text), timezone=zone)
            found = list(fires(job, start, end))
            count += max(len(found), 1)
            if found != said:
                differ.append(Difference(job, found, said))
        process.stdin.close()
    say(f"{count:,} fires compared with croner: {len(differ)} differ")
    return differ


def _questions(chance: random.Random) -> Iterator[tuple[str, str, datetime, datetime]]:
    texts, length = expressions(chance), (UNTIL - SINCE) // DAY
    while True:
        for text in (*DIALECT, *islice(filter(_is_ours, texts), 20)):
            start = SINCE + chance.randrange(length) * DAY
            days = 1 if text.startswith("*") or len(text.split()) == 6 else 40
            yield text, "UTC", start, start + days * DAY
        for zone in chance.sample(zones(), 20):
            for turn in filter(_goes_back_an_hour, turns_of(zone)):
                for text in filter(_is_ours_twice, (*HAND_MADE, next(texts))):
                    yield text, zone, turn.at - DAY, turn.at + DAY


def _is_ours(text: str) -> bool:
    """Whether both read the day fields in the same way."""
    day, _, weekday = text.split()[-3:]
    return all(field == "*" or not field.startswith("*") for field in (day, weekday))


def _is_ours_twice(text: str) -> bool:
    """Whether both read it in the same way in a repeated hour: croner takes several hours for
    every hour."""
    hour = text.split()[-4]
    return _is_ours(text) and (hour.startswith("*") or hour.isdigit())


def _goes_back_an_hour(turn: Turn) -> bool:
    if not SINCE < turn.at < UNTIL:
        return False
    place = ZoneInfo(turn.zone)
    before = (turn.at - timedelta(seconds=1)).astimezone(place).utcoffset()
    after = turn.at.astimezone(place).utcoffset()
    assert before is not None
    assert after is not None
    return before - after == timedelta(hours=1)


def _shown(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _instants(answer: Mapping[str, list[float]]) -> list[datetime]:
    return [datetime.fromtimestamp(second, UTC) for second in answer.get("found", [])]


def _missing() -> str:
    """Why it cannot be asked; empty when it can. Installs it once."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "there is no npm"
    FOLDER.mkdir(exist_ok=True)
    mark, lock = FOLDER / "lock.json", HERE / "package-lock.json"
    if not (mark.exists() and mark.read_bytes() == lock.read_bytes()):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, FOLDER / name)
        try:
            subprocess.run(
                [npm, "ci", "--prefix", str(FOLDER), "--no-audit", "--no-fund"],
                check=True, capture_output=True, timeout=300,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        shutil.copy(lock, mark)
    return ""
