"""Streaks: a number of steps that draft as many tokens as the ones before, because drafts pay.

As in a rest, nothing is asked or decided in them: to learn from a step takes the host longer than a
step of a small model takes. Between two streaks some steps are looked at, which stand for all. How
much of a text is a copy may change from one step to the next: so of drafts from texts, it is noted
in streaks, too, which ones were right, and learned from afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A streak begins behind this many steps that were looked at, and has this many. Every so many-th
# step with newcomers ends it, so that what these cost is seen.
_NUM_LOOKED_AT, _NUM_STEPS, _NUM_COMING = 4, 28, 4
# Where each request has its own drafts, so many steps in a row without a right one end it, too.
_NUM_POOR = 6


class Streak:
    """The current streak, if there is one, and what the next step that is looked at stands for."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Steps of the streak still to be planned; 0: there is no streak."""
        self.length = 0
        """Drafts of each request in them."""
        self.tokens = 0
        """Tokens of each request in them."""
        self.least = self.most = 0
        """Requests of the batches for which this is known to be best."""
        self.follows_others = False
        """Whether its last step did more than decode, or did that without drafts."""
        self._num_drafted = 0
        """Steps with drafts since the last one that was looked at."""
        self._num_requests: dict[int, int] = {}
        """Requests of each of them, summed up by ``most``."""
        self._num_looked_at = 0
        """Steps with drafts that were looked at since the last streak."""
        self._num_coming = 0
        """Steps with newcomers in streaks."""
        self._num_poor = 0
        """Steps in a row that gained nothing."""

    def looks(self, *, has_drafts: bool) -> tuple[int, Mapping[int, int]]:
        """A step is looked at. If it has drafts, it stands for those with drafts that were not.
        Returns how many steps it stands for, itself included; and of the others their requests,
        summed up by the size of the batch, rounded up to a power of two."""
        self.follows_others = False
        if not has_drafts:
            return 1, {}
        self._num_looked_at += 1
        stands_for = 1 + self._num_drafted, self._num_requests
        self._num_drafted, self._num_requests = 0, {}
        return stands_for

    @property
    def may_begin(self) -> bool:
        """Whether enough steps were looked at."""
        return self._num_looked_at >= _NUM_LOOKED_AT

    def begin(self, length: int, batch: int) -> None:
        """Begin a streak of steps with so many drafts for each of ``batch`` requests."""
        self.num_steps, self._num_looked_at, self._num_poor = _NUM_STEPS, 0, 0
        self.go_on(length, batch)

    def judge(self, *, gained: bool) -> None:
        """A step of the streak is over. gained: it had a right draft."""
        self._num_poor = 0 if gained else self._num_poor + 1
        if self._num_poor >= _NUM_POOR:
            self.num_steps = 0

    def go_on(self, length: int, batch: int) -> None:
        """Go on with so many drafts in a batch of another size; 0 ends the streak."""
        if not length:
            self.num_steps = 0
            return
        self.length, self.tokens = length, 1 + length
        # As in ``LearnedCosts``, by powers of two.
        self.most = 1 << (batch - 1).bit_length()
        self.least = self.most // 2 + 1

    def passes(self, batch: int, *, is_usual: bool, has_drafts: bool, has_newcomers: bool) -> bool:
        """Whether the step that is planned now is not to be looked at. If so it is counted. Nor is
        one that comes after the streak, if what it takes is due to the last step of that.

        is_usual: it only decodes, with drafts."""
        if has_newcomers:
            self._num_coming += 1
            if self._num_coming % _NUM_COMING == 0:
                self.num_steps = 0
        if not self.num_steps and not is_usual:
            return False
        self.num_steps = max(0, self.num_steps - 1)
        self.follows_others = not is_usual
        if has_drafts:
            self._num_drafted += 1
            self._num_requests[self.most] = self._num_requests.get(self.most, 0) + batch
        return True
