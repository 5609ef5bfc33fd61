"""When what waits on many streams goes on: together, where it is due at nearly the same time.

A timer for each chunk of each stream costs as much as the chunk's way to the socket, and streams
that an engine's step serves together are due together, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from gateway.fine_timer import Timer, fine_timer

NUM_TICKS = 8
"""The interval of streams is so many ticks long; what is due within one goes on at its end."""
BURST = 32
"""So many at once, so that the first need not wait for all."""


class Waiting(Protocol):
    """A line of ``reading``, say."""

    def flush_late(self, now: float) -> None:
        """It is due. Must not raise."""


class Flushes:
    """Of one event loop."""

    def __init__(
        self,
        interval_s: float,
        around: AbstractContextManager[object] | None = None,
        *,
        make_timer: Callable[[Callable[[], None]], Timer] = fine_timer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``interval_s``: how long tokens wait at most for those that follow. ``around``: entered
        anew for each burst of flushes; as of ``EngineClient.around_outputs`` for outputs."""
        self._tick_s = interval_s / NUM_TICKS
        self.pause_s = interval_s - self._tick_s
        """Least time between two chunks of a stream. What comes later goes straight on, and what
        came before a tick after that: so chunks that wait are ``interval_s`` apart, or less."""
        self._around: AbstractContextManager[object] = nullcontext() if around is None else around
        self._make_timer = make_timer
        self._clock = clock
        self._timer: Timer | None = None
        self._next: float = math.inf
        """The tick that the timer is set for."""
        self._ticks: dict[int, list[Waiting]] = {}
        """Whatever is due at the end of each."""

    def wait(self, waiting: Waiting, due_at: float) -> None:
        """Flush it once, at ``due_at`` or up to a tick later. In seconds of ``time.monotonic``."""
        tick = math.ceil(due_at / self._tick_s)
        found = self._ticks.get(tick)
        if found is None:
            self._ticks[tick] = found = []
            if tick < self._next:
                self._set(tick)
        found.append(waiting)

    def _set(self, tick: int) -> None:
        if self._timer is None:
            self._timer = self._make_timer(self._end)
        self._next = tick
        self._timer.set(tick * self._tick_s)

    def _end(self) -> None:
        # Event loops round their timers: this one may be early.
        now = max(self._clock(), self._next * self._tick_s)
        over = [tick for tick in self._ticks if tick * self._tick_s <= now]
        due = [waiting for tick in sorted(over) for waiting in self._ticks.pop(tick)]
        self._next = math.inf
        for start in range(0, len(due), BURST):
            self._flush(due[start : start + BURST], now)
        if self._ticks and (tick := min(self._ticks)) < self._next:
            self._set(tick)

    def _flush(self, due: Sequence[Waiting], now: float) -> None:
        with self._around:
            for waiting in due:
                waiting.flush_late(now)

    def close(self) -> None:
        """Nothing is flushed from here on. The event loop must not be closed yet."""
        if self._timer is not None:
            self._timer.close()
