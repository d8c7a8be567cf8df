"""See to it that the server ends when its owner does, even by ``kill -9``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

# Waits for the end of its input, which comes when the owner is gone, then ends the server.
WATCH = 'cat >/dev/null; kill -INT "$0"'


def death_signal() -> tuple[str, ...]:
    """What to put before a command so that the kernel interrupts it when its parent thread ends.

    Empty where that cannot be had; ``watch`` is the second best then.
    """
    prefix = ("setpriv", "--pdeathsig", "INT", "--")  # of util-linux
    if shutil.which("setpriv") is None:
        return ()
    probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)  # noqa: S603
    return prefix if probe.returncode == 0 else ()


def watch(pid: int) -> Callable[[], None]:
    """Interrupt ``pid`` when this process ends; call the result to give that up."""
    watcher = subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", WATCH, str(pid)], stdin=subprocess.PIPE, start_new_session=True
    )

    def give_up() -> None:
        watcher.kill()
        watcher.communicate()

    return give_up
