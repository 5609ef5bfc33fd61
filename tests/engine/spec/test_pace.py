from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.pace import Pace


def run(pace: Pace, slowdown: float, num_steps: int, *, has_drafts: bool = True) -> None:
    """Steps that take so many times as long as usual."""
    for _ in range(num_steps):
        pace.observe(slowdown / pace.value, 1, 100, has_drafts=has_drafts)


def test_it_follows_what_goes_on_as_before() -> None:
    pace = Pace()
    run(pace, 1.0, 20)
    assert pace.value == 1.0
    run(pace, 1.5, 60)
    assert pace.value == pytest.approx(1.5, rel=0.01)
    run(pace, 1.0, 60)
    assert pace.value == pytest.approx(1.0, rel=0.01)


def test_what_changes_along_with_drafts_is_no_change_of_pace() -> None:
    pace = Pace()
    run(pace, 1.0, 20)
    for _ in range(30):
        run(pace, 0.5, 8, has_drafts=False)
        run(pace, 1.0, 20)
    assert pace.value == 1.0


def test_who_is_not_known_says_nothing_of_it() -> None:
    pace = Pace()
    for num_known in range(0, 32, 4):
        assert not pace.observe(2.0, 4, num_known, has_drafts=False)
    assert pace.value == 1.0
    assert pace.observe(2.0, 4, 32, has_drafts=False)
    assert pace.value > 1.0


@given(st.floats(0.5, 2.0), st.integers(1, 8))
def test_several_steps_at_once_count_as_much_as_one_by_one(slowdown: float, number: int) -> None:
    one_by_one, at_once = Pace(), Pace()
    run(one_by_one, 1.0, 16)
    run(at_once, 1.0, 16)
    run(one_by_one, slowdown, number)
    at_once.observe(slowdown, number, 100, has_drafts=True)
    assert at_once.value == pytest.approx(one_by_one.value, rel=1e-6)
