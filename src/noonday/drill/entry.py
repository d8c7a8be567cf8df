"""Where a drill is started from: by the command line, and by tests."""

from __future__ import annotations

import asyncio
import signal

import uvloop

from noonday.drill.conductor import Say, conduct
from noonday.drill.options import Options
from noonday.drill.results import Results

INTERRUPTED = 130


def run(options: Options, say: Say = print) -> int:
    """Run a drill and say what it found: 0 when it was passed, 1 when an invariant was broken or
    the drill was empty, 130 when it was interrupted. See :func:`noonday.drill.options.choose`."""
    try:
        results = uvloop.run(_interruptible(options, say))
    except asyncio.CancelledError:
        say("interrupted; everything that was started has been ended")
        return INTERRUPTED
    say(results.as_text())
    say(f"report and timeline: {options.out / 'report.json'}, {options.out / 'timeline.svg'}")
    return 0 if results.passed else 1


async def _interruptible(options: Options, say: Say) -> Results:
    """A signal ends it as the end of its work would: by leaving all that was entered."""
    task = asyncio.create_task(conduct(options, say))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
