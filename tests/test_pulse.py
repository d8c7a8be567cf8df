"""Pauses of a process end together."""

from __future__ import annotations

from functools import partial

import pytest

from noonday import pulse

INSTANTS = (1_000.0, 1_000.3, 1_000.9999, 1_007.123)


def test_pauses_of_a_length_end_at_the_same_instants_and_never_last_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulse, "_PHASE", 0.25)
    for length in (0.5, 1.0, 5.0):
        for now in INSTANTS:
            monkeypatch.setattr("time.monotonic", partial(float, now))
            left = pulse.left(length)
            assert 0 < left <= length
            beats = (now + left - 0.25) / length
            assert beats == pytest.approx(round(beats), abs=1e-6)


def test_a_pause_lasts_as_long_as_is_asked_for_at_least_but_not_longer_than_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulse, "_PHASE", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: 1_000.9)
    assert pulse.left(1.0) == pytest.approx(0.1)
    assert pulse.left(1.0, 0.4) == 0.4
    assert pulse.left(1.0, 7.0) == 1.0
