from __future__ import annotations

import random
from dataclasses import replace

import pytest

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
    assert costs.even(16, 4) == pytest.approx(28, rel=0.1), "of one kind with even ones"


def test_what_steps_take_is_learned_by_kind() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(100):
        costs.observe(16, 0, 0, 22.0)
        costs.observe(16, 4, 64, 42.0)
    assert costs.even(16, 0) == pytest.approx(22, rel=0.05)
    assert costs.even(16, 4) == pytest.approx(42, rel=0.1)
    assert costs.even(1, 0) == pytest.approx(20, rel=0.05), "kinds not seen are like those seen"
    assert costs.even(16, 1) == pytest.approx(36, rel=0.1)
    costs.observe(16, 1, 16, 12.0)
    assert costs.even(16, 1) < 35


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    costs = LearnedCosts(TABLE)
    for _ in range(20):
        costs.observe(1, 4, 4, 21.0)
    for _ in range(2000):
        costs.observe(1, 1, 1, 10.1)
    assert costs.even(1, 4) == pytest.approx(10.5, rel=0.02)


def test_an_interruption_hardly_counts() -> None:
    costs, rng = LearnedCosts(TABLE), random.Random(0)
    for _ in range(500):
        costs.observe(1, 0, 0, 1000.0 if rng.random() < 0.01 else 10.0)
        assert 10.0 <= costs.even(1, 0) < 11.6


@pytest.mark.parametrize(("full", "less", "other"), [(8, 7, 9), (32, 31, 33), (1, 1, 2)])
def test_a_full_batch_and_one_that_lacks_a_request_are_of_one_kind(
    full: int, less: int, other: int
) -> None:
    """Where requests come and go, both are seen; they must not be judged apart."""
    costs = LearnedCosts(TABLE)
    before = costs.even(less, 0)
    for _ in range(10):
        costs.observe(full, 0, 0, 3 * TABLE.seconds(full, 0, 0), num_steps=5)
    assert costs.num_seen(less, 0, 0) == 50
    assert costs.num_seen(other, 0, 0) == costs.num_seen(full, 1, full) == 0
    assert costs.even(less, 0) == pytest.approx(3 * before, rel=0.05)
