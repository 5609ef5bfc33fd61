"""Logs an outage: a line when it begins, fewer and fewer while it lasts, and one at its end.

Work that is retried would otherwise log each failure, and hide other lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

FIRST_REMINDER_S = 10.0
MAX_REMINDER_S = 60.0


class OutageLog:
    """Logs the outages of one piece of work, which is retried while it fails."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        level: int = logging.WARNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._level = level
        self._clock = clock
        self._began_at: float | None = None
        self._pause_s = 0.0
        self._next_at = 0.0

    def failed(self, message: str, *args: object) -> None:
        """An attempt failed; ``message % args`` says what, and why. It is logged if it is the first
        one, or if the last line was long enough ago."""
        now = self._clock()
        if self._began_at is None:
            self._began_at, self._pause_s = now, FIRST_REMINDER_S
        elif now < self._next_at:
            return
        else:
            self._pause_s = min(MAX_REMINDER_S, 2 * self._pause_s)
            message, args = message + " (for %.0f s now)", (*args, now - self._began_at)
        self._next_at = now + self._pause_s
        self._logger.log(self._level, message, *args, stacklevel=2)

    def succeeded(self, message: str, *args: object) -> None:
        """An attempt succeeded; if that ends an outage, ``message % args`` is logged."""
        if self._began_at is None:
            return
        lasted_s, self._began_at = self._clock() - self._began_at, None
        self._logger.log(self._level, message + ", after %.1f s", *args, lasted_s, stacklevel=2)
