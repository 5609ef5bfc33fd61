"""What it costs, where drafts are made, that requests come.

A step with a prompt waits for the drafts before it, as nobody knows yet where they end; without
drafts the host's work for it would be hidden behind the step before. And a draft network has to
catch up with the prompt. Neither is part of what a step with drafts takes as a rule, so requests
with short answers could make drafts a loss that nobody sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.spec.planned_step import PlannedStep

# What is remembered from one newcomer to the next; and of what they cost, while nobody drafts.
_DECAY, _AGEING = 0.98, 0.9995
# Newcomers that cost nothing, to begin with.
_PRIOR_WEIGHT = 2.0
# A loss counts as if it were at most that of so many steps, or so many times what is usual: what is
# done for the first time may take far longer. And what the latest one says of what is usual.
_MAX_STEPS, _MAX_TIMES, _LATEST_SHARE = 4.0, 2.0, 0.3
# What a step says of the host's work beside a device that waits.
_EXPOSED_SHARE = 0.1


class Newcomers:
    """What each newcomer costs where drafts are made, and what has to make up for it: decaying
    sums over the requests that came, and over those that ended."""

    def __init__(self) -> None:
        self._num_came = self._lost_s = self._usual_s = 0.0
        self._num_ended = self._num_tokens = self._saved_s = 0.0
        self._num_ending = 0

    @property
    def _s_each(self) -> float:
        return max(0.0, self._lost_s) / (self._num_came + _PRIOR_WEIGHT)

    @property
    def s_per_token(self) -> float:
        """Seconds that newcomers cost for each generated token."""
        return self._s_each * self._num_ended / self._num_tokens if self._num_tokens else 0.0

    @property
    def share(self) -> float:
        """Of what drafts could save in all, the part that newcomers cost, at most 1."""
        lost_s = self._s_each * self._num_ended
        return min(1.0, lost_s / self._saved_s) if lost_s and self._saved_s > 0 else 0.0

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

    def go_on(self, num_tokens: float, saved_s: float) -> None:
        """Of a step: the tokens it generated, and the seconds that drafts saved or could have."""
        self._num_tokens += num_tokens
        self._saved_s += saved_s
        if self._num_ending:
            kept = _DECAY**self._num_ending
            self._num_tokens *= kept
            self._saved_s *= kept
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
