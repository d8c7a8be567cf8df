"""Secrets at rest: credential headers and signing secrets, sealed with AES-256-GCM.

A sealed value is one version byte, the id of its key, a nonce and the ciphertext. It opens only
for the tenant and the purpose it was sealed for, so that a row copied elsewhere says nothing.
Several keys may be at hand: the newest seals, all of them open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noonday.domain.errors import SecretUnreadable

HEADERS: Final = "secret_headers"
"""Purpose: the credential headers of a job's target, as a JSON object."""
SIGNING: Final = "signing_secret"
"""Purpose: the 32 bytes that a tenant's webhooks are signed with."""

KEY_BYTES: Final = 32
_VERSION: Final = b"\x01"
_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_HEAD: Final = len(_VERSION) + _ID_BYTES


class SecretBox:
    """Seals and opens secrets. ``keys`` are 32 bytes each, newest first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a secret box needs at least one key, each of {KEY_BYTES} bytes")
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        self._newest = _key_id(keys[0])
        self._mac_keys = [hmac.digest(key, b"noonday mac", "sha256") for key in keys]

    def seal(self, secret: bytes, tenant_id: int, purpose: str) -> bytes:
        """``secret`` for the database, bound to a tenant and a purpose."""
        head = _VERSION + self._newest
        nonce = os.urandom(_NONCE_BYTES)
        bound = _bound_to(head, tenant_id, purpose)
        return head + nonce + self._ciphers[self._newest].encrypt(nonce, secret, bound)

    def open(self, sealed: bytes, tenant_id: int, purpose: str) -> bytes:
        """The secret again; raises :class:`SecretUnreadable`, which never tells what was inside."""
        head, nonce = sealed[:_HEAD], sealed[_HEAD : _HEAD + _NONCE_BYTES]
        cipher = self._ciphers.get(head[len(_VERSION) :])
        if head[: len(_VERSION)] != _VERSION or cipher is None or len(nonce) != _NONCE_BYTES:
            raise SecretUnreadable(f"a {purpose} was sealed with a key that is not at hand")
        try:
            bound = _bound_to(head, tenant_id, purpose)
            return cipher.decrypt(nonce, sealed[_HEAD + _NONCE_BYTES :], bound)
        except InvalidTag:
            raise SecretUnreadable(f"a {purpose} was changed, or is another tenant's") from None

    def sign(self, data: bytes, purpose: str) -> bytes:
        """16 bytes that prove that ``data`` came from a holder of the newest key."""
        return _mac(self._mac_keys[0], data, purpose)

    def verify(self, mac: bytes, data: bytes, purpose: str) -> bool:
        """Whether ``mac`` was made for ``data`` with any of the keys."""
        return any(hmac.compare_digest(mac, _mac(key, data, purpose)) for key in self._mac_keys)


def create_key_file(path: Path) -> None:
    """Write a new key, readable by its owner only; an existing file is left and raises.

    The file holds one key a line, base64, newest first; a new line on top rotates.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_key_file(path: Path) -> SecretBox:
    """The box for the keys in a file; raises :class:`SecretUnreadable` when it holds none."""
    try:
        lines = path.read_text("ascii").split()
        return SecretBox([base64.b64decode(line, validate=True) for line in lines])
    except (OSError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise SecretUnreadable(f"{path} is not a key file: {type(error).__name__}") from error


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"noonday key id" + key).digest()[:_ID_BYTES]


def _bound_to(head: bytes, tenant_id: int, purpose: str) -> bytes:
    return head + f"{tenant_id}\x1f{purpose}".encode()


def _mac(key: bytes, data: bytes, purpose: str) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\x1f" + data, "sha256")[:16]
