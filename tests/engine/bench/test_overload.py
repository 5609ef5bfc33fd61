"""More work than the cache can hold: how much of it is done twice."""

from __future__ import annotations

from typing import get_args

import pytest

from engine.bench import overload
from engine.config import Policy
from tests.pairs import each_value

POLICIES = pytest.mark.parametrize("policy", get_args(Policy))


@pytest.mark.parametrize(
    ("policy", "swap", "caching"), each_value(get_args(Policy), [False, True], [True, False])
)
def test_less_than_five_percent_is_computed_again(
    policy: Policy, swap: bool, caching: bool
) -> None:
    report = overload.run(policy, swap=swap, caching=caching)
    assert report.stats.num_preemptions > 0, "not an overload"
    assert report.recomputed_share < 0.05
    assert (report.stats.swapped_in_blocks > 0) == swap


@POLICIES
@pytest.mark.nightly
def test_without_the_forecast_it_is_a_storm(policy: Policy) -> None:
    storm, calm = overload.run(policy, careful=False), overload.run(policy)
    assert storm.recomputed_share > 0.12
    assert calm.seconds < storm.seconds, "being careful must not cost throughput"


@POLICIES
@pytest.mark.nightly
def test_swapping_takes_the_sting_out_of_a_storm(policy: Policy) -> None:
    storm = overload.run(policy, careful=False)
    swapped = overload.run(policy, careful=False, swap=True)
    assert swapped.recomputed_share < storm.recomputed_share / 2
    assert swapped.seconds < storm.seconds


def test_the_trace_is_more_than_can_be_served() -> None:
    arrivals = overload.trace(1, 400)
    report = overload.run("fcfs")
    assert report.seconds > 3 * arrivals[-1][0]


def test_it_prints_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    overload.main(["--requests", "30", "--seed", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "30 requests, seed 3"
    assert len(lines) == 2 + 3 * 2 * 2
    for line in lines[2:]:
        assert line.split()[4].endswith("%")
