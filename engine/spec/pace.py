"""The current speed of the machine, relative to its usual speed.

Other programs use the machine, too, and clock rates change, so for a while all steps take longer.
While drafts are made, steps without them are seldom measured; without a correction, times of fast
and of slow minutes would be compared. The pace is what both kinds of steps have in common: the
factor by which steps of a familiar kind now take longer than usual. Measured times are divided by
it."""

from __future__ import annotations

# After drafting began or ended, the times of this many steps say nothing about the pace; nor do
# those of a kind of which fewer than this were measured.
_NUM_SETTLING, _NUM_FAMILIAR = 8, 32
# What is left of the old value after a step.
_DECAY = 0.9


class Pace:
    """The factor, updated by every step of a familiar kind."""

    def __init__(self) -> None:
        self.value = 1.0
        """How many times as long as usual steps take now."""
        self._has_drafts = False
        self._num_alike = 0
        """Steps since drafting began or ended."""

    def observe(self, slowdown: float, num_steps: int, num_known: int, *, has_drafts: bool) -> bool:
        """``num_steps`` steps took ``slowdown`` times as long as expected at the present pace.
        Returns whether the pace was updated by that. num_known: steps of this kind measured
        before."""
        if has_drafts != self._has_drafts:
            self._has_drafts, self._num_alike = has_drafts, 0
        self._num_alike += num_steps
        is_settled = self._num_alike > _NUM_SETTLING and num_known >= _NUM_FAMILIAR
        if is_settled:
            self.value *= slowdown ** (1 - _DECAY**num_steps)
        return is_settled
