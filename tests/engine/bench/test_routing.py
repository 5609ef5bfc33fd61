"""Fairness over a fleet, in modelled time: what ``docs/scaling.md`` says of routers."""

from __future__ import annotations

import pytest

from engine.bench.routing import Load, Report, Simulation, max_lead
from engine.client.router import RouterName

LOAD = Load(requests_per_s=0, num_waiting=30, num_blocks=256, max_prefix=512, max_new=32)


def served(policy: RouterName, seconds: float, num_engines: int) -> tuple[Report, float]:
    simulation = Simulation(policy, LOAD, num_engines=num_engines, num_gateways=2)
    report = simulation.run(seconds)
    return report, max_lead(simulation.config, LOAD, num_engines)


def test_two_tenants_with_backlog_are_served_alike_over_the_fleet() -> None:
    """One whose prompts all begin alike, one whose prompts have nothing in common."""
    report, bound = served("d2lpm", 3.0, 2)
    assert report.num_tokens > 10 * bound
    assert report.lead <= bound
    assert report.cached_tokens > report.prompt_tokens / 4


@pytest.mark.nightly
def test_an_engine_for_each_prefix_is_no_fair_share() -> None:
    """What the router is there for: the same load, without looking who waits where."""
    report, bound = served("session_affine", 8.0, 3)
    assert report.lead > bound
    report, bound = served("d2lpm", 8.0, 3)
    assert report.lead <= bound
