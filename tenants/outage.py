"""Logs an outage: a line when it begins, fewer and fewer while it lasts, and one at its end.

Work that is retried would otherwise log each failure, and hide other lines. Failures that are not
logged are logged at debug level.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

FIRST_REMINDER_S = 10.0
MAX_REMINDER_S = 60.0
CALM_S = 5.0
"""For work of many requests: those under way as it begins or ends fail and succeed in turn."""


class OutageLog:
    """Logs the outages of one piece of work, which is retried while it fails."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        level: int = logging.WARNING,
        calm_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """calm_s: an outage ends with the first success that comes so long after the last failure.
        If it is above 0, many requests fail in one outage, and those left out are counted."""
        self._logger = logger
        self._level = level
        self._calm_s = calm_s
        self._clock = clock
        self._began_at: float | None = None
        self._failed_at = 0.0
        self._num_left_out = 0
        self._pause_s = 0.0
        self._next_at = 0.0

    def failed(self, message: str, *args: object) -> None:
        """An attempt failed; ``message % args`` says what, and why. It is logged if it is the first
        one, or if the last line was long enough ago."""
        self._failed_at = now = self._clock()
        if self._began_at is None:
            self._began_at, self._pause_s = now, FIRST_REMINDER_S
        elif now < self._next_at:
            self._num_left_out += 1
            self._logger.debug(message, *args, stacklevel=2)
            return
        else:
            self._pause_s = min(MAX_REMINDER_S, 2 * self._pause_s)
            since = f" ({self._others()}for {now - self._began_at:.0f} s now)"
            message, args = message + "%s", (*args, since)
        self._next_at = now + self._pause_s
        self._logger.log(self._level, message, *args, stacklevel=2)

    def succeeded(self, message: str, *args: object) -> None:
        """An attempt succeeded; if that ends an outage, ``message % args`` is logged."""
        if self._began_at is None or self._clock() < self._failed_at + self._calm_s:
            return
        lasted_s, self._began_at = self._clock() - self._began_at, None
        message, args = message + ", %safter %.1f s", (*args, self._others(), lasted_s)
        self._logger.log(self._level, message, *args, stacklevel=2)

    def _others(self) -> str:
        """How many requests were left out of the log since its last line."""
        num_left_out, self._num_left_out = self._num_left_out, 0
        return f"{num_left_out} more, " if self._calm_s and num_left_out else ""
