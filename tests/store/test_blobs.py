"""What every store of blobs promises, and what files add to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from noonday.domain.errors import BlobMissing, StoreUnavailable
from noonday.store.blobs import BlobStore, LocalBlobs, new_reference

MEGABYTE = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "blobs"


@pytest.fixture(params=["local"])
async def blobs(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[BlobStore]:
    assert request.param == "local"
    local = LocalBlobs(folder)
    yield local
    local.close()


@pytest.fixture
async def local(folder: Path) -> AsyncIterator[LocalBlobs]:
    local = LocalBlobs(folder)
    yield local
    local.close()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [0, 1, 32_769, 3 * MEGABYTE])
async def test_what_was_put_comes_back_byte_for_byte(blobs: BlobStore, size: int) -> None:
    data = os.urandom(size)
    reference = new_reference()
    assert await blobs.put(reference, data) is True
    assert await blobs.get(reference) == data


async def test_a_reference_is_written_once_and_never_changed(blobs: BlobStore) -> None:
    assert await blobs.put("job-1", b"first") is True
    assert await blobs.put("job-1", b"second") is False
    assert await blobs.get("job-1") == b"first"


async def test_of_puts_at_the_same_time_one_wins_and_all_see_its_bytes(blobs: BlobStore) -> None:
    rivals = [bytes([number]) * 100_000 for number in range(20)]
    written = await asyncio.gather(*(blobs.put("job-1", data) for data in rivals))
    assert written.count(True) == 1
    assert await blobs.get("job-1") == rivals[written.index(True)]


async def test_a_blob_that_is_not_there_is_missing(blobs: BlobStore) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get(new_reference())
    await blobs.put("job-1", b"x")
    with pytest.raises(BlobMissing):
        await blobs.get("job-2")


async def test_deleting_is_idempotent_and_takes_only_one_blob(blobs: BlobStore) -> None:
    await blobs.put("job-1", b"same")
    await blobs.put("job-2", b"same")
    await blobs.delete("job-1")
    await blobs.delete("job-1")
    with pytest.raises(BlobMissing):
        await blobs.get("job-1")
    assert await blobs.get("job-2") == b"same"


@pytest.mark.parametrize(
    "reference", ["", "..", "../x", "a/b", "/etc/passwd", ".", "a\0b", "x" * 400, "tmp/x", "a\n"]
)
async def test_only_a_reference_is_taken_for_one(blobs: BlobStore, reference: str) -> None:
    with pytest.raises(ValueError, match="reference"):
        await blobs.put(reference, b"x")
    with pytest.raises(ValueError, match="reference"):
        await blobs.get(reference)
    with pytest.raises(ValueError, match="reference"):
        await blobs.delete(reference)


async def test_sweeping_leaves_blobs_alone(blobs: BlobStore) -> None:
    await blobs.put("job-1", b"x")
    assert await blobs.sweep(0) == 0
    assert await blobs.get("job-1") == b"x"


async def test_sweeping_an_empty_store_finds_nothing(blobs: BlobStore) -> None:
    assert await blobs.sweep() == 0


# --- files ------------------------------------------------------------------------------------


async def test_nothing_but_the_blob_is_left_after_a_put(local: LocalBlobs, folder: Path) -> None:
    await local.put("job-1", b"x")
    await local.put("job-1", b"y")
    assert [path.name for path in files(folder)] == ["job-1"]
    assert files(folder)[0].stat().st_mode & 0o777 == 0o600


async def test_only_old_unfinished_files_are_swept(local: LocalBlobs, folder: Path) -> None:
    await local.put("job-1", b"x")
    old, young = folder / "tmp" / "old", folder / "tmp" / "young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7_200,) * 2)
    assert await local.sweep() == 1
    assert not old.exists()
    assert young.exists()


WRITER = """
import asyncio, os, sys
from pathlib import Path
from noonday.store.blobs import LocalBlobs

async def main():
    blobs = LocalBlobs(Path(sys.argv[1]))
    number = 0
    while True:
        number += 1
        await blobs.put(f"job-{number}", number.to_bytes(8) * 20_000)
        print(number, flush=True)

asyncio.run(main())
"""


async def test_after_a_kill_every_acknowledged_blob_is_whole(
    local: LocalBlobs, folder: Path
) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()
    for number in acknowledged:
        assert await local.get(f"job-{number}") == number.to_bytes(8) * 20_000
    # The one under way was linked or not; if it was, it is whole, too.
    for path in files(folder):
        if path.parent.name != "tmp":
            number = int(path.name.removeprefix("job-"))
            assert path.read_bytes() == number.to_bytes(8) * 20_000
    await local.sweep(0)
    assert files(folder / "tmp") == []


async def test_storage_that_fails_is_unavailable_and_leaves_nothing_behind(
    local: LocalBlobs, folder: Path
) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"a file where the folder should be")
    with pytest.raises(StoreUnavailable):
        await local.put("job-1", b"x")
    with pytest.raises(StoreUnavailable):
        await local.get("job-1")
    folder.unlink()
    assert await local.put("job-1", b"x") is True


async def test_a_folder_taken_away_while_in_service_is_made_again(
    local: LocalBlobs, folder: Path
) -> None:
    await local.put("job-1", b"x")
    folder.rename(folder.with_name("elsewhere"))
    assert await local.put("job-1", b"y") is True
    assert await local.get("job-1") == b"y"


PUT = """
import asyncio, sys
from pathlib import Path
from noonday.store.blobs import LocalBlobs

async def main():
    blobs = LocalBlobs(Path(sys.argv[1]))
    await blobs.put("job-1", b"x")
    blobs.close()

asyncio.run(main())
"""


@pytest.mark.debian("strace")
def test_a_blob_is_on_disk_before_it_is_acknowledged(folder: Path) -> None:
    watch = ["strace", "-f", "-y", "-e", "trace=fsync,link,linkat"]
    traced = subprocess.run(
        [*watch, sys.executable, "-c", PUT, folder], capture_output=True, text=True, check=True
    )
    lines = [line for line in traced.stderr.splitlines() if str(folder) in line]
    linked = next(number for number, line in enumerate(lines) if "link" in line)
    assert any("fsync" in line and f"{folder}/tmp/" in line for line in lines[:linked])
    assert any("fsync" in line and f"{folder}/" in line for line in lines[linked + 1 :])
