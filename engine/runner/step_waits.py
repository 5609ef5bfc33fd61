"""How the host waits for a step: it sleeps for most of it, and spins shortly before it ends.

Spinning all the time would occupy a core. Sleeping until the device signals would be late: waking
up takes as long as a step of a small model, and a core that was idle is slow for a while. But
similar steps take about equally long, so the host knows when to wake up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from engine.scheduler.plan import StepPlan

LONG_S = 0.001
"""In steps that take less than this the host only spins."""
AWAKE_S = 0.0005
"""How long before the expected end of a step the host stops sleeping."""
NAP_S = 0.001
"""The longest sleep; after each, the host asks whether the step has ended early."""
_RISE = 1 / 8
"""The part of the difference by which an expectation grows when a step takes longer."""
# Counts that agree in this many leading bits are of one kind: they differ by an eighth at most.
_LEADING_BITS = 4


class Event(Protocol):
    """A ``torch.cuda.Event``."""

    def query(self) -> bool: ...

    def synchronize(self) -> None:
        """Wait, spinning without the interpreter's lock."""


class StepWaits:
    """Waits for the steps of one device, which run one after the other."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._ended_at = -math.inf
        """When the last step was seen to have ended."""
        self._expected_s: dict[tuple[int, int], float] = {}
        """Expected seconds of a step, by its kind: near the least that was measured."""

    def wait(self, end: Event, plan: StepPlan, launched_at: float) -> None:
        """Return once the device has reached ``end``, the end of a step. Call it for each step, in
        their order. launched_at: when its launch began, by the clock."""
        if not end.query():
            # A step begins where the one before ends.
            self._wait(end, _kind(plan), max(launched_at, self._ended_at))
        self._ended_at = self._clock()

    def _wait(self, end: Event, kind: tuple[int, int], began_at: float) -> None:
        expected_s = self._expected_s.get(kind, 0.0)
        if expected_s < LONG_S or self._nap(end, began_at + expected_s - AWAKE_S):
            end.synchronize()
        taken_s = self._clock() - began_at
        # A longer step may have waited for something else: raise the expectation only slowly.
        self._expected_s[kind] = (
            min(taken_s, expected_s + _RISE * (taken_s - expected_s)) if expected_s else taken_s
        )

    def _nap(self, end: Event, until: float) -> bool:
        """Sleep until the given time; False if the step ended before."""
        while (left_s := until - self._clock()) > 0:
            self._sleep(min(left_s, NAP_S))
            if end.query():
                return False
        return True


def _kind(plan: StepPlan) -> tuple[int, int]:
    """Steps of the same kind take about equally long."""
    return _leading(len(plan.chunks)), _leading(plan.num_tokens)


def _leading(count: int) -> int:
    shift = max(count.bit_length() - _LEADING_BITS, 0)
    return count >> shift << shift
