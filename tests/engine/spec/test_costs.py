from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.costs import LearnedCosts, StepCosts

TABLE = StepCosts(
    [1, 16, 64], [0, 1, 4], [[10.0, 11.0, 14.0], [10.1, 12.0, 18.0], [10.5, 14.0, 40.0]]
)


def test_costs_between_and_beyond_what_was_measured() -> None:
    assert TABLE.seconds(1, 0, 0) == 10.0
    assert TABLE.seconds(1, 4, 4) == 10.5
    assert TABLE.seconds(16, 1, 16) == 12.0
    assert TABLE.seconds(40, 0, 0) == 12.5
    assert TABLE.seconds(128, 0, 0) == 28.0
    assert TABLE.seconds(128, 4, 512) == 80.0
    assert TABLE.seconds(16, 2, 32) == pytest.approx(12 + 2 / 3)
    large = StepCosts([4, 8], [0, 2], [[3.0, 5.0], [4.0, 6.0]])
    assert large.seconds(1, 0, 0) == 3.0
    assert large.seconds(1, 3, 3) == 4.0
    # Where all steps run alike, it is the number of drafts that counts.
    assert TABLE.seconds(16, 4, 32) == TABLE.seconds(16, 2, 32)
    assert list(TABLE.choices) == [1, 2, 3, 4]


def test_padded_steps_take_as_long_as_their_longest_draft() -> None:
    table = replace(TABLE, is_padded=True)
    assert table.seconds(16, 4, 64) == table.seconds(16, 4, 4) == 14.0
    assert table.seconds(16, 2, 32) == 14.0, "there is no graph of two"
    assert list(table.choices) == [1, 4]
    costs = LearnedCosts(table)
    for _ in range(50):
        costs.observe(16, 4, 7, 28.0)
    assert costs.uniform(16, 4) == pytest.approx(28, rel=0.1), "of one kind with even ones"


def test_requests_with_different_numbers_of_drafts_are_of_a_kind_of_their_own() -> None:
    costs = LearnedCosts(TABLE)
    costs.observe(16, 4, 32, 14.0)
    assert costs.num_seen(16, 4, 33) == costs.num_seen(16, 2, 7) == 1
    assert [costs.num_seen(16, length, 16 * length) for length in range(5)] == [0] * 5


def test_a_measurement_counts_beside_a_prior_of_two_steps() -> None:
    """Which is what all steps together say of this kind, beside two that are as the table says."""
    costs = LearnedCosts(TABLE)
    costs.observe(16, 0, 0, 13.0)
    prior = (13 + 2 * 11) / 3
    assert costs.uniform(16, 0) == pytest.approx((13 + 2 * prior) / 3)
    for _ in range(3):
        costs.observe(16, 0, 0, 13.0)
    assert costs.uniform(16, 0) == pytest.approx(13), "these are enough"


def test_a_first_step_that_is_far_off_may_be_an_interruption_a_second_one_is_none() -> None:
    costs = LearnedCosts(TABLE)
    costs.observe(16, 0, 0, 60.0)
    assert costs.uniform(16, 0) < 13
    costs.observe(16, 0, 0, 60.0)
    assert costs.uniform(16, 0) > 40


@given(st.integers(1, 8), st.sampled_from([0, 1, 4]), st.floats(0.9, 1.2))
def test_steps_count_alike_one_by_one_or_together(number: int, length: int, off: float) -> None:
    one_by_one, together = LearnedCosts(TABLE), LearnedCosts(TABLE)
    seconds = off * TABLE.seconds(16, length, 16 * length)
    for costs in (one_by_one, together):
        costs.observe(16, 1, 16, 13.0)
    for _ in range(number):
        one_by_one.observe(16, length, 16 * length, seconds)
    together.observe(16, length, 16 * length, seconds, number)
    for other in (0, 1, 4):
        expected = one_by_one.uniform(16, other)
        assert together.uniform(16, other) == pytest.approx(expected, rel=0.005)


def test_what_is_known_of_steps_without_drafts_is_assumed_of_others() -> None:
    """With drafts they take no less; but where the device is faster than it was, it may not be so
    with drafts."""
    slow, fast = LearnedCosts(TABLE), LearnedCosts(TABLE)
    for number in range(10):
        assert (slow.uniform(16, 4) == 14) == (number < 4), "a few say nothing of others"
        slow.observe(16, 0, 0, 22.0)
        fast.observe(16, 0, 0, 5.5)
    assert slow.uniform(16, 4) == pytest.approx(14 + 11)
    assert fast.uniform(16, 4) == pytest.approx(14)
    assert fast.hopeful(16, 4) == pytest.approx(7, rel=0.01)


