"""When steps without drafts are measured anew, where drafts are made."""

from __future__ import annotations

# After so many steps with drafts, and after ever longer; where drafts are clearly faster and those
# without are known, after a number of times as long.
_INTERVAL, _MAX_INTERVAL, _TIMES_LONGER = 16, 256, 4
_CLEAR_GAIN = 1.5
# Steps of a measurement, more of them the first time. The first of them is not typical.
_NUM_STEPS, _NUM_FIRST = 4, 8


class Remeasurement:
    def __init__(self) -> None:
        self._num_drafting = 0
        """Steps with drafts since the last time; no less than the interval within one."""
        self._num_measuring = 0
        """Steps without drafts within one."""
        self._interval = _INTERVAL

    @property
    def is_idle(self) -> bool:
        """Drafts are not made anyway."""
        return self._num_drafting == 0

    def is_due(self, gain: float, num_known: int) -> bool:
        """gain: how much faster steps with drafts are said to be. num_known: steps without drafts
        that were measured of such a batch, ever."""
        is_clear = gain > _CLEAR_GAIN and num_known >= _NUM_FIRST
        return self._num_drafting >= self._interval * (_TIMES_LONGER if is_clear else 1)

    def count(self, *, has_drafts: bool, num_known: int, num_steps: int = 1) -> bool:
        """So many steps are over, with ``num_known`` of their batch as above; True if that was the
        end of a measurement."""
        if has_drafts:
            self._num_drafting += num_steps
            self._num_measuring = 0
            # Something else was in the way all the time.
            is_over = self._num_drafting >= _TIMES_LONGER * self._interval + _NUM_STEPS
        elif self._num_drafting < self._interval:
            self._num_drafting = 0
            return False
        else:
            self._num_measuring += 1
            needed = _NUM_STEPS if num_known >= _NUM_FIRST else _NUM_FIRST
            is_over = self._num_measuring >= needed
        if is_over:
            self._interval = min(2 * self._interval, _MAX_INTERVAL)
            self._num_drafting = self._num_measuring = 0
        return is_over
