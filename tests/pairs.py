"""Combinations in which every two values meet, in place of all combinations.

What goes wrong does so nearly always by one value, or by two together. ``every_pair`` gives the
cases of a parametrized test: those that a greedy search needs to have all pairs run in the fast
tier, the rest of the full product at night.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def every_pair(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of a value of each axis, for ``pytest.mark.parametrize``."""
    return _by_day(axes, covering(*map(len, axes)))


def each_value(*axes: Sequence[Any], most: int | None = None) -> list[Any]:
    """As ``every_pair``, for tests that take seconds: by day each value is tried once, with the
    values of the other axes in turn; or the first ``most`` of a lone axis."""
    longest = max(map(len, axes))
    chosen = {tuple(i % len(axis) for axis in axes) for i in range(most or longest)}
    return _by_day(axes, chosen)


def covering(*sizes: int) -> set[tuple[int, ...]]:
    """Combinations of places along axes of these sizes, such that each two places of two axes are
    together in one of them."""
    columns = list(itertools.combinations(range(len(sizes)), 2))
    missing = {
        (first, second, one, other)
        for first, second in columns
        for one, other in itertools.product(range(sizes[first]), range(sizes[second]))
    }
    chosen: set[tuple[int, ...]] = set()
    while missing:
        seed = min(missing)
        places: dict[int, int] = {seed[0]: seed[2], seed[1]: seed[3]}
        for axis in range(len(sizes)):
            if axis not in places:
                # The place that meets most partners it has not met; of equals the first.
                met = [_newly_met({**places, axis: place}, missing) for place in range(sizes[axis])]
                places[axis] = met.index(max(met))
        missing -= {(a, b, places[a], places[b]) for a, b in columns}
        chosen.add(tuple(places[axis] for axis in range(len(sizes))))
    return chosen


def _by_day(axes: Sequence[Sequence[Any]], chosen: set[tuple[int, ...]]) -> list[Any]:
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, places, strict=True)),
            marks=() if places in chosen else (pytest.mark.nightly,),
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def _newly_met(places: dict[int, int], missing: set[tuple[int, int, int, int]]) -> int:
    pairs = itertools.combinations(sorted(places), 2)
    return sum((a, b, places[a], places[b]) in missing for a, b in pairs)
