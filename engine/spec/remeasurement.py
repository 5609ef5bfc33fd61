"""When steps without drafts are measured anew while drafts are made."""

from __future__ import annotations

# Steps with drafts between two measurements: from the first number on it doubles up to the second.
# It is ``_TIMES_LONGER`` times that while drafts are clearly faster and the times without are
# known.
_INTERVAL, _MAX_INTERVAL, _TIMES_LONGER = 16, 256, 4
_CLEAR_GAIN = 1.5
# Steps of a measurement, and of one of a batch of which little is known. (The first step after
# drafts is not typical.)
_NUM_STEPS, _NUM_FIRST = 4, 8


class Remeasurement:
    """Counts steps, to say when a measurement is due and when it is over."""

    def __init__(self) -> None:
        self._num_drafting = 0
        """Steps with drafts since the last measurement. It stays above the interval during one."""
        self._num_measuring = 0
        """Steps without drafts of the current measurement."""
        self._interval = _INTERVAL

    @property
    def is_idle(self) -> bool:
        """Whether no drafts are made anyway, so that there is nothing to measure anew."""
        return self._num_drafting == 0

    def is_due(self, gain: float, num_known: int) -> bool:
        """Whether the next step should have no drafts. gain: how much faster steps with drafts are
        expected to be. num_known: steps of such a batch without drafts that were ever measured."""
        is_clear = gain > _CLEAR_GAIN and num_known >= _NUM_FIRST
        return self._num_drafting >= self._interval * (_TIMES_LONGER if is_clear else 1)

    def count(self, *, has_drafts: bool, num_known: int, num_steps: int = 1) -> bool:
        """``num_steps`` steps are over; returns whether a measurement ended with them. num_known:
        as for ``is_due``."""
        if has_drafts:
            self._num_drafting += num_steps
            self._num_measuring = 0
            # It was due for so long, but something (a grammar, prompts) always came in between.
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
