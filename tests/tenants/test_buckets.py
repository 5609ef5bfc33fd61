from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.buckets import (
    MAX_PER_MINUTE,
    MAX_USED,
    UNIT,
    charged,
    refilled,
    remaining,
    reset_us,
    wait_us,
)

MINUTE_US = 60_000_000
limits = st.integers(1, 10_000) | st.integers(1, MAX_PER_MINUTE)
uses = st.integers(0, 2 * MAX_PER_MINUTE * UNIT)


@given(limits, st.lists(st.tuples(st.integers(0, MINUTE_US), st.integers(1, 50)), max_size=60))
def test_admits_all_that_fits_and_nothing_above(
    limit: int, arrivals: list[tuple[int, int]]
) -> None:
    """Against the definition, in fractions: any window of ``t`` holds at most ``n * (1 + t)``."""
    used = last = now = 0
    admitted: list[tuple[int, int]] = []
    for gap, amount in arrivals:
        now += gap
        used, last = refilled(used, limit, now - last), now
        fits = amount <= limit and all(
            sum(size for at, size in admitted if at >= start) + amount
            <= limit * (1 + Fraction(now - start, MINUTE_US))
            for start in {at for at, _ in admitted} | {now}
        )
        assert (wait_us(used, amount, limit) == 0) == fits
        if fits:
            used = charged(used, amount)
            admitted.append((now, amount))


@given(limits, uses, st.integers(1, 10_000))
def test_wait_is_the_first_moment_that_fits(limit: int, used: int, amount: int) -> None:
    wait = wait_us(used, amount, limit)
    if wait is None:
        assert amount > limit
        return
    assert wait_us(refilled(used, limit, wait), amount, limit) == 0
    if wait > 0:
        assert wait_us(refilled(used, limit, wait - 1), amount, limit) == 1


@given(limits, uses)
def test_remaining_is_what_is_admitted(limit: int, used: int) -> None:
    left = remaining(used, limit)
    assert 0 <= left <= limit
    assert left == 0 or wait_us(used, left, limit) == 0
    assert left == limit or wait_us(used, left + 1, limit) != 0


@given(limits, uses)
def test_reset_is_the_first_moment_of_the_whole_limit(limit: int, used: int) -> None:
    wait = reset_us(used, limit)
    assert remaining(refilled(used, limit, wait), limit) == limit
    assert refilled(used, limit, wait) == 0
    assert wait == 0 or refilled(used, limit, wait - 1) > 0


@given(limits, uses, st.lists(st.integers(0, 10**12), max_size=10))
def test_many_small_refills_are_one_large(limit: int, used: int, gaps: list[int]) -> None:
    by_steps = used
    for gap in gaps:
        by_steps = refilled(by_steps, limit, gap)
    assert by_steps == refilled(used, limit, sum(gaps))


@pytest.mark.parametrize("elapsed_us", [-1, -(10**15)])
def test_time_that_runs_backwards_changes_nothing(elapsed_us: int) -> None:
    assert refilled(5 * UNIT, 60, elapsed_us) == 5 * UNIT


def test_giving_back_ends_at_empty_and_debt_at_its_bound() -> None:
    assert charged(5 * UNIT, -3) == 2 * UNIT
    assert charged(5 * UNIT, -8) == 0
    used = 0
    for _ in range(100):
        used = charged(used, MAX_PER_MINUTE)
    assert used == MAX_USED < 2**63
