"""More work than the cache can hold: how much of it is done twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.engine.scheduler.simulation import Arrival, Simulation

POLICIES = pytest.mark.parametrize("policy", ["fcfs", "priority", "fair_share"])


def overload(seed: int) -> list[Arrival]:
    """About three times what the engine can serve, of all sizes, from six tenants."""
    rng = random.Random(seed)
    time_s, arrivals = 0.0, []
    for _ in range(400):
        time_s += rng.expovariate(40)
        arrivals.append(
            Arrival(
                time_s,
                f"tenant {rng.randrange(6)}",
                num_prompt_tokens=1 + int(min(400, rng.lognormvariate(4, 1))),
                max_tokens=1 + int(min(400, rng.lognormvariate(4.5, 0.8))),
                priority=rng.choice([0, 0, 1]),
            )
        )
    return arrivals


def run(policy: str, seed: int = 1, **options: Any) -> Simulation:
    return Simulation(
        overload(seed),
        num_blocks=256,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        policy=policy,
        async_scheduling=True,
        **options,
    ).run()


def recompute_share(simulation: Simulation) -> float:
    stats = simulation.core.scheduler.stats
    return stats.recomputed_tokens / stats.scheduled_tokens


@POLICIES
@pytest.mark.parametrize("caching", [True, False], ids=["prefix-cache", "no-cache"])
def test_less_than_five_percent_is_computed_again(policy: str, caching: bool) -> None:
    simulation = run(policy, enable_prefix_caching=caching)
    assert simulation.core.stats().num_preemptions > 0, "not an overload"
    assert recompute_share(simulation) < 0.05


@POLICIES
def test_without_the_forecast_it_is_a_storm(policy: str) -> None:
    storm, calm = run(policy, forecast_admission=False, watermark=0.0), run(policy)
    assert recompute_share(storm) > 0.12
    assert calm.runner.now < storm.runner.now, "being careful must not cost throughput"
