"""A process that owns an embedded Postgres until its input ends, for tests that kill it.

Arguments: state directory, directory of the programs, and optionally the user to become first.
Prints the server's pid once it takes connections.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from noonday.embedded import EmbeddedPostgres, find_binaries


def become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    state_dir, bin_dir, *users = sys.argv[1:]
    for user in users:
        become(user)
    with EmbeddedPostgres(Path(state_dir), binaries=find_binaries(Path(bin_dir))) as server:
        print(server.pid, flush=True)
        sys.stdin.read()
