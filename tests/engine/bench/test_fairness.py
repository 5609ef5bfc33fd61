"""What a tenant feels of the floods of others: a bound under fair share, and none under fcfs."""

from __future__ import annotations

import pytest

from engine.bench import fairness
from engine.bench.fairness import FLOODS


def test_it_prints_a_line_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    fairness.main(["--seconds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(FLOODS)
    assert lines[0].endswith("2 modelled seconds each")
