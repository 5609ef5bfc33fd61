"""A timer for an event loop, late by a fraction of a millisecond.

Event loops wait for whole milliseconds: their own timers come up to one too late or too early,
which is much for what happens every few milliseconds. The system's descriptors are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Protocol

_TFD_TIMER_ABSTIME = 1  # linux/timerfd.h

_Spec = ctypes.c_long * 4
"""``struct itimerspec``: the interval's seconds and nanoseconds, then those of the first time."""


class Timer(Protocol):
    def set(self, at: float) -> None:
        """Call back once at ``at``, in seconds of ``time.monotonic``; at once if that is over. What
        was set before is forgotten."""

    def close(self) -> None:
        """Never call back. The event loop must not be closed yet."""


def fine_timer(callback: Callable[[], None]) -> Timer:
    """Of the running event loop, and as exact as the system can make it."""
    try:
        return KernelTimer(callback)
    except (AttributeError, OSError):  # not Linux, or no descriptor is left
        return LoopTimer(callback)


class KernelTimer:
    """A descriptor of timerfd_create(2). Raises ``AttributeError`` where there is none, and
    ``OSError``."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._descriptor: int = libc.timerfd_create(
            time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC
        )
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._ring)

    def set(self, at: float) -> None:
        # All zeros would stop it.
        nanoseconds = max(int(at * 1e9), 1)
        spec = _Spec(0, 0, *divmod(nanoseconds, 1_000_000_000))
        if self._settime(self._descriptor, _TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set anew in the same turn of the loop
            os.read(self._descriptor, 8)
            self._callback()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class LoopTimer:
    """The event loop's own."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        # Of the delay, not of the loop's time: uvloop's is that of its turn's beginning.
        self._handle = self._loop.call_later(max(at - time.monotonic(), 0.0), self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
