"""Ports that follow one another leave the API's alone."""

from __future__ import annotations

from contextlib import closing

import pytest

from noonday import listening
from noonday.settings import Settings
from noonday.supervisor import _admin_port


@pytest.mark.parametrize("before", [0, 1, 3])
def test_admin_ports_that_count_up_pass_the_port_of_the_api(before: int) -> None:
    with closing(listening.bind("127.0.0.1", 0)) as api:
        taken = api.getsockname()[1]
        settings = Settings(admin_port=taken - before)
        ports = [_admin_port(settings, n, api) for n in range(6)]
    assert taken not in ports
    assert ports == sorted(set(ports))


def test_without_a_port_asked_for_each_takes_a_free_one() -> None:
    with closing(listening.bind("127.0.0.1", 0)) as api:
        assert [_admin_port(Settings(), n, api) for n in range(3)] == [0, 0, 0]
