"""What it costs, where drafts are made, that requests come.

A step with a prompt waits for the drafts before it, as nobody knows yet where they end; without
drafts the host's work for it would be hidden behind the step before. And a draft network has to
catch up with the prompt. Neither is part of what a step with drafts takes as a rule, so requests
with short answers could make drafts a loss that nobody sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.spec.planned_step import PlannedStep

# What is remembered from one newcomer to the next; and of what they cost, while nobody drafts.
_DECAY, _AGEING = 0.98, 0.9995
# Newcomers that cost nothing, to begin with.
_PRIOR_WEIGHT = 2.0
# A loss counts as if it were at most that of so many steps, or so many times what is usual: what is
# done for the first time may take far longer. And what the latest one says of what is usual.
_MAX_STEPS, _MAX_TIMES, _LATEST_SHARE = 4.0, 2.0, 0.3
# A part from which on they cost all of it: both are only estimates.
_NEARLY_ALL = 0.85
# What a step says of the host's work beside a device that waits.
_EXPOSED_SHARE = 0.1


class Newcomers:
    """What each newcomer costs where drafts are made, and what has to make up for it: decaying
    sums over the requests that came, and over those that ended."""

    def __init__(self) -> None:
        self._num_came = self._lost_s = self._usual_s = 0.0
        self._num_ended = 0.0
        self._num_tokens: dict[int, float] = {}
        """That were generated, by the size of the batch: the bits of one less than it."""
        self._num_ending = 0

    @property
    def _s_each(self) -> float:
        return max(0.0, self._lost_s) / (self._num_came + _PRIOR_WEIGHT)

    @property
    def s_per_token(self) -> float:
        """Seconds that newcomers cost for each generated token."""
        lost_s = self._s_each * self._num_ended
        return lost_s / sum(self._num_tokens.values()) if lost_s else 0.0

    def share(self, saved_s: Callable[[int], float]) -> float:
        """Of what drafts would save in all, the part that newcomers cost, at most 1. saved_s: of a
        batch of so many requests, what drafts save for each token, as far as is known now."""
        lost_s = self._s_each * self._num_ended
        if not lost_s:
            return 0.0
        in_all_s = sum(count * saved_s(1 << size) for size, count in self._num_tokens.items())
        if in_all_s <= 0:
            return 0.0
        return lost_s / in_all_s if lost_s < _NEARLY_ALL * in_all_s else 1.0

    def come(self, number: int, *, drafting: bool) -> None:
        """So many came. drafting: drafts are made now."""
        if not number:
            return
        if drafting:
            kept = _DECAY**number
            self._lost_s *= kept
            self._num_came = kept * self._num_came + (1 - kept) / (1 - _DECAY)
        else:
            self._lost_s *= _AGEING**number

    def lose(self, seconds: float, plain_s: float) -> None:
        """So much was lost for the sake of the last ones. plain_s: of a step without drafts."""
        seconds = min(seconds, max(_MAX_STEPS * plain_s, _MAX_TIMES * self._usual_s))
        self._usual_s += _LATEST_SHARE * (seconds - self._usual_s)
        self._lost_s += seconds

    def go_on(self, batch: int, num_tokens: float) -> None:
        """Of steps of so many requests, the tokens that they generated."""
        size = (batch - 1).bit_length()
        self._num_tokens[size] = self._num_tokens.get(size, 0.0) + num_tokens
        if self._num_ending:
            kept = _DECAY**self._num_ending
            for each in self._num_tokens:
                self._num_tokens[each] *= kept
            self._num_ended = kept * self._num_ended + (1 - kept) / (1 - _DECAY)
            self._num_ending = 0

    def end(self) -> None:
        """One came to its end in the step that is told of next: only then is it known what it
        gave."""
        self._num_ending += 1


class Exposure:
    """What drafts expose of the host's work: usually, in a step that only decodes, and beyond."""

    def __init__(self) -> None:
        self._exposed_s = self._drafting_s = 0.0

    def observe(self, step: PlannedStep, num_steps: int = 1) -> None:
        """A usual step, so many times."""
        share = 1 - (1 - _EXPOSED_SHARE) ** num_steps
        self._exposed_s += share * (step.exposed_s - self._exposed_s)
        self._drafting_s += share * (step.drafting_s - self._drafting_s)

    def caught_up_s(self, step: PlannedStep) -> float:
        """What it took to make drafts beyond the usual: a network had to catch up with prompts."""
        return step.drafting_s - self._drafting_s if step.num_drafts else 0.0

    def lost_s(self, step: PlannedStep, hidden_s: float) -> float:
        """By a step with prompts: what the network has to catch up with, and what an engine without
        drafts would have hidden behind the step before, of which the device takes ``hidden_s``."""
        caught_up_s, host_s = self.caught_up_s(step), step.exposed_s
        if step.num_drafts:
            host_s -= step.drafting_s + self._exposed_s - self._drafting_s
        # Where there is nobody else, there would be nothing to hide behind either.
        return caught_up_s + (min(host_s, hidden_s) if step.batch > step.num_new else 0.0)