def test_until_steps_without_drafts_were_measured_those_with_drafts_stand_for_them() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(100):
        costs.observe(16, 4, 64, 42.0)
    assert costs.uniform(16, 0) == pytest.approx(11 + 28 * 11 / 14, rel=0.05)
    costs.observe(1, 0, 0, 10.0)
    assert costs.uniform(16, 0) < 16


def test_steps_without_drafts_that_are_measured_anew_soon_count_for_most() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(50):
        costs.observe(16, 0, 0, 11.0)
    for _ in range(400):
        costs.observe(16, 4, 64, 18.0)
    assert costs.uniform(16, 0) == pytest.approx(11), "until then they are remembered"
    for _ in range(3):
        costs.observe(16, 0, 0, 14.0)
    assert 12 < costs.uniform(16, 0) < 13.5


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 16]), st.sampled_from([0, 1, 4]), st.floats(0.3, 3.0)),
        max_size=60,
    )
)
def test_it_does_not_matter_how_fast_the_machine_is(steps: list[tuple[int, int, float]]) -> None:
    """All is relative to the table."""
    scale = 1 / 1024  # exactly as precise
    quick = replace(TABLE, taken_s=[[seconds * scale for seconds in row] for row in TABLE.taken_s])
    costs, scaled = LearnedCosts(TABLE), LearnedCosts(quick)
    for batch, length, off in steps:
        seconds = off * TABLE.seconds(batch, length, batch * length)
        costs.observe(batch, length, batch * length, seconds)
        scaled.observe(batch, length, batch * length, seconds * scale)
    assert scaled.pace == pytest.approx(costs.pace)
    for batch, length in product((1, 16, 64), range(5)):
        expected = costs.uniform(batch, length) * scale
        assert scaled.uniform(batch, length) == pytest.approx(expected)


def test_what_steps_take_is_learned_by_kind() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(100):
        costs.observe(16, 0, 0, 22.0)
        costs.observe(16, 4, 64, 42.0)
    assert costs.uniform(16, 0) == pytest.approx(22, rel=0.05)
    assert costs.uniform(16, 4) == pytest.approx(42, rel=0.1)
    assert costs.uniform(1, 0) == pytest.approx(20, rel=0.05), "kinds not seen are like those seen"
    # What comes on top is the host's: as much, or as large a part, whichever is less.
    assert costs.uniform(16, 1) == pytest.approx(12 + 28 * 12 / 14, rel=0.1)
    assert costs.uniform(64, 4) == pytest.approx(40 + 28, rel=0.1)
    costs.observe(16, 1, 16, 12.0)
    assert costs.uniform(16, 1) < 35


def test_other_numbers_of_drafts_are_as_far_off_as_the_one_that_is_made() -> None:
    """In a batch of that size: what was thought of them in a bad moment fades."""
    costs = LearnedCosts(TABLE)
    for _ in range(4):
        costs.observe(16, 4, 64, 60.0)
    for _ in range(400):
        costs.observe(64, 1, 64, 90.0)
        costs.observe(16, 1, 16, 15.0)
    assert costs.uniform(16, 1) == pytest.approx(15, rel=0.1)
    assert 15 + 14 - 12 < costs.uniform(16, 4) < 22


@pytest.mark.parametrize("spike", [15.0, 900.0])
def test_a_table_that_is_far_off_is_found_out_in_a_few_steps(spike: float) -> None:
    """Where the host takes longer than the device, and whatever one of the steps took."""
    costs = LearnedCosts(TABLE)
    for seconds in (spike, 60.0, 61.0, 59.0):
        costs.observe(16, 0, 0, seconds)
        costs.observe(16, 4, 64, 2 * seconds)
    assert costs.uniform(16, 0) == pytest.approx(60, rel=0.05)
    assert costs.uniform(16, 4) == pytest.approx(120, rel=0.4)
    for _ in range(10):
        costs.observe(16, 0, 0, 60.0)
        costs.observe(16, 4, 64, 120.0)
    assert costs.uniform(16, 0) == pytest.approx(60, rel=0.05)
    assert costs.uniform(16, 4) == pytest.approx(120, rel=0.15)


def test_a_table_that_is_nearly_right_is_not_given_up_for_a_bad_moment() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(4):
        costs.observe(16, 4, 64, 1.6 * 14)
    assert costs.uniform(16, 4) < 0.95 * 1.6 * 14


