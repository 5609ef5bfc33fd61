"""Covering arrays have every pair, few rows, and leave the rest to the night."""

from __future__ import annotations

import itertools

import pytest

from tests.pairs import covering, each_value, every_pair


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1, 2), (2, 2, 2, 2, 2), (5, 4, 3), (4, 4, 4, 4)])
def test_every_two_places_are_together(sizes: tuple[int, ...]) -> None:
    chosen = covering(*sizes)
    for first, second in itertools.combinations(range(len(sizes)), 2):
        together = {(row[first], row[second]) for row in chosen}
        assert together == set(itertools.product(range(sizes[first]), range(sizes[second])))
    largest, next_largest = sorted(sizes)[-1:-3:-1]
    assert len(chosen) <= 2 * largest * next_largest


def test_the_full_product_runs_at_night() -> None:
    cases = every_pair("abc", [1, 2, 3], [True, False])
    assert [case.values for case in cases] == list(
        itertools.product("abc", [1, 2, 3], [True, False])
    )
    by_day = [case.values for case in cases if not case.marks]
    at_night = [[mark.name for mark in case.marks] for case in cases if case.marks]
    assert at_night == [["nightly"]] * 9
    assert len(by_day) == 9
    assert {values[:2] for values in by_day} == set(itertools.product("abc", [1, 2, 3]))


def test_each_value_is_tried_by_day() -> None:
    cases = each_value("abc", [1, 2])
    assert len(cases) == 6
    assert [case.values for case in cases if not case.marks] == [("a", 1), ("b", 2), ("c", 1)]
    assert [case.values for case in each_value("abc", most=2) if not case.marks] == [("a",), ("b",)]
