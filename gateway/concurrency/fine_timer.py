"""A timer for event loops that is at most a fraction of a millisecond late.

Event loops wait for whole milliseconds, so their own timers are up to a millisecond late or early:
too much for what happens every few milliseconds. Timer descriptors of the kernel are exact.
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
        """Call back once at ``at``, in seconds of ``time.monotonic``; at once if that has passed.
        Replaces the time that was set before."""

    def close(self) -> None:
        """Never call back. The event loop must not be closed yet."""


def fine_timer(callback: Callable[[], None]) -> Timer:
    """A timer of the running event loop, as exact as the system allows."""
    try:
        return KernelTimer(callback)
    except (AttributeError, OSError):  # not Linux, or no descriptor is left
        return LoopTimer(callback)


class KernelTimer:
    """A timer descriptor, as of timerfd_create(2).

    Raises ``AttributeError`` where the system has none, and ``OSError`` when the process may open
    no more descriptors.
    """

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
        # A time of zero would stop the timer.
        nanoseconds = max(int(at * 1e9), 1)
        spec = _Spec(0, 0, *divmod(nanoseconds, 1_000_000_000))
        if self._settime(self._descriptor, _TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        # Nothing to read means that the timer was set anew in the same turn of the loop.
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)
            self._callback()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class LoopTimer:
    """The event loop's own timer."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        # From the delay, not from ``loop.time``: uvloop's is the time when its turn began.
        self._handle = self._loop.call_later(max(at - time.monotonic(), 0.0), self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
