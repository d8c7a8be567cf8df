"""Secrets at rest open for their tenant and purpose, with any key at hand, and for nobody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from noonday.domain.errors import SecretUnreadable
from noonday.store.secretbox import HEADERS, SIGNING, SecretBox, create_key_file, read_key_file

OLD, NEW = os.urandom(32), os.urandom(32)


def test_a_secret_comes_back_and_is_not_in_its_envelope() -> None:
    box = SecretBox([NEW])
    sealed = box.seal(b"a very secret header", 7, HEADERS)
    assert box.open(sealed, 7, HEADERS) == b"a very secret header"
    assert b"secret" not in sealed
    assert sealed != box.seal(b"a very secret header", 7, HEADERS)


@pytest.mark.parametrize(("tenant_id", "purpose"), [(8, HEADERS), (7, SIGNING)])
def test_a_secret_does_not_open_for_another_tenant_or_purpose(tenant_id: int, purpose: str) -> None:
    box = SecretBox([NEW])
    with pytest.raises(SecretUnreadable):
        box.open(box.seal(b"x", 7, HEADERS), tenant_id, purpose)


def test_every_changed_byte_is_noticed() -> None:
    box = SecretBox([NEW])
    sealed = box.seal(b"secret", 7, HEADERS)
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(SecretUnreadable):
            box.open(bytes(changed), 7, HEADERS)
        with pytest.raises(SecretUnreadable):
            box.open(sealed[:at], 7, HEADERS)


def test_after_a_rotation_old_secrets_open_and_new_ones_use_the_new_key() -> None:
    old, both, new = SecretBox([OLD]), SecretBox([NEW, OLD]), SecretBox([NEW])
    assert both.open(old.seal(b"x", 1, SIGNING), 1, SIGNING) == b"x"
    assert new.open(both.seal(b"x", 1, SIGNING), 1, SIGNING) == b"x"
    with pytest.raises(SecretUnreadable):
        new.open(old.seal(b"x", 1, SIGNING), 1, SIGNING)
    assert both.verify(old.sign(b"data", "cursor"), b"data", "cursor")
    assert not both.verify(old.sign(b"data", "cursor"), b"data", "other")
    assert not new.verify(old.sign(b"data", "cursor"), b"data", "cursor")


def test_a_key_file_is_private_and_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    create_key_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    sealed = read_key_file(path).seal(b"x", 1, HEADERS)
    with pytest.raises(FileExistsError):
        create_key_file(path)
    fresh = tmp_path / "fresh.key"
    create_key_file(fresh)
    path.write_bytes(fresh.read_bytes() + path.read_bytes())
    assert read_key_file(path).open(sealed, 1, HEADERS) == b"x"


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe", b"not base64!"])
def test_what_is_not_a_key_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    with pytest.raises(SecretUnreadable, match=r"secret\.key"):
        read_key_file(path)
