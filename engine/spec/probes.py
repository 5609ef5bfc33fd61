"""What probes may cost: a part of the time that goes by without drafts."""

from __future__ import annotations

# Of the time spent without drafts, and how many steps' time may be saved up.
PROBE_SHARE, _MAX_SAVED_STEPS = 0.005, 2.0
# A probe of which hardly a draft was right makes the share half of what it was, down to this part;
# one with more that were right than not makes it what it was at first.
_LEAST_PART, _HARDLY = 0.25, 0.2


class ProbeBudget:
    """Probes that turn out to pay earn their successors' time."""

    def __init__(self) -> None:
        self.saved_s = 0.0
        """Seconds that probes may cost now; below 0, more than that was lost."""
        self._has_begun = False
        self._part = 1.0

    def begin(self, plain_s: float) -> None:
        """Before the first ``save``, have saved all that can be. plain_s: of a step without
        drafts."""
        if not self._has_begun:
            self._has_begun = True
            self.saved_s = _MAX_SAVED_STEPS * plain_s

    def save(self, seconds: float, plain_s: float) -> None:
        """Or spend, below 0."""
        self.saved_s = min(self.saved_s + seconds, _MAX_SAVED_STEPS * plain_s)

    def rest(self, seconds: float, plain_s: float) -> None:
        """So long there were no drafts."""
        self.save(self._part * PROBE_SHARE * seconds, plain_s)

    def judge(self, num_hits: int, num_tries: int) -> None:
        """Of the drafts of a probe so many were right, of those that could have been."""
        if num_tries and num_hits < _HARDLY * num_tries:
            self._part = max(_LEAST_PART, self._part / 2)
        elif 2 * num_hits > num_tries:
            self._part = 1.0

    def pass_turn(self) -> None:
        """A probe was due, but nobody had an idea. Ask again after a while."""
        self.saved_s = 0.0
