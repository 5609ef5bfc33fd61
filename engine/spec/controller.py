"""Decides how many drafts each request gets.

The number of drafts is the one with the most expected tokens per second: the tokens follow from the
rates at which drafts were accepted (``acceptance``), the seconds from what steps cost (``costs``).
This is the goodput of Liu et al., "Optimizing Speculative Decoding for Serving LLMs Using Goodput",
arXiv 2406.14066.

Whether a draft network drafts at all is one switch for the whole engine. It turns once the expected
loss by its present position has added up to what turning it costs. To learn what the other position
would be like, it is tried for a few steps, more and more rarely: steps without drafts while drafts
are made, and drafts of a few requests while none are made (a probe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.spec.acceptance import Acceptance
from engine.spec.costs import LOOK, LearnedCosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.request import Request
    from engine.spec.costs import Noted, StepCosts

PROBE_REQUESTS = 4
"""The most requests that take part in a probe."""

# Of so many steps with drafts the last ``LOOK`` are learned from.
_PERIOD = 32
# Steps of a trial without drafts, of which the first are not the usual ones. A probe goes on until
# drafts were checked so many times, or for so many steps if no first draft is likely to be right.
_TRIAL, _PROBE_CHECKS, _POOR_STEPS, _POOR = LOOK + 2, 8, 3, 0.2
# Steps until the first trial and until the first probe; from each to the next it is so many times
# as long, up to a limit.
_FIRST_TRIAL, _FIRST_PROBE, _LONGER, _MAX_INTERVAL = 32, 128, 4, 2048
# A probe waits so many steps for a prompt. The network has to catch up with that anyway, and the
# hidden states of all its tokens are kept.
MAX_WAIT = 64
# What was known before a probe counts as no more than so many drafts. If so many more of its first
# drafts are right than was expected, the next probe comes soon.
_OLD_TRIES, _NEWS = 6.0, 0.3
# The acceptance rate at which drafts must pay to be worth a probe.
_HOPE = 0.9
# The losses, in steps without drafts, that turn the switch: on (at least, and what it costs to
# begin), off, and off before the first trial, when only priors are known. Each time that drafting
# did not gain what it cost to begin, it takes twice the loss to turn it on again, up to a limit.
_TURN_ON, _TURN_OFF, _TURN_OFF_FIRST, _MAX_FACTOR = 1.0, 0.5, 4.0, 32.0
# While the switch is on, steps that drafts would make slower than this have none all the same.
_TOLERATED = 0.97
# The gains from which drafts are begun, and from which they go on: costs are certain, gains are
# estimates.
_MARGIN, _KEEPING = 1.04, 1.02
# How probable it must be that a draft from a text is accepted for it to be checked: the one of
# these with the most tokens per second.
_LEAST_CHANCES = (0.02, 0.1, 0.2, 0.35, 0.5, 0.7)


@dataclass(slots=True)
class _Choice:
    """What is best for batches of a size."""

    length: int
    """Drafts of each request."""
    gain: float
    """Tokens per second relative to steps without drafts."""
    probe_length: int
    """The fewest drafts that would pay at the acceptance rate ``_HOPE``; 0 if none would."""


class Controller:
    """Numbers of drafts, and the switch."""

    def __init__(self, costs: StepCosts, *, by_request: bool) -> None:
        """costs: as measured at start-up. by_request: drafts come from texts; each request has its
        own number of them, and the switch stays on."""
        self.costs = LearnedCosts(costs)
        self.acceptance = Acceptance(costs.lengths[-1])
        self._by_request = by_request
        self._choices: dict[int, _Choice] = {}
        self._num_learned = 0
        self.is_on = True
        self.in_trial = False
        """Whether the present steps try the other position of the switch."""
        self._since = 0
        """Steps since the switch was turned, or since the last trial began or ended."""
        self._interval = _FIRST_TRIAL
        """Steps from a trial to the next."""
        self._lost = 0.0
        """What the present position has lost, in steps without drafts."""
        self._gained = 0.0
        """What drafts have gained since the switch was turned on, likewise."""
        self._factor = 1.0
        """Multiplies what turns the switch on."""
        self._is_first = True
        """Whether the switch was never turned, and nothing tried."""

    # ---- deciding -------------------------------------------------------------------------------

    @property
    def drafts(self) -> bool:
        """Whether the next step may have drafts."""
        return self.is_on != self.in_trial

    @property
    def is_probe(self) -> bool:
        return self.in_trial and not self.is_on

    def length(self, batch: int) -> int:
        """Drafts of each of ``batch`` requests in the next step; of a few of them in a probe."""
        if self.is_on == self.in_trial or not batch:
            return 0
        choice = self._choice(batch)
        if self.in_trial:
            return choice.probe_length
        is_tried = self._is_first and choice.probe_length
        return choice.length if choice.gain > _TOLERATED or is_tried else 0

    def num_idle(self, batch: int) -> int:
        """For how many steps of such batches nothing is to be decided, and nothing to be learned:
        while the switch is off. In the last ``MAX_WAIT`` of them, ``pass_by`` is due as soon as a
        prompt comes."""
        if self.is_on or self.in_trial or self._since < _TRIAL:
            return 0
        left = self._interval + MAX_WAIT - self._since
        if batch and (gain := self._choice(batch).gain) > _MARGIN:
            left = min(left, int((self._needed - self._lost) / (gain - _MARGIN)))
        return max(left, 0)

    def _choice(self, batch: int) -> _Choice:
        size = (batch - 1).bit_length()
        choice = self._choices.get(size)
        if choice is None:
            choice = self._choices[size] = self._choose(1 << size)
        return choice

    def _choose(self, batch: int) -> _Choice:
        costs, choice = self.costs, _Choice(0, 0.0, 0)
        survival, of_newcomers = self.acceptance.survival(), costs.of_newcomers(batch)
        for length in costs.table.choices:
            steps = costs.relative(batch, length, batch * length)
            tokens, hoped = 1 + sum(survival[:length]), 1 + _num_right(_HOPE, length)
            gain = tokens / (steps + tokens * of_newcomers)
            if gain > choice.gain:
                choice.length, choice.gain = length, gain
            if not choice.probe_length and hoped > _MARGIN * (steps + hoped * of_newcomers):
                choice.probe_length = length
        return choice

    def lengths(self, found: Mapping[Request, int], batch: int, share: float = 1.0) -> list[int]:
        """How many of the drafts that were found to check, for each request of ``found``; others of
        the batch have none. share: how often there are drafts at all."""
        rate_of, is_padded = self.acceptance.of_request, self.costs.table.is_padded
        rates = [min(rate_of(request.request_id), 0.999) for request in found]
        best, best_gain, relative = [0] * len(found), _MARGIN, self.costs.relative
        of_newcomers, waiting = self.costs.of_newcomers(batch), relative(batch, 0, 0)
        for least in _LEAST_CHANCES:
            lengths = [
                _num_likely(rate, limit, least)
                for rate, limit in zip(rates, found.values(), strict=True)
            ]
            longest = max(lengths)
            if longest == 0:
                break
            if is_padded:  # More drafts of the others cost nothing.
                lengths = [min(longest, limit) for limit in found.values()]
            tokens = 1 + share * sum(map(_num_right, rates, lengths)) / batch
            steps = (1 - share) * waiting + share * relative(batch, longest, sum(lengths))
            steps += tokens * of_newcomers
            if tokens / steps > best_gain:
                best, best_gain = lengths, tokens / steps
        return best

    # ---- counting steps -------------------------------------------------------------------------

    def advance(self, batch: int, *, has_newcomers: bool) -> bool:
        """A step was planned. Returns whether it is to be noted."""
        since = self._since
        self._since = since + 1
        if self.in_trial:
            probe = _PROBE_CHECKS // min(max(batch, 1), PROBE_REQUESTS)
            if self._since >= (_TRIAL if self.is_on else probe):
                self._end_trial()
            return True
        self._judge(batch, 1)
        self._begin_trial(batch, has_newcomers=has_newcomers)
        return since < _TRIAL or (self.is_on and since % _PERIOD >= _PERIOD - LOOK)

    def pass_by(self, batch: int, num_steps: int, *, has_newcomers: bool) -> None:
        """So many steps were idle. has_newcomers: the last of them has a prompt."""
        self._since += num_steps
        self._judge(batch, num_steps)
        self._begin_trial(batch, has_newcomers=has_newcomers)

    def _judge(self, batch: int, num_steps: int) -> None:
        """Add what the switch's position loses, and turn it if that is enough."""
        if not batch or self._by_request:
            return
        gain = self._choice(batch).gain
        more = num_steps * (_KEEPING - gain if self.is_on else gain - _MARGIN)
        self._lost = max(0.0, self._lost + more)
        if self.is_on:
            self._gained -= more
            if self._lost > (_TURN_OFF_FIRST if self._is_first else _TURN_OFF):
                self._factor = 1.0 if self._gained > 0 else min(2 * self._factor, _MAX_FACTOR)
                self._turn(on=False)
        elif self._lost > self._needed:
            self._turn(on=True)

    @property
    def _needed(self) -> float:
        """The loss that turns the switch on."""
        return self._factor * max(_TURN_ON, self.costs.start)

    def _turn(self, *, on: bool) -> None:
        self.is_on, self._is_first = on, False
        self._lost, self._gained = 0.0, -self.costs.start
        self._since, self._interval = 0, _FIRST_TRIAL if on else _FIRST_PROBE

    def _begin_trial(self, batch: int, *, has_newcomers: bool) -> None:
        """Begin one if it is due."""
        more = self._since - self._interval
        if more < 0 or not (self.is_on or has_newcomers or more >= MAX_WAIT):
            return
        self.in_trial, self._since = True, 0
        if self.is_on:
            return
        self.acceptance.fade(_OLD_TRIES)
        self.costs.doubt()
        self._choices.clear()
        if not batch or not self._choice(batch).probe_length:
            self._end_trial()  # A probe could not show that drafts pay.
            self._since = _TRIAL

    def _end_trial(self) -> None:
        self.in_trial, self._is_first, self._since, self._lost = False, False, 0, 0.0
        self._interval = min(_LONGER * self._interval, _MAX_INTERVAL)

    # ---- learning -------------------------------------------------------------------------------

    def observe(
        self, step: Noted, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """A noted step is over. outcomes: for each request whose drafts say something (request id,
        drafts, accepted drafts)."""
        if outcomes:
            if not self.is_on and _share_right(outcomes) > self.acceptance.survival()[0] + _NEWS:
                self._interval = _FIRST_PROBE  # Things have changed: ask again soon.
            self.acceptance.observe(outcomes, by_request=self._by_request)
            is_poor = self._since >= _POOR_STEPS and self.acceptance.survival()[0] < _POOR
            if self.is_probe and is_poor:
                self._end_trial()
        self.costs.observe(step, seconds, sum(num_right for _, _, num_right in outcomes))
        self._num_learned += 1
        if self._num_learned % (LOOK // 2) == 0:
            self._choices.clear()


def _share_right(outcomes: Sequence[tuple[str, int, int]]) -> float:
    """How many first drafts were right."""
    return sum(num_right > 0 for _, _, num_right in outcomes) / len(outcomes)


def _num_likely(rate: float, limit: int, least: float) -> int:
    """How many of at most ``limit`` drafts are accepted, with all before them, with at least this
    probability."""
    chance, length = rate, 0
    while length < limit and chance >= least:
        length += 1
        chance *= rate
    return length


def _num_right(rate: float, length: int) -> float:
    """Expected number of accepted drafts of ``length``."""
    return rate * (1.0 - rate**length) / (1.0 - rate)
