"""Engines that take a set time for a token, on a machine whose pace changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.bench.race import Standing, median_interval, race
from tests.pairs import each_value


class Machine:
    def __init__(self, noise: float = 0.0, *, seed: int = 0) -> None:
        self.now = 0.0
        self.order: list[tuple[int, str]] = []
        self._noise = noise
        self._rng = random.Random(seed)
        self._pace = 1.0

    def clock(self) -> float:
        return self.now

    def engine(self, name: str, s_per_token: float) -> Callable[[int], int]:
        def work(number: int) -> int:
            self.order.append((number, name))
            # For a while all take longer, and for a moment one does.
            self._pace = max(0.5, self._pace * self._rng.lognormvariate(0, self._noise))
            num_tokens = 10 + number % 3
            self.now += num_tokens * s_per_token * self._pace
            self.now += (self._rng.random() < self._noise) * 5 * s_per_token
            return num_tokens

        return work

    def race(
        self, precision: float = 0.01, max_s: float = 1e9, **taken: float
    ) -> dict[str, Standing]:
        engines = {name: self.engine(name, s) for name, s in taken.items()}
        baseline = [name for name in engines if name in ("plain", "control")]
        return race(engines, baseline, precision=precision, max_s=max_s, clock=self.clock)


def test_without_noise_the_ratio_is_exact() -> None:
    machine = Machine()
    found = machine.race(plain=0.1, control=0.1, faster=0.08)
    assert found["plain"].speed_up == found["control"].speed_up == pytest.approx(1.0)
    assert found["faster"].speed_up == pytest.approx(1.25)
    assert found["faster"].in_all == pytest.approx(1.25)
    assert found["faster"].tok_s == pytest.approx(12.5)
    assert found["faster"].interval == pytest.approx((1.25, 1.25))
    assert max(number for number, _ in machine.order) == 7, "no more rounds than it needs"
    assert found["faster"].num_rounds == 8
    assert found["faster"].num_rounds_for(0.01) <= 1


def test_everybody_follows_everybody_else() -> None:
    machine = Machine()
    machine.race(plain=0.1, control=0.1, other=0.1)
    names = [name for number, name in machine.order if number >= 0]
    rounds = [tuple(names[i : i + 3]) for i in range(0, len(names), 3)]
    assert all(sorted(each) == ["control", "other", "plain"] for each in rounds)
    assert len(set(rounds)) == 6


@pytest.mark.parametrize("seed", each_value(range(5), most=1))
def test_it_says_how_many_rounds_would_be_enough(seed: int) -> None:
    taken = {"plain": 0.001, "control": 0.001, "slower": 0.00102}
    few = Machine(0.03, seed=seed).race(precision=0.04, **taken)["slower"]
    many = Machine(0.03, seed=seed).race(precision=0.005, **taken)["slower"]
    assert few.num_rounds < many.num_rounds
    assert many.num_rounds / 6 < few.num_rounds_for(0.005) < 6 * many.num_rounds


@pytest.mark.parametrize("seed", each_value(range(5), most=1))
def test_two_per_cent_are_told_from_noise_that_is_larger(seed: int) -> None:
    machine = Machine(0.03, seed=seed)
    found = machine.race(plain=0.001, control=0.001, slower=0.00102)
    low, high = found["slower"].interval
    assert high - low <= 0.02
    assert low <= 1 / 1.02 + 0.005
    assert found["slower"].speed_up == pytest.approx(1 / 1.02, abs=0.01)
    assert found["control"].speed_up == pytest.approx(1.0, abs=0.01)


def test_what_happens_seldom_counts_in_all() -> None:
    machine = Machine()
    engines = {name: machine.engine(name, 0.1) for name in ("plain", "often slow")}
    steady = engines["often slow"]

    def sometimes(number: int) -> int:
        machine.now += 5.0 * (number % 4 == 3)
        return steady(number)

    engines["often slow"] = sometimes
    found = race(engines, ["plain"], precision=1.0, max_s=0.0, clock=machine.clock)["often slow"]
    assert found.speed_up == pytest.approx(1.0)
    assert found.in_all < 0.5


def test_it_ends_in_time_where_noise_is_too_large() -> None:
    machine = Machine(0.3)
    found = machine.race(precision=1e-6, max_s=200.0, plain=0.1, control=0.1)
    assert 200 <= machine.now < 250
    low, high = found["control"].interval
    assert high - low > 1e-6


def test_an_interval_has_the_median_as_often_as_it_says() -> None:
    rng, num_hits = random.Random(3), 0
    for _ in range(2000):
        low, high = median_interval(sorted(rng.expovariate(1.0) for _ in range(40)))
        num_hits += low <= 0.6931 <= high
    assert 0.94 < num_hits / 2000 < 0.99
    assert median_interval([2.0]) == (2.0, 2.0)
