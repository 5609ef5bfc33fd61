"""What newly admitted requests cost while drafts are made.

While drafts are in flight, a step cannot be planned: it is not known how many will be accepted. So
the host's work for a new prompt is not hidden behind the step before, as it would be without
drafts. And a draft network must catch up with the prompt. Neither shows in the usual time of a step
with drafts; if answers are short, these costs may be more than drafts save."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.spec.planned_step import PlannedStep

# What is left of the sums after each newcomer; and of the loss, after a newcomer while none drafts.
_DECAY, _AGEING = 0.98, 0.9995
# Likewise for the sizes of batches that newcomers come to: hundreds may come at once, in two steps.
_ADMITTED_DECAY = 0.995
# The prior: as if this many newcomers had cost nothing.
_PRIOR_WEIGHT = 2.0
# A loss is limited to this many steps and to this multiple of the usual loss, because what is done
# for the first time may take far longer. The third is the weight of the latest loss in the usual
# one.
_MAX_STEPS, _MAX_TIMES, _LATEST_SHARE = 4.0, 2.0, 0.3
# From this share of the savings on, newcomers count as costing all of them: both are only
# estimates.
_NEARLY_ALL = 0.85
# The weight of the latest step in the usual exposed times.
_EXPOSED_SHARE = 0.1


class Newcomers:
    """What each newcomer costs, and how many tokens make up for it: decaying sums over the requests
    that came and over those that ended."""

    def __init__(self) -> None:
        self._num_came = self._lost_s = self._usual_s = 0.0
        self._num_ended = 0.0
        self._num_tokens: defaultdict[int, float] = defaultdict(float)
        """Generated tokens, by ``_size`` of the step's batch."""
        self._num_admitted: defaultdict[int, float] = defaultdict(float)
        """Newcomers by ``_size`` of the batch that they came to, whether or not drafts were made.
        Where none come, drafts cost none of them anything."""
        self._num_ending = 0
        """Requests whose end is not accounted for yet."""

    @property
    def _s_each(self) -> float:
        """Seconds that a newcomer costs."""
        return max(0.0, self._lost_s) / (self._num_came + _PRIOR_WEIGHT)

    def s_per_token(self, batch: int) -> float:
        """Seconds that newcomers cost for each token of such a batch: if drafts are made at all
        times or, if that is less, if they are made in such batches only."""
        lost_s = self._s_each * self._num_ended
        if not lost_s:
            return 0.0
        num_here = self._num_tokens.get(_size(batch), 0.0)
        here_s = lost_s * self._part_here(batch)
        in_all_s = lost_s / sum(self._num_tokens.values())
        return min(in_all_s, here_s / num_here) if num_here else in_all_s

    def share(self, batch: int, saved_s: Callable[[int], float]) -> float:
        """The share that newcomers cost of what drafts would save, at most 1: of all that they
        would at all times or, if that is less, of what they would in such batches. saved_s: maps a
        batch to the seconds per token that drafts save, as currently estimated."""
        lost_s = self._s_each * self._num_ended
        if not lost_s:
            return 0.0
        in_all_s = sum(count * saved_s(1 << size) for size, count in self._num_tokens.items())
        if in_all_s <= 0:
            return 0.0
        here_s = self._num_tokens.get(_size(batch), 0.0) * saved_s(batch)
        return min(_share(lost_s, in_all_s), _share(lost_s * self._part_here(batch), here_s))

    def _part_here(self, batch: int) -> float:
        """The part of all newcomers that come to such batches."""
        in_all = sum(self._num_admitted.values())
        return self._num_admitted.get(_size(batch), 0.0) / in_all if in_all else 1.0

    def come(self, number: int, batch: int, *, drafting: bool) -> None:
        """``number`` requests were admitted, which makes ``batch``. drafting: whether drafts are
        currently made."""
        if not number:
            return
        self.admit(number, batch)
        if drafting:
            kept = _DECAY**number
            self._lost_s *= kept
            self._num_came = kept * self._num_came + (1 - kept) / (1 - _DECAY)
        else:
            self._lost_s *= _AGEING**number

    def admit(self, number: int, batch: int) -> None:
        """As ``come``, of which only the batch is learned."""
        kept = _ADMITTED_DECAY**number
        for size in self._num_admitted:
            self._num_admitted[size] *= kept
        self._num_admitted[_size(batch)] += (1 - kept) / (1 - _ADMITTED_DECAY)

    def lose(self, seconds: float, plain_s: float) -> None:
        """The last newcomers cost ``seconds``. plain_s: seconds of a step without drafts."""
        seconds = min(seconds, max(_MAX_STEPS * plain_s, _MAX_TIMES * self._usual_s))
        self._usual_s += _LATEST_SHARE * (seconds - self._usual_s)
        self._lost_s += seconds

    def go_on(self, batch: int, num_tokens: float) -> None:
        """Steps of ``batch`` requests generated ``num_tokens`` in all."""
        self._num_tokens[_size(batch)] += num_tokens
        if self._num_ending:
            kept = _DECAY**self._num_ending
            for each in self._num_tokens:
                self._num_tokens[each] *= kept
            self._num_ended = kept * self._num_ended + (1 - kept) / (1 - _DECAY)
            self._num_ending = 0

    def end(self, number: int = 1) -> None:
        """``number`` requests ended, in the steps of which the next ``go_on`` tells: only with that
        are their tokens complete."""
        self._num_ending += number


def _size(batch: int) -> int:
    """Batches are counted by powers of two, as in ``LearnedCosts``."""
    return (batch - 1).bit_length()


def _share(lost_s: float, saved_s: float) -> float:
    return lost_s / saved_s if lost_s < _NEARLY_ALL * saved_s else 1.0


class Exposure:
    """The host's time before a step in which the device is idle, because of drafts: the usual time,
    in steps that only decode, and what other steps take beyond it."""

    def __init__(self) -> None:
        self._exposed_s = self._drafting_s = 0.0

    def observe(self, step: PlannedStep, num_steps: int = 1) -> None:
        """``num_steps`` steps with drafts that only decode, all like ``step``."""
        share = 1 - (1 - _EXPOSED_SHARE) ** num_steps
        self._exposed_s += share * (step.exposed_s - self._exposed_s)
        self._drafting_s += share * (step.drafting_s - self._drafting_s)

    def caught_up_s(self, step: PlannedStep) -> float:
        """Seconds of drafting beyond the usual, in which a network caught up with prompts."""
        return step.drafting_s - self._drafting_s if step.num_drafts else 0.0

    def lost_s(self, step: PlannedStep, hidden_s: float) -> float:
        """Seconds that a step with prompts loses because of drafts: the network's catching up, and
        the host's work that would otherwise be hidden behind the step before. hidden_s: seconds
        that the device takes for that step."""
        caught_up_s, host_s = self.caught_up_s(step), step.exposed_s
        if step.num_drafts:
            host_s -= step.drafting_s + self._exposed_s - self._drafting_s
        # If all requests are new, there was no step before to hide the work behind.
        return caught_up_s + (min(host_s, hidden_s) if step.batch > step.num_new else 0.0)
