"""What waits for its time goes on once, not too soon and hardly late, and together with others."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.flushes import BURST, NUM_TICKS, Flushes
from tests.gateway.serving import until

INTERVAL_S = 0.015
TICK_S = INTERVAL_S / NUM_TICKS


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


@dataclass
class Clock:
    """A simulated one, and the one timer on it, which rings late by ``late_s``, or early."""

    late_s: float = 0.0
    now: float = 100.0
    at: float = math.inf
    num_made: int = 0
    num_set: int = 0

    def time(self) -> float:
        return self.now

    def make_timer(self, callback: Callable[[], None]) -> Clock:
        self.callback = callback
        self.num_made += 1
        return self

    def set(self, at: float) -> None:
        self.at = at
        self.num_set += 1

    def close(self) -> None:
        self.at = math.inf

    def run_until(self, until: float) -> None:
        while self.at + self.late_s <= until:
            self.now = max(self.now, self.at + self.late_s)
            self.at = math.inf
            self.callback()
        self.now = until

    def flushes(self, around: Around | None = None) -> Flushes:
        return Flushes(INTERVAL_S, around, make_timer=self.make_timer, clock=self.time)


@given(
    dues=st.lists(st.floats(100, 100.02), max_size=40),
    late_s=st.sampled_from([-0.001, 0.0, 0.0003, 0.004]),
)
def test_each_is_flushed_once_and_within_a_tick_of_its_time(
    dues: list[float], late_s: float
) -> None:
    clock = Clock(late_s)
    flushes = clock.flushes()
    lines = [Line(flushes) for _ in dues]
    for line, due_at in zip(lines, dues, strict=True):
        line.wait(due_at)
    clock.run_until(101)
    for line, due_at in zip(lines, dues, strict=True):
        (flushed_at,) = line.flushed_at
        assert due_at - 1e-9 <= flushed_at <= due_at + TICK_S + max(late_s, 0) + 1e-9
    assert clock.at == math.inf


def test_one_timer_serves_those_of_a_tick() -> None:
    clock = Clock()
    flushes = clock.flushes()
    edge = TICK_S * math.ceil(100.01 / TICK_S)
    for due_at in (edge - 0.9 * TICK_S, edge - 0.5 * TICK_S, edge - 0.1 * TICK_S):
        Line(flushes).wait(due_at)
    assert clock.num_set == 1
    Line(flushes).wait(edge + 0.5 * TICK_S)  # after that
    assert clock.num_set == 1
    Line(flushes).wait(edge - 1.5 * TICK_S)  # before
    assert clock.num_set == 2
    clock.run_until(101)
    assert clock.num_set == 4
    assert clock.num_made == 1


@dataclass
class Stream:
    """Chunks of tokens that come in steps: what ``reading`` does with them."""

    flushes: Flushes
    due_at: float = -math.inf
    num_pending: int = 0
    is_waiting: bool = False
    sent_at: list[float] = field(default_factory=list)

    def come(self, now: float) -> None:
        self.num_pending += 1
        if now >= self.due_at:
            self._send(now)
        elif not self.is_waiting:
            self.is_waiting = True
            self.flushes.wait(self, self.due_at)

    def flush_late(self, now: float) -> None:
        self.is_waiting = False
        self._send(max(now, self.due_at))

    def _send(self, now: float) -> None:
        if self.num_pending:
            self.sent_at.append(now)
            self.due_at = now + self.flushes.pause_s
        self.num_pending = 0


@given(
    steps_s=st.lists(st.floats(0.0005, 0.0129), min_size=30, max_size=200),
    begins=st.lists(st.integers(0, 15), min_size=1, max_size=8),
)
def test_chunks_are_an_interval_apart_while_tokens_come(
    steps_s: list[float], begins: list[int]
) -> None:
    late_s = 0.0002
    clock = Clock(late_s)
    flushes = clock.flushes()
    streams = [Stream(flushes) for _ in begins]
    for index, step_s in enumerate(steps_s):
        clock.run_until(clock.now + step_s)
        for begin, stream in zip(begins, streams, strict=True):
            if index >= begin:
                stream.come(clock.now)
    for stream in streams:
        for gap_s in gaps(stream.sent_at):
            assert flushes.pause_s - 1e-9 <= gap_s <= INTERVAL_S + late_s + 1e-9


def test_streams_of_one_step_stay_together() -> None:
    clock = Clock(0.0002)
    flushes = clock.flushes()
    streams = [Stream(flushes) for _ in range(3)]
    for _ in range(200):
        clock.run_until(clock.now + 0.006)
        for stream in streams:
            stream.come(clock.now)
    assert clock.num_set <= len(streams[0].sent_at)


def gaps(times: list[float]) -> Iterator[float]:
    return (after - before for before, after in pairwise(times))


@pytest.mark.asyncio
async def test_those_of_one_tick_go_on_in_bursts() -> None:
    around = Around()
    flushes = Flushes(INTERVAL_S, around)
    around.lines = lines = [Line(flushes) for _ in range(2 * BURST + 3)]
    due_at = TICK_S * math.ceil((time.monotonic() + 0.01) / TICK_S)
    for line in lines:
        line.wait(due_at - TICK_S / 2)
    lines[0].wait(due_at + 5 * TICK_S)
    await until(lambda: len(lines[0].flushed_at) == 2)
    assert around.counts == [BURST, BURST, 3, 1]
    assert len({line.flushed_at[0] for line in lines}) == 1
    assert all(len(line.flushed_at) == 1 for line in lines[1:])
    flushes.close()


@pytest.mark.asyncio
async def test_one_may_wait_again_when_it_is_flushed() -> None:
    flushes = Flushes(0.001)

    class Again(Line):
        def flush_late(self, now: float) -> None:
            super().flush_late(now)
            if len(self.flushed_at) < 3:
                self.wait(now + flushes.pause_s)

    line = Again(flushes)
    line.wait(time.monotonic())
    await until(lambda: len(line.flushed_at) == 3)
    assert min(gaps(line.flushed_at)) >= flushes.pause_s
    flushes.close()


@pytest.mark.asyncio
async def test_nothing_is_flushed_or_left_open_once_they_are_closed() -> None:
    num_open = len(os.listdir("/proc/self/fd"))
    flushes = Flushes(INTERVAL_S)
    flushes.close()  # without a timer yet
    line = Line(flushes)
    line.wait(time.monotonic() + 0.005)
    flushes.close()
    await asyncio.sleep(0.02)
    assert not line.flushed_at
    assert len(os.listdir("/proc/self/fd")) == num_open
