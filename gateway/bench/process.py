"""The server's processes while they are measured: CPU time and memory."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from statistics import linear_regression
from typing import NamedTuple

import psutil

from gateway.errors import ClientError

INTERVAL_S = 1.0
WARM_UP = 0.25
"""Share of the time whose memory says nothing about growth."""
MIN_SAMPLES = 8
"""Below, a slope would be noise."""
_MIB = 2**20


class Memory(NamedTuple):
    """Resident memory of all processes, in MiB."""

    begin: float
    end: float
    slope_per_min: float
    """Least squares over the time after the warm-up; NaN where that was too short."""


class Processes:
    """None at all, or several whose figures add up: the gateway's workers."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Raises ``ClientError`` for one that is not there."""
        try:
            self._processes = [psutil.Process(pid) for pid in pids]
        except psutil.NoSuchProcess as exc:
            raise ClientError(f"there is no process {exc.pid}") from None
        self._samples: list[tuple[float, float]] = []

    def cpu_s(self) -> float:
        """CPU time so far; NaN if no process is known."""
        times = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in times) if times else math.nan

    async def watch(self) -> None:
        """Note the memory each second, until cancelled."""
        self._samples.clear()
        while self._processes:
            rss = sum(process.memory_info().rss for process in self._processes)
            self._samples.append((time.monotonic(), rss / _MIB))
            await asyncio.sleep(INTERVAL_S)

    def memory(self) -> Memory | None:
        """Of the last watch."""
        return summary(self._samples)


def summary(samples: Sequence[tuple[float, float]]) -> Memory | None:
    """``samples``: seconds and MiB."""
    if not samples:
        return None
    begun, ended = samples[0][0], samples[-1][0]
    late = [one for one in samples if one[0] >= begun + WARM_UP * (ended - begun)]
    slope = math.nan
    if len(late) >= MIN_SAMPLES:
        slope = 60 * linear_regression(*zip(*late, strict=True)).slope
    return Memory(samples[0][1], samples[-1][1], slope)
