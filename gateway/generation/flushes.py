"""One timer for the waiting chunks of all streams: those due at about the same time leave together.

A timer for each chunk of each stream would cost as much as sending the chunk. Streams that get
their tokens from the same step of the engine are also due together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from gateway.concurrency.fine_timer import Timer, fine_timer

NUM_TICKS = 8
"""Ticks in a flush interval. Chunks that are due within a tick leave at its end."""
BURST = 32
"""Streams that are flushed together, so that the first need not wait for all."""


class Waiting(Protocol):
    """A stream with a chunk that is not due yet, such as a choice in ``reading``."""

    def flush_late(self, now: float) -> None:
        """Send the chunk: it is due. ``now``: in seconds of ``time.monotonic``. Must not raise."""


class Flushes:
    """The waiting chunks of one event loop."""

    def __init__(
        self,
        interval_s: float,
        around: AbstractContextManager[object] | None = None,
        *,
        make_timer: Callable[[Callable[[], None]], Timer] = fine_timer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``interval_s``: how long a token waits at most for those that follow. ``around`` is
        entered anew for each burst of flushes, as ``EngineClient.around_outputs`` is for outputs;
        it must not raise."""
        self._tick_s = interval_s / NUM_TICKS
        self.pause_s = interval_s - self._tick_s
        """The least seconds between two chunks of a stream. What comes later is sent at once; what
        comes sooner waits until then, or up to a tick longer, thus at most ``interval_s``."""
        self._around: AbstractContextManager[object] = nullcontext() if around is None else around
        self._make_timer = make_timer
        self._clock = clock
        self._timer: Timer | None = None
        self._next: float = math.inf
        """The tick that the timer is set for."""
        self._ticks: dict[int, list[Waiting]] = {}
        """The streams that are due at the end of each tick."""

    def wait(self, waiting: Waiting, due_at: float) -> None:
        """Flush a stream once, at ``due_at`` (in seconds of ``time.monotonic``) or up to a tick
        later."""
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
        # Event loops round their timers, so this may be called early.
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
        """Flush nothing from here on. The event loop must not be closed yet."""
        if self._timer is not None:
            self._timer.close()
