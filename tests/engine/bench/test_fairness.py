"""What a tenant feels of the floods of others: a bound under fair share, and none under fcfs."""

from __future__ import annotations

import pytest

from engine.bench import fairness
from engine.bench.fairness import FLOODS, Flood
from engine.bench.overload import STEP_S, TOKEN_S


def test_a_flood_hardly_delays_the_first_token() -> None:
    calm = fairness.run("fair_share", FLOODS[0].single, seconds=12)
    flooded = fairness.run("fair_share", FLOODS[0], seconds=12)
    assert len(flooded.ttfts_s) == flooded.num_asked == calm.num_asked
    assert flooded.ttft_s(0.99) <= 4 * calm.ttft_s(0.99)


@pytest.mark.nightly
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_nor_does_any_other(flood: Flood) -> None:
    calm = fairness.run("fair_share", flood.single)
    flooded = fairness.run("fair_share", flood)
    assert len(flooded.ttfts_s) == flooded.num_asked
    # Many prompts make steps longer: who arrives in one of the longest waits for its end.
    longest_step_s = STEP_S + TOKEN_S * fairness.STEP_TOKENS
    assert flooded.ttft_s(0.99) <= max(4 * calm.ttft_s(0.99), 2 * longest_step_s)


@pytest.mark.nightly
def test_among_fifty_floods_it_has_its_share() -> None:
    """It asks for more than that here, so its requests wait in the end, but not at first."""
    flood = FLOODS[-1]._replace(every_s=1.0)
    calm = fairness.run("fair_share", flood.single)
    flooded = fairness.run("fair_share", flood)
    assert flooded.ttft_s(0.5) <= 4 * calm.ttft_s(0.5)
    all_tokens = 60 * flooded.tokens_per_s
    assert 40 * (len(flooded.ttfts_s) - 1) >= all_tokens / 51


def test_it_prints_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    fairness.main(["--seconds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(FLOODS)
    assert lines[0].endswith("2 modelled seconds each")
