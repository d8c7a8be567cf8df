"""What ``noonday init`` makes, shows once, and leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from noonday.domain.errors import SecretUnreadable
from noonday.server import prepare
from noonday.settings import Settings
from noonday.store import Store, api_keys


async def test_key_and_secret_are_shown_once_and_another_key_can_be_had(
    database_url: str, store: Store, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, database_url=database_url)
    first = await prepare(settings)
    again = await prepare(settings)
    another = await prepare(settings, new_key=True)
    assert first.token is not None
    assert first.signing_secret is not None
    assert (again.token, again.signing_secret) == (None, None)
    assert another.token not in (None, first.token)
    async with store.transaction() as tx:
        assert await api_keys.other_admins(tx, "") == 2


async def test_no_second_key_file_is_made_beside_secrets_that_the_first_one_sealed(
    database_url: str, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, database_url=database_url)
    await prepare(settings)
    settings.secret_key_path.unlink()
    with pytest.raises(SecretUnreadable, match="bring that file here"):
        await prepare(settings)
    assert not settings.secret_key_path.exists()
