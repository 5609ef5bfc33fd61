"""Pauses between attempts, longer from one to the next."""

from __future__ import annotations

import random


class Backoff:
    """Each pause is twice as long as the one before, up to ``most_s``, until ``reset``."""

    def __init__(self, first_s: float, most_s: float, *, has_jitter: bool = False) -> None:
        """``has_jitter``: each pause is cut by up to a half at random, so that
        several processes do not try at the same time."""
        self.first_s = first_s
        self._most_s = most_s
        self._has_jitter = has_jitter
        self._next_s = first_s

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._next_s = self.first_s

    def next_s(self) -> float:
        """The pause before the next attempt, in seconds."""
        pause_s = min(self._next_s, self._most_s)
        self._next_s = min(2 * pause_s, self._most_s)
        return pause_s * random.uniform(0.5, 1.0) if self._has_jitter else pause_s
