"""What it costs, where drafts are made, that requests come.

A step with a prompt waits for the drafts before it, as nobody knows yet where they end; without
drafts the host's work for it would be hidden behind the step before. And a draft network has to
catch up with the prompt. Neither is part of what a step with drafts takes as a rule, so requests
with short answers could make drafts a loss that nobody sees.
"""

from __future__ import annotations

# What is remembered from one newcomer to the next; and of what they cost, while nobody drafts.
_DECAY, _AGEING = 0.97, 0.9995
# Newcomers that cost nothing, to begin with.
_PRIOR_WEIGHT = 2.0


class Newcomers:
    """How many tokens requests generate, and what each newcomer costs. Decaying sums."""

    def __init__(self) -> None:
        self._num_tokens = self._num_new = 0.0
        self._lost_s = self._num_judged = 0.0

    @property
    def s_per_token(self) -> float:
        """Seconds that drafts lose for each generated token."""
        if not self._num_tokens:
            return 0.0
        lost_s = max(0.0, self._lost_s) / (self._num_judged + _PRIOR_WEIGHT)
        return lost_s * self._num_new / self._num_tokens

    def observe(self, num_new: int, num_tokens: int, *, drafting: bool) -> None:
        """Of a step: newcomers, and the tokens it generated. drafting: drafts are made now."""
        if num_new:
            kept = _DECAY**num_new
            self._num_tokens *= kept
            self._num_new = kept * self._num_new + num_new
            if drafting:
                self._lost_s *= kept
                self._num_judged = kept * self._num_judged + num_new
            else:
                self._lost_s *= _AGEING**num_new
        self._num_tokens += num_tokens

    def lose(self, seconds: float) -> None:
        """So much was lost for the sake of the last ones."""
        self._lost_s += seconds
