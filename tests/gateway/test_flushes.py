"""What waits for its time goes on once, not too soon and hardly late, and together with others."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.flushes import BURST, TICK_S, Flushes
from tests.gateway.serving import until


@dataclass
class Line:
    flushes: Flushes
    flushed_at: list[float] = field(default_factory=list)

    def wait(self, due_at: float) -> None:
        self.flushes.wait(self, due_at)

    def flush_late(self, now: float) -> None:
        self.flushed_at.append(now)


class Around(contextlib.AbstractContextManager[None]):
    """Counts what is done within each block."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.counts: list[int] = []

    def __enter__(self) -> None:
        self._before = self._num_flushed()

    def __exit__(self, *reason: object) -> None:
        self.counts.append(self._num_flushed() - self._before)

    def _num_flushed(self) -> int:
        return sum(len(line.flushed_at) for line in self.lines)


class Loop:
    """Takes down the timers that are set, and runs them early by a millisecond."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, object]] = []
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: object, tick: int) -> None:
        self.timers.append((when, lambda: callback(tick)))  # type: ignore[operator]

    def run(self) -> None:
        for when, callback in sorted(self.timers, key=lambda timer: timer[0]):
            self.now = when - 0.001
            callback()  # type: ignore[operator]
        self.timers.clear()


@given(dues=st.lists(st.floats(0, 0.02), max_size=40))
@settings(deadline=None)
def test_each_is_flushed_once_and_within_a_tick_of_its_time(dues: list[float]) -> None:
    loop = Loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        flushes = Flushes(0.015)
        lines = [Line(flushes) for _ in dues]
        for line, due_at in zip(lines, dues, strict=True):
            line.wait(due_at)
        assert len(loop.timers) == len({math.ceil(due_at / TICK_S) for due_at in dues})
        loop.run()
    for line, due_at in zip(lines, dues, strict=True):
        (flushed_at,) = line.flushed_at
        assert due_at - 1e-9 <= flushed_at <= due_at + TICK_S + 1e-9
    assert not flushes._ticks


@pytest.mark.asyncio
async def test_those_of_one_tick_go_on_in_bursts() -> None:
    around = Around()
    flushes = Flushes(0.015, around)
    around.lines = lines = [Line(flushes) for _ in range(2 * BURST + 3)]
    loop = asyncio.get_running_loop()
    due_at = TICK_S * math.ceil((loop.time() + 0.01) / TICK_S)
    for line in lines:
        line.wait(due_at - TICK_S / 2)
    lines[0].wait(due_at + TICK_S / 2)
    await until(lambda: len(lines[0].flushed_at) == 2)
    assert around.counts == [BURST, BURST, 3, 1]
    assert len({line.flushed_at[0] for line in lines}) == 1
    assert all(len(line.flushed_at) == 1 for line in lines[1:])


@pytest.mark.asyncio
async def test_one_may_wait_again_when_it_is_flushed() -> None:
    flushes = Flushes(0.001)

    class Again(Line):
        def flush_late(self, now: float) -> None:
            super().flush_late(now)
            if len(self.flushed_at) < 3:
                self.wait(now + flushes.interval_s)

    line = Again(flushes)
    line.wait(asyncio.get_running_loop().time())
    await until(lambda: len(line.flushed_at) == 3)
    first, second, third = line.flushed_at
    assert second - first >= 0.001
    assert third - second >= 0.001
