"""What a tenant feels of the floods of others: a bound under fair share, and none under fcfs."""

from __future__ import annotations

import pytest

from engine.bench import fairness
from engine.bench.fairness import FLOODS, Flood


@pytest.mark.nightly
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_no_flood_delays_the_first_token_by_more_than_promised(flood: Flood) -> None:
    """The times are the model's, so they do not depend on the machine."""
    calm = fairness.run("fair_share", flood.single)
    flooded = fairness.run("fair_share", flood)
    assert len(flooded.ttfts_s) == flooded.num_asked
    assert flooded.ttft_s(0.99) <= 4 * calm.ttft_s(0.99)


@pytest.mark.nightly
def test_it_prints_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    fairness.main(["--seconds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(FLOODS)
    assert lines[0].endswith("2 modelled seconds each")
