"""When what waits on many streams goes on: together, where it is due at nearly the same time.

A timer for each chunk of each stream costs as much as the chunk's way to the socket, and streams
that an engine's step serves together are due together, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

TICK_S = 0.002
"""What is due within it goes on at its end."""
BURST = 64
"""So many at once, so that the first need not wait for all."""


class Waiting(Protocol):
    """A line of ``reading``, say."""

    def flush_late(self, now: float) -> None:
        """It is due. Must not raise."""


class Flushes:
    """Of one event loop."""

    def __init__(
        self, interval_s: float, around: AbstractContextManager[object] | None = None
    ) -> None:
        """``around``: entered anew for each burst of flushes; as of ``EngineClient.around_outputs``
        for outputs."""
        self.interval_s = interval_s
        """Least time between two chunks of a stream."""
        self._around: AbstractContextManager[object] = nullcontext() if around is None else around
        self._ticks: dict[int, list[Waiting]] = {}
        """Whatever is due at the end of each."""

    def wait(self, waiting: Waiting, due_at: float) -> None:
        """Flush it once, at ``due_at`` or up to ``TICK_S`` later. In the event loop's time."""
        tick = math.ceil(due_at / TICK_S)
        found = self._ticks.get(tick)
        if found is None:
            self._ticks[tick] = found = []
            asyncio.get_running_loop().call_at(tick * TICK_S, self._end, tick)
        found.append(waiting)

    def _end(self, tick: int) -> None:
        due = self._ticks.pop(tick)
        # Event loops round their timers: this one may be early.
        now = max(asyncio.get_running_loop().time(), tick * TICK_S)
        for start in range(0, len(due), BURST):
            self._flush(due[start : start + BURST], now)

    def _flush(self, due: Sequence[Waiting], now: float) -> None:
        with self._around:
            for waiting in due:
                waiting.flush_late(now)
