"""How the host waits for a step: asleep for most of it, and awake before it ends.

A host that spins takes a core for itself, and one that sleeps until the device wakes it comes late:
to wake up takes as long as a small model's step, and a core that has slept is slow for a while. But
steps that are alike take equally long, so it is known when to wake up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from engine.scheduler.plan import StepPlan

LONG_S = 0.001
"""Shorter steps are not slept through at all."""
AWAKE_S = 0.0005
"""Before a step is expected to end the host spins for so long."""
NAP_S = 0.001
"""So often a host that sleeps asks whether the step has ended sooner than expected."""
_RISE = 1 / 8
# Lengths that agree in so many leading bits are alike: they differ by an eighth at most.
_LEADING_BITS = 4


class Event(Protocol):
    """Of ``torch.cuda``: the device gets there."""

    def query(self) -> bool: ...

    def synchronize(self) -> None:
        """Spins, without the interpreter's lock."""


class StepWaits:
    """For the steps of one device, which run one after the other."""

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
        """What steps of a kind take at least."""

    def wait(self, end: Event, plan: StepPlan, launched_at: float) -> None:
        """Return once the device got to ``end``, the end of a step that was launched, or began to
        be, at ``launched_at`` (of the clock). Call it for each step, in their order."""
        if not end.query():
            # A step begins where the one before ends.
            self._wait(end, _kind(plan), max(launched_at, self._ended_at))
        self._ended_at = self._clock()

    def _wait(self, end: Event, kind: tuple[int, int], began_at: float) -> None:
        expected_s = self._expected_s.get(kind, 0.0)
        if expected_s < LONG_S or self._nap(end, began_at + expected_s - AWAKE_S):
            end.synchronize()
        taken_s = self._clock() - began_at
        # Longer ones may have waited for something else: believed step by step.
        self._expected_s[kind] = (
            min(taken_s, expected_s + _RISE * (taken_s - expected_s)) if expected_s else taken_s
        )

    def _nap(self, end: Event, until: float) -> bool:
        """False if it ends meanwhile."""
        while (left_s := until - self._clock()) > 0:
            self._sleep(min(left_s, NAP_S))
            if end.query():
                return False
        return True


def _kind(plan: StepPlan) -> tuple[int, int]:
    """Steps of equal kinds take about equally long."""
    return _leading(len(plan.chunks)), _leading(plan.num_tokens)


def _leading(count: int) -> int:
    shift = max(count.bit_length() - _LEADING_BITS, 0)
    return count >> shift << shift
