"""CPU time and memory of the server's processes while it is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import linear_regression
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import psutil

from gateway.errors import ClientError

INTERVAL_S = 1.0
WARM_UP = 0.25
"""Share of the time at the beginning that is left out of the growth of memory."""
MIN_SAMPLES = 8
"""For a shorter time, the slope of memory would be noise."""
WINDOW_S = 3.0
"""Linux counts CPU time in hundredths of a second, which matter in shorter windows."""
SERVER = "server"
"""The name of the processes whose CPU time is reported for each chunk."""
NO_OTHERS: Mapping[str, int] = MappingProxyType({})
_MIB = 2**20


class Memory(NamedTuple):
    """Resident memory of all the server's processes, in MiB."""

    begin: float
    end: float
    slope_per_min: float | None
    """By least squares over the time after the warm-up; None if that was too short."""


class Reading(NamedTuple):
    """Counts up to a moment of ``time.monotonic``."""

    at_s: float
    memory_mib: float
    cpu_s: Mapping[str, float]
    """By name: ``SERVER``, and the others; empty if no process of the server is known."""
    num_chunks: int


class Window(msgspec.Struct, frozen=True):
    """The time between two readings."""

    duration_s: float
    num_chunks: int
    cpu_s: Mapping[str, float]

    @property
    def cpu_us_per_chunk(self) -> Mapping[str, float]:
        """By name; empty if there were no chunks."""
        if not self.num_chunks:
            return {}
        return {name: 1e6 * cpu_s / self.num_chunks for name, cpu_s in self.cpu_s.items()}


class Processes:
    """The processes of a server: the gateway's workers, whose figures are added up. May be none."""

    def __init__(self, pids: Sequence[int], others: Mapping[str, int] = NO_OTHERS) -> None:
        """``others``: what works for the server, each with its descendants. Raises ``ClientError``
        for a process that is not there."""
        try:
            self._processes = [psutil.Process(pid) for pid in pids]
            self._others = {name: psutil.Process(pid) for name, pid in others.items()}
        except psutil.NoSuchProcess as exc:
            raise ClientError(f"there is no process {exc.pid}") from None
        self._readings: list[Reading] = []

    def read(self, num_chunks: int) -> Reading:
        """Read the counts. ``num_chunks``: the number of chunks so far."""
        cpu_s = {}
        if self._processes:
            cpu_s[SERVER] = sum(map(_own_cpu_s, self._processes))
            cpu_s |= {name: _family_cpu_s(process) for name, process in self._others.items()}
        rss = sum(process.memory_info().rss for process in self._processes)
        return Reading(time.monotonic(), rss / _MIB, cpu_s, num_chunks)

    async def watch(self, count: Callable[[], int]) -> None:
        """Take a reading each second, until cancelled. ``count``: returns the number of chunks so
        far."""
        self._readings.clear()
        while True:
            self._readings.append(self.read(count()))
            await asyncio.sleep(INTERVAL_S)

    def memory(self) -> Memory | None:
        """The memory during the last ``watch``; None if no process is known."""
        if not self._processes:
            return None
        return summary([(one.at_s, one.memory_mib) for one in self._readings])

    def windows(self, begin_s: float, end_s: float) -> list[Window]:
        """The windows of the last ``watch`` that lie between these times."""
        return windows([one for one in self._readings if begin_s <= one.at_s <= end_s])


def windows(readings: Sequence[Reading]) -> list[Window]:
    """Consecutive windows, each at least ``WINDOW_S`` long."""
    edges: list[Reading] = []
    for reading in readings:
        if not edges or reading.at_s - edges[-1].at_s >= WINDOW_S:
            edges.append(reading)
    return [between(before, after) for before, after in pairwise(edges)]


def between(before: Reading, after: Reading) -> Window:
    """The window between two readings."""
    return Window(
        after.at_s - before.at_s,
        after.num_chunks - before.num_chunks,
        {name: cpu_s - before.cpu_s[name] for name, cpu_s in after.cpu_s.items()},
    )


def summary(samples: Sequence[tuple[float, float]]) -> Memory | None:
    """``samples``: seconds and MiB."""
    if not samples:
        return None
    begun, ended = samples[0][0], samples[-1][0]
    late = [one for one in samples if one[0] >= begun + WARM_UP * (ended - begun)]
    slope = None
    if len(late) >= MIN_SAMPLES:
        slope = 60 * linear_regression(*zip(*late, strict=True)).slope
    return Memory(samples[0][1], samples[-1][1], slope)


def _own_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _family_cpu_s(process: psutil.Process) -> float:
    """The CPU time of a process and its children, including those that have ended."""
    times = process.cpu_times()
    total = _own_cpu_s(process) + times.children_user + times.children_system
    for child in process.children(recursive=True):
        try:
            total += _own_cpu_s(child)
        except psutil.NoSuchProcess:  # It has ended in between.
            continue
    return float(total)
