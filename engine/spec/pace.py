"""How fast the machine is at the moment, whatever it does.

Others use it, too, and clocks change: for a while all steps take longer. Where drafts are made,
steps without them are measured seldom, so what both take would be compared across such changes. The
pace is what is common to both: how much longer than usual the steps take that go on as before. Only
what a step takes at the same pace says what drafts cost.
"""

from __future__ import annotations

# Steps after drafts were taken up or given up whose difference is put down to just that; and steps
# of a kind before it is known what is usual.
_NUM_SETTLING, _NUM_FAMILIAR = 8, 32
# What all steps before weigh against the latest one.
_DECAY = 0.9


class Pace:
    def __init__(self) -> None:
        self.value = 1.0
        """Times as long as usual."""
        self._has_drafts = False
        self._num_alike = 0
        """Steps since others had drafts, or none."""

    def observe(self, slowdown: float, num_steps: int, num_known: int, *, has_drafts: bool) -> bool:
        """So many steps took ``slowdown`` times as long as was expected of them at this pace, of a
        kind of which ``num_known`` were seen before; whether that was put down to the pace."""
        if has_drafts != self._has_drafts:
            self._has_drafts, self._num_alike = has_drafts, 0
        self._num_alike += num_steps
        is_settled = self._num_alike > _NUM_SETTLING and num_known >= _NUM_FAMILIAR
        if is_settled:
            self.value *= slowdown ** (1 - _DECAY**num_steps)
        return is_settled
