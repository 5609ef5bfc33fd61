from __future__ import annotations

import asyncio
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench import process
from gateway.bench.process import Processes, summary
from gateway.errors import ClientError


@given(begin=st.floats(1, 1e4), slope=st.floats(-5, 5), num=st.integers(20, 600))
def test_a_steady_growth_is_found_behind_the_warm_up(begin: float, slope: float, num: int) -> None:
    samples = [(100.0 + t, begin + slope * t / 60) for t in range(num)]
    samples[0] = (100.0, 0.5)  # what comes up first
    found = summary(samples)
    assert found is not None
    assert found.begin == 0.5
    assert found.end == samples[-1][1]
    assert found.slope_per_min == pytest.approx(slope, abs=1e-3)


def test_too_little_says_nothing_of_growth() -> None:
    assert summary([]) is None
    found = summary([(0.0, 1.0), (1.0, 2.0)])
    assert found is not None
    assert math.isnan(found.slope_per_min)


@pytest.mark.asyncio
async def test_this_process_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "INTERVAL_S", 0.001)
    both = Processes([os.getpid(), os.getpid()])
    watching = asyncio.create_task(both.watch())
    await asyncio.sleep(0.1)
    watching.cancel()
    found = both.memory()
    assert found is not None
    assert found.end > 20
    assert both.cpu_s() >= 2 * Processes([os.getpid()]).cpu_s() * 0.9


def test_no_process_says_nothing() -> None:
    assert math.isnan(Processes([]).cpu_s())
    assert Processes([]).memory() is None


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(ClientError, match="no process 999999999"):
        Processes([999999999])
