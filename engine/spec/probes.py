"""What probes may cost: a part of the time that goes by without drafts."""

from __future__ import annotations

# Of the time spent without drafts, and how many steps' time may be saved up.
PROBE_SHARE, _MAX_SAVED_STEPS = 0.005, 2.0
# A probe of which hardly a draft was right makes the share half of what it was, down to this part;
# one with more that were right than not makes it what it was at first.
_LEAST_PART, _HARDLY = 0.25, 0.2


# A network has to catch up before the first drafts of a probe, and the next ones cost little. So a
# probe goes on until drafts were checked so many times, but not where all of so many were wrong.
_NUM_CHECKED, _NUM_WRONG = 8, 3


class Probe:
    """The present one of a network, if there is one: several steps."""

    def __init__(self) -> None:
        self.length = 0
        """Drafts of each request in its next step; 0 where there is none."""
        self._num_checked = self._num_judged = self._num_right = 0

    def planned(self, length: int, num_requests: int) -> None:
        """A step of it, which may be the first, with drafts of so many requests."""
        if not self.length:
            self._num_checked = self._num_judged = self._num_right = 0
        self._num_checked += num_requests
        self.length = length if self._num_checked < _NUM_CHECKED else 0

    def judge(self, num_right: int, num_requests: int) -> None:
        """Of so many requests in one of its steps the first draft was right."""
        self._num_judged += num_requests
        self._num_right += num_right
        if not self._num_right and self._num_judged >= _NUM_WRONG:
            self.end()

    def end(self) -> None:
        """Its requests may be gone, or drafts are made anyway."""
        self.length = 0


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
