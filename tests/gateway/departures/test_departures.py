"""Clients that leave at every moment, on every way in; for more: ``python -m
tests.gateway.departures``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.gateway.departures.example import run_example
from tests.gateway.departures.plan import plan_of

NUM_SEEDS, NUM_BY_DAY = 20, 8
ON_UVLOOP = 4, 9
"""In real time."""


@pytest.mark.parametrize(
    "seed",
    [
        *range(NUM_BY_DAY),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(NUM_BY_DAY, NUM_SEEDS)),
    ],
)
def test_whoever_leaves_leaves_nothing(model_dir: Path, seed: int) -> None:
    run_example(replace(plan_of(seed), is_uvloop=seed in ON_UVLOOP), model_dir)
