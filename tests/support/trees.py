"""The processes below a process, to see that none of them outlives it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A pid may be given again; the time of the start tells the two apart."""

    pid: int
    started: str


def descendants(pid: int) -> set[Process]:
    """All processes below ``pid``, at this moment."""
    found: set[Process] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, _read(task).split()):
            if (stat := _stat(child)) is not None:
                found |= {Process(child, stat[19])} | descendants(child)
    return found


def living(processes: set[Process]) -> set[Process]:
    """Those that have not ended; one that nobody has waited for yet has ended, too."""
    stats = {process: _stat(process.pid) for process in processes}
    return {
        process
        for process, stat in stats.items()
        if stat is not None and stat[19] == process.started and stat[0] not in "ZX"
    }


def _stat(pid: int) -> list[str] | None:
    """The fields of proc_pid_stat(5) from the third on: state, ..., start time."""
    text = _read(Path(f"/proc/{pid}/stat"))
    return text.rpartition(")")[2].split() if text else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
