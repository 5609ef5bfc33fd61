"""What a tenant feels of the floods of others: a bound under fair share, and none under fcfs."""

from __future__ import annotations

import pytest

from engine.bench import fairness
from engine.bench.fairness import FLOODS, LIVE, Flood


@pytest.mark.nightly
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_no_flood_delays_the_first_token_by_more_than_promised(flood: Flood) -> None:
    """The times are the model's, so they do not depend on the machine."""
    calm = fairness.run("fair_share", flood.single)
    flooded = fairness.run("fair_share", flood)
    assert len(flooded.ttfts_s) == flooded.num_asked
    assert flooded.ttft_s(0.99) <= 4 * calm.ttft_s(0.99)


@pytest.mark.nightly
@pytest.mark.nightly
@pytest.mark.parametrize("live", [LIVE, LIVE._replace(num_streams=4, max_tokens=60)])
def test_ten_thousand_lines_of_batches_are_hardly_felt(live: Flood) -> None:
    calm = fairness.run("fair_share", live)
    beside = fairness.run("fair_share", live._replace(num_lines=10_000))
    assert len(beside.ttfts_s) == beside.num_asked
    assert beside.ttft_s(0.99) <= 1.05 * calm.ttft_s(0.99)
    live_tokens_per_s = beside.tokens_per_s - beside.line_tokens_per_s
    assert live_tokens_per_s >= 0.97 * calm.tokens_per_s
    alone = fairness.run("fair_share", live._replace(num_streams=0, num_lines=10_000))
    assert alone.line_tokens_per_s > calm.tokens_per_s, "what nobody else wants is theirs"


def test_it_prints_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    fairness.main(["--seconds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(FLOODS) + 1
    assert lines[0].endswith("2 modelled seconds each")
