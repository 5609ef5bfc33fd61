from __future__ import annotations

import random

import pytest

from engine.scheduler.costs import StepTimes
from engine.scheduler.plan import Encoding, StepPlan
from engine.scheduler.step import Step


def observed(steps: list[tuple[int, float]], *, swap_s_per_block: float = 1.0) -> StepTimes:
    costs = StepTimes(swap_s_per_block)
    for num_tokens, seconds in steps:
        costs.observe(num_tokens, seconds)
    return costs


def test_nothing_is_known_before_the_first_step() -> None:
    assert observed([]).s_per_token is None
    assert not observed([]).prefers_swap(1_000_000, 1)


def test_the_price_of_a_token_is_what_it_adds_to_a_step() -> None:
    rng = random.Random(0)
    sizes = [rng.choice([1, 8, 200, 2048]) for _ in range(300)]
    costs = observed([(n, 0.01 + 0.0002 * n) for n in sizes])
    assert costs.s_per_token == pytest.approx(0.0002, rel=1e-6)


def test_noise_is_averaged_out() -> None:
    rng = random.Random(1)
    sizes = [rng.choice([16, 512]) for _ in range(2000)]
    costs = observed([(n, (0.01 + 0.0002 * n) * rng.uniform(0.8, 1.2)) for n in sizes])
    assert costs.s_per_token == pytest.approx(0.0002, rel=0.1)


def test_steps_of_one_size_give_the_mean() -> None:
    assert observed([(32, 0.016)] * 50).s_per_token == pytest.approx(0.0005)


def test_a_slope_that_makes_no_sense_is_not_believed() -> None:
    assert observed([(1, 9.0), (1000, 1.0)] * 20).s_per_token == pytest.approx(10 / 1001, rel=0.01)


def test_old_steps_are_forgotten() -> None:
    costs = observed(
        [(n, 1.0 * n) for n in (1, 100)] * 300 + [(n, 0.5 * n) for n in (1, 100)] * 900
    )
    assert costs.s_per_token == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("swap_s_per_block", "swaps"), [(0.04, True), (0.06, False)])
def test_the_cheaper_way_wins(swap_s_per_block: float, swaps: bool) -> None:
    # 100 tokens at 10 ms are a second; 10 blocks go out and come back.
    costs = observed([(10, 0.1)], swap_s_per_block=swap_s_per_block)
    assert costs.prefers_swap(100, 10) is swaps


def test_what_others_hold_need_not_be_computed() -> None:
    costs = observed([(10, 0.1)], swap_s_per_block=0.04)
    assert not costs.prefers_swap(50, 10)


def test_steps_that_encode_pictures_say_nothing_of_tokens() -> None:
    times = StepTimes(0.0)
    step = Step(StepPlan(0, encodings=[Encoding(1, 1, b"", [0])]), num_tokens=10)
    times.observe_step(step, 5.0)
    assert times.s_per_token is None
    step.plan.encodings.clear()
    times.observe_step(step, 6.0)
    assert times.s_per_token == pytest.approx(0.1)
