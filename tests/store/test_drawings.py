"""What is drawn from the code for people to read is as the code is."""

from __future__ import annotations

from noonday.domain.lifecycle import TRANSITIONS
from noonday.store import Store
from tests.support import schema, state_machine


def test_the_page_of_the_state_machine_is_what_the_table_says() -> None:
    assert state_machine.PAGE.read_text() == state_machine.page()
    assert state_machine.WHAT_HAPPENS.keys() == TRANSITIONS.keys()


async def test_the_schema_file_is_what_the_migrations_make(store: Store) -> None:
    async with store.transaction() as tx:
        assert schema.FILE.read_text() == await schema.schema(tx)
