"""Probes: drafts that are made only to learn how many of them would be accepted.

They have a budget: a small share of the time that passes without drafts.
"""

from __future__ import annotations

import math

# Probes may take this share of the time without drafts; up to this many steps' time is saved up.
PROBE_SHARE, _MAX_SAVED_STEPS = 0.005, 2.0
# A debt of more steps than this is forgiven as soon as steps without drafts are as short as that:
# it was made in far larger batches, or when the machine was slower.
_MAX_DEBT_STEPS = 4.0
# A probe with an acceptance rate below ``_HARDLY`` halves the share, down to ``_LEAST_PART`` of it;
# one with a rate above one half restores it.
_LEAST_PART, _HARDLY = 0.25, 0.2

# Before the first drafts of a probe a network has to catch up; further drafts cost little. So a
# probe goes on until drafts were verified this many times, or until the first draft was wrong each
# of the first ``_NUM_WRONG`` times.
_NUM_CHECKED, _NUM_WRONG = 8, 3


class Probe:
    """The current probe of a draft network, if there is one. It lasts for several steps."""

    def __init__(self) -> None:
        self.length = 0
        """Drafts of each request in the probe's next step; 0: there is no probe."""
        self._num_checked = self._num_judged = self._num_right = 0

    def planned(self, length: int, num_requests: int) -> None:
        """A step of the probe was planned, which may be its first. num_requests: those that
        draft."""
        if not self.length:
            self._num_checked = self._num_judged = self._num_right = 0
        self._num_checked += num_requests
        self.length = length if self._num_checked < _NUM_CHECKED else 0

    def judge(self, num_right: int, num_requests: int) -> None:
        """A step of the probe is over. num_right: how many of ``num_requests`` had their first
        draft accepted."""
        self._num_judged += num_requests
        self._num_right += num_right
        if not self._num_right and self._num_judged >= _NUM_WRONG:
            self.end()

    def end(self) -> None:
        """End the probe: its requests are gone, or drafts are made anyway."""
        self.length = 0


class ProbeBudget:
    """The seconds that probes may lose. What they gain is added."""

    def __init__(self) -> None:
        self.saved_s = 0.0
        """Seconds that probes may lose now; negative after a probe that lost more."""
        self._has_begun = False
        self._part = 1.0

    def begin(self, plain_s: float) -> None:
        """Fill the budget, at the first call only. plain_s: seconds of a step without drafts."""
        if not self._has_begun:
            self._has_begun = True
            self.saved_s = _MAX_SAVED_STEPS * plain_s

    def save(self, seconds: float, plain_s: float) -> None:
        """Add seconds to the budget; negative ones are spent."""
        self.saved_s = min(self.saved_s + seconds, _MAX_SAVED_STEPS * plain_s)

    def rest(self, seconds: float, plain_s: float) -> None:
        """No drafts were made for so many seconds."""
        self.saved_s = max(self.saved_s, -_MAX_DEBT_STEPS * plain_s)
        self.save(self._part * PROBE_SHARE * seconds, plain_s)

    def num_steps_to(self, lost_s: float, plain_s: float) -> int:
        """After how many steps without drafts the budget allows for a loss."""
        return math.ceil(max(0.0, lost_s - self.saved_s) / (self._part * PROBE_SHARE * plain_s))

    def judge(self, num_hits: int, num_tries: int) -> None:
        """A step of a probe is over. num_hits, num_tries: drafts that were accepted, of those that
        were judged."""
        if num_hits < _HARDLY * num_tries:
            self._part = max(_LEAST_PART, self._part / 2)
        elif 2 * num_hits > num_tries:
            self._part = 1.0

    def pass_turn(self) -> None:
        """A probe was due, but the proposer found no drafts: save up for the next one."""
        self.saved_s = 0.0
