from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench import process
from gateway.bench.process import SERVER, Processes, Reading, Window, between, summary, windows
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
    assert found.slope_per_min is None


@pytest.mark.asyncio
async def test_this_process_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "INTERVAL_S", 0.001)
    monkeypatch.setattr(process, "WINDOW_S", 0.02)
    both = Processes([os.getpid(), os.getpid()], {"again": os.getpid()})
    began = time.monotonic()
    watching = asyncio.create_task(both.watch(lambda: round(1000 * time.monotonic())))
    for _ in range(100):  # busy, for it to have something to see
        until = time.monotonic() + 0.002
        while time.monotonic() < until:
            pass
        await asyncio.sleep(0.0001)
    watching.cancel()
    found = both.memory()
    assert found is not None
    assert found.end > 20
    assert both.read(0).cpu_s[SERVER] >= 2 * Processes([os.getpid()]).read(0).cpu_s[SERVER] * 0.9
    ended = time.monotonic()
    seen = both.windows(began, ended)
    assert 2 <= len(seen) <= (ended - began) / 0.02
    assert all(window.duration_s >= 0.02 for window in seen)
    assert sum(window.num_chunks for window in seen) == pytest.approx(
        1000 * (ended - began), rel=0.5
    )
    assert sum(window.cpu_s[SERVER] for window in seen) > 0.05
    assert both.windows(time.monotonic(), time.monotonic() + 9) == []


def test_what_a_child_spends_counts_while_it_runs_and_after() -> None:
    family = Processes([os.getpid()], {"family": os.getpid()})
    before = family.read(0)
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"
    child = subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    running = between(before, family.read(5))
    child.communicate(b"\n")
    ended = between(before, family.read(7))
    for window in (running, ended):
        assert window.cpu_s["family"] - window.cpu_s[SERVER] >= 0.15
    assert (running.num_chunks, ended.num_chunks) == (5, 7)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=50))
def test_windows_lie_side_by_side(gaps: list[float]) -> None:
    times = [sum(gaps[:i]) for i in range(len(gaps))]
    readings = [Reading(at, 0.0, {SERVER: 2 * at}, i) for i, at in enumerate(times)]
    found = windows(readings)
    assert all(one.duration_s >= process.WINDOW_S for one in found)
    assert all(one.cpu_s[SERVER] == pytest.approx(2 * one.duration_s) for one in found)
    assert times[-1] - sum(one.duration_s for one in found) < process.WINDOW_S + 5
    assert sum(one.num_chunks for one in found) <= len(gaps)


def test_cost_of_a_chunk() -> None:
    assert Window(1.0, 4, {SERVER: 0.001}).cpu_us_per_chunk == {SERVER: pytest.approx(250)}
    assert Window(1.0, 0, {SERVER: 0.001}).cpu_us_per_chunk == {}


def test_no_process_says_nothing() -> None:
    assert Processes([]).read(3).cpu_s == {}
    assert Processes([]).memory() is None


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(ClientError, match="no process 999999999"):
        Processes([999999999])


def test_another_process_that_is_not_there() -> None:
    with pytest.raises(ClientError, match="no process 999999999"):
        Processes([os.getpid()], {"engine": 999999999})
