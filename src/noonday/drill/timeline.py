"""A drill as a picture: a lane for each process with the faults that met it, and below what was
delivered in each second, and how late."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from noonday.drill.marks import Mark
from noonday.drill.measures import Delivery, Phases

WIDTH: Final = 1_100
LEFT: Final = 110
LANE: Final = 18
CHART: Final = 70
COLOURS: Final = {
    "F1": "#c62828", "F2": "#d84315", "F3": "#ef6c00", "F4": "#ad1457", "F5": "#6a1b9a",
    "F6": "#283593", "F7": "#00838f", "F8": "#2e7d32", "F9": "#558b2f", "F10": "#9e9d24",
    "F11": "#f9a825", "F12": "#4e342e", "F13": "#78909c", "F14": "#90a4ae", "F15": "#5d4037",
    "F17": "#000000", "F19": "#bdbdbd",
}  # fmt: skip
SHADES: Final = {"quiet": "#f1f8e9", "faults": "#ffffff", "healed": "#e8f5e9"}


def draw(
    title: str,
    lanes: Sequence[str],
    marks: Sequence[Mark],
    found: Sequence[Delivery],
    phases: Phases,
) -> str:
    """The picture, as SVG."""
    scale = (WIDTH - LEFT - 10) / max(phases.end - phases.quiet, 1)
    top, bottom = 50, 50 + LANE * len(lanes)
    height = bottom + 2 * CHART + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" font-size="13">{escape(title)}</text>',
        *_legend({mark.number for mark in marks}),
        *_phases(phases, scale, top, height - 20),
        *_lanes(lanes, marks, phases, scale, top),
        *_charts(found, phases, scale, bottom + 14),
        *_axis(phases, scale, height - 6),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(at: float, phases: Phases, scale: float) -> float:
    return LEFT + max(at - phases.quiet, 0.0) * scale


def _legend(numbers: set[str]) -> Iterator[str]:
    for n, number in enumerate(number for number in COLOURS if number in numbers):
        x = 8 + n * 46
        yield f'<rect x="{x}" y="24" width="10" height="10" fill="{COLOURS[number]}"/>'
        yield f'<text x="{x + 13}" y="33">{number}</text>'


def _phases(phases: Phases, scale: float, top: float, bottom: float) -> Iterator[str]:
    edges = [phases.quiet, phases.faults, phases.healed, phases.end]
    for name, start, end in zip(SHADES, edges, edges[1:], strict=False):
        x, right = _x(start, phases, scale), _x(end, phases, scale)
        yield (
            f'<rect x="{x:.1f}" y="{top}" width="{right - x:.1f}" height="{bottom - top}" '
            f'fill="{SHADES[name]}"/><text x="{x + 3:.1f}" y="{top - 3}">{name}</text>'
        )


def _lanes(
    lanes: Sequence[str], marks: Sequence[Mark], phases: Phases, scale: float, top: float
) -> Iterator[str]:
    for n, lane in enumerate(lanes):
        y = top + n * LANE
        yield f'<text x="8" y="{y + 13}">{escape(lane)}</text>'
        yield f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}" stroke="#eeeeee"/>'
        for mark in marks:
            if lane in mark.where:
                x = _x(mark.started_at, phases, scale)
                width = max(_x(mark.ended_at, phases, scale) - x, 2.0)
                text = f"{mark.number} {mark.name}: {mark.detail}. {mark.effect or 'no effect'}"
                yield (
                    f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{LANE - 6}" '
                    f'fill="{COLOURS[mark.number]}" fill-opacity="0.8">'
                    f"<title>{escape(text)}</title></rect>"
                )


def _charts(found: Sequence[Delivery], phases: Phases, scale: float, top: float) -> Iterator[str]:
    arrivals = Counter(int(d.due_at + d.late_sec) for d in found)
    late: defaultdict[int, float] = defaultdict(float)
    for delivery in found:
        second = int(delivery.due_at)
        late[second] = max(late[second], delivery.late_sec)
    most = max(arrivals.values(), default=1)
    for second, count in arrivals.items():
        if second >= phases.end:
            continue
        yield _bar(second, count / most, f"{count} in this second", "#1565c0", phases, scale, top)
    latest = max([1.0, *late.values()])
    for second, seconds in late.items():
        if second >= phases.end:
            continue
        part = math.log1p(seconds) / math.log1p(latest)
        text = f"due in this second, up to {seconds:.2f} s late"
        yield _bar(second, part, text, "#c62828", phases, scale, top + CHART + 14)
    yield f'<text x="8" y="{top + CHART / 2}">first deliveries</text>'
    yield f'<text x="8" y="{top + CHART / 2 + 13}">up to {most}/s</text>'
    yield f'<text x="8" y="{top + CHART * 1.5 + 14}">lateness (log)</text>'
    yield f'<text x="8" y="{top + CHART * 1.5 + 27}">up to {latest:.1f} s</text>'


def _bar(
    second: int, part: float, text: str, colour: str, phases: Phases, scale: float, top: float
) -> str:
    x, size = _x(second, phases, scale), max(part, 0.0) * CHART
    return (
        f'<rect x="{x:.1f}" y="{top + CHART - size:.1f}" width="{max(scale - 0.5, 0.7):.1f}" '
        f'height="{size:.1f}" fill="{colour}"><title>{escape(text)}</title></rect>'
    )


def _axis(phases: Phases, scale: float, y: float) -> Iterator[str]:
    length = phases.end - phases.quiet
    step = next(step for step in (5, 10, 30, 60, 300, 600, 3_600) if length / step < 30)
    for second in range(0, int(length) + 1, step):
        yield f'<text x="{LEFT + second * scale:.1f}" y="{y}">{second} s</text>'