def test_what_was_slow_long_ago_counts_little_beside_what_is_measured_now() -> None:
    """As while an engine starts up."""

    def after(num_plain: int) -> float:
        costs = LearnedCosts(TABLE)
        for _ in range(40):
            costs.observe(16, 4, 64, 36.0)
        for _ in range(num_plain):
            costs.observe(16, 0, 0, 10.1)
        for _ in range(4):
            costs.observe(16, 4, 64, 20.0)
        return costs.uniform(16, 4)

    assert after(20) > 30
    assert after(400) < 28


def test_a_device_that_is_faster_than_it_was_is_so_in_every_step() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(400):
        costs.observe(16, 0, 0, 1.1)
        costs.observe(16, 4, 64, 1.4)
    assert 4.0 < costs.uniform(64, 4) < 7.0
    assert 1.0 < costs.uniform(1, 1) < 1.75


@given(
    st.floats(0.2, 5.0),
    st.lists(st.tuples(st.sampled_from([0, 1, 4]), st.floats(0.5, 2.0)), max_size=60),
)
def test_no_measurement_makes_a_step_take_no_time(
    scale: float, steps: list[tuple[int, float]]
) -> None:
    costs = LearnedCosts(TABLE)
    for length, off in steps:
        costs.observe(16, length, 16 * length, scale * off * TABLE.seconds(16, length, 16 * length))
    for batch in (1, 16, 17, 64, 200):
        for length in range(5):
            seconds = costs.uniform(batch, length)
            assert 0.02 * TABLE.seconds(batch, length, batch * length) < seconds < 1e5
            assert costs.hopeful(batch, length) <= seconds


def test_what_slows_everything_down_says_nothing_of_drafts() -> None:
    """Though only steps with drafts are seen meanwhile."""
    costs = LearnedCosts(TABLE)
    for _ in range(20):
        costs.observe(16, 0, 0, 11.0)
    for _ in range(60):
        costs.observe(16, 4, 64, 18.0)
    for _ in range(100):
        costs.observe(16, 4, 64, 1.6 * 18.0)
    assert costs.pace == pytest.approx(1.6, rel=0.1)
    assert costs.uniform(16, 4) / costs.uniform(16, 0) == pytest.approx(18 / 11, rel=0.1)
    for _ in range(16):
        costs.observe(16, 0, 0, 1.6 * 11.0)
    assert costs.uniform(16, 4) / costs.uniform(16, 0) == pytest.approx(18 / 11, rel=0.1)


def test_drafts_that_become_slower_than_none_are_found_out() -> None:
    """As soon as steps without them are measured anew."""
    costs = LearnedCosts(TABLE)
    for _ in range(40):
        costs.observe(16, 0, 0, 11.0)
        costs.observe(16, 4, 64, 18.0)
    for _ in range(10):
        for _ in range(64):
            costs.observe(16, 4, 64, 1.6 * 18.0)
        for _ in range(3):
            costs.observe(16, 0, 0, 11.0)
    assert costs.uniform(16, 4) / costs.uniform(16, 0) > 1.4 * 18 / 11


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(20):
        costs.observe(1, 4, 4, 21.0)
    for _ in range(2000):
        costs.observe(1, 1, 1, 10.1)
    assert costs.uniform(1, 4) / costs.uniform(1, 1) == pytest.approx(10.5 / 10.1, rel=0.02)


def test_an_interruption_hardly_counts() -> None:
    costs, rng = LearnedCosts(TABLE), random.Random(0)
    for _ in range(500):
        costs.observe(1, 0, 0, 1000.0 if rng.random() < 0.01 else 10.0)
        assert 9.9 < costs.uniform(1, 0) < 11.6


@pytest.mark.parametrize(("full", "less", "other"), [(8, 7, 9), (32, 31, 33), (1, 1, 2)])
def test_a_full_batch_and_one_that_lacks_a_request_are_of_one_kind(
    full: int, less: int, other: int
) -> None:
    """Where requests come and go, both are seen; they must not be judged apart."""
    costs = LearnedCosts(TABLE)
    before = costs.uniform(less, 0)
    for _ in range(10):
        costs.observe(full, 0, 0, 3 * TABLE.seconds(full, 0, 0), num_steps=5)
    assert costs.num_seen(less, 0, 0) == 50
    assert costs.num_seen(other, 0, 0) == costs.num_seen(full, 1, full) == 0
    assert costs.uniform(less, 0) == pytest.approx(3 * before, rel=0.05)
