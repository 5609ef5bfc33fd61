"""Chooses how many drafts each request gets, from acceptance rates and from the costs of steps.

A step of b requests that verifies k_i drafts of request i generates ``b + sum_i sum_{j <= k_i}
s_ij`` tokens on average, where s_ij is the probability that the first j drafts of request i are all
accepted. It takes longer than a step without drafts. The k_i are chosen for the most tokens per
second (the goodput of Liu et al., "Optimizing Speculative Decoding for Serving LLMs Using Goodput",
arXiv 2406.14066).

Around that formula there are five mechanisms, each in a module of its own:

* **Probes** (``probes``): without drafts, nothing is learned about drafts. So a few requests draft
  now and then even where that does not pay, within a budget of time.
* **Hysteresis** (``hysteresis``): a draft network that has not drafted for a while must catch up
  first. So drafting starts and stops only once the expected loss of *not* doing so adds up.
* **Rests** (``rest``): where drafts do not pay, even the question whether they do costs host time.
  So it is asked once for a number of steps.
* **Streaks** (``streak``): where they are known to pay, few steps are looked at.
* **Remeasurement** (``remeasurement``): while drafts pay, steps without drafts are measured anew
  from time to time, because the comparison needs both.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from engine.spec.experience import STEPS_PER_UPDATE, Experience
from engine.spec.hysteresis import MARGIN, Hysteresis
from engine.spec.probes import Probe
from engine.spec.rest import LONGEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from engine.request import Request
    from engine.spec.costs import StepCosts
    from engine.spec.planned_step import PlannedStep

# Asking a text proposer that finds no drafts may take this share of the time; to keep within it,
# the next question is put off by up to this many steps.
_ASKING_SHARE, _MAX_REST = 0.02, 16
# The least loss, in steps, that a probe is assumed to cause.
_MIN_LOSS = 0.05
# The most requests that take part in a probe.
_PROBE_REQUESTS = 8
# The acceptance rate that is assumed when asking whether a probe could show that drafts pay.
_HOPE = 0.9
# While no drafts are made, but would gain more than this factor, every step is looked at ...
_TEMPTING = 1.1
# ... except for up to this many steps in which the hysteresis would not begin to draft anyway. If
# they would gain anything, or each request may have its own number, this many are not looked at.
_MAX_WAIT, _SOME = 32, 128
# After this many measured steps without drafts, and with drafts, their times count as known.
_NUM_KNOWN, _NUM_STEADY = 4, 32
# Steps with drafts that are slower than this factor have none, even while the hysteresis drafts.
_TOLERATED = 0.97


@dataclass(slots=True)
class _Uniform:
    """The best choice that gives every request the same number of drafts."""

    length: int
    """Drafts of each request."""
    gain: float
    """Tokens per second relative to steps without drafts, apart from what newcomers cost."""
    num_tokens: float
    """Tokens of each request in a step."""
    plain_s: float
    """Seconds of a step without drafts."""
    could_pay: bool
    """Whether some length would pay at the acceptance rate ``_HOPE``."""
    gain_in_all: float | None = None
    """``gain`` with the cost of newcomers; computed on demand."""


@dataclass(slots=True)
class _Choice:
    """The best choice found so far."""

    speed: float
    """Tokens per second."""
    lengths: Mapping[Request, int] = field(default_factory=dict)


class AdaptiveLength:
    """Decides on drafts; what it decides from is kept in its ``Experience``."""

    def __init__(self, costs: StepCosts, *, by_request: bool = True) -> None:
        """costs: as measured at start-up. by_request: requests may have different numbers of
        drafts. If False (draft networks), all have the same, and the hysteresis decides whether
        they have any."""
        self._experience = Experience(costs, by_request=by_request)
        self._costs, self._acceptance = self._experience.costs, self._experience.acceptance
        self._most = costs.lengths[-1]
        self._by_request = by_request
        self._hysteresis = Hysteresis()
        self._probe = Probe()
        self._version = 0
        """Version of the experience from which the cached results below were computed."""
        self._shares: dict[int, float] = {}
        """By batch: the share of savings that newcomers cost."""
        self._shares_due = 0
        """The version in which to compute them anew."""
        self._uniform: dict[tuple[int, int], _Uniform] = {}
        self._probes: dict[tuple[int, int], tuple[int, float]] = {}
        """The cheapest probe by (batch, longest allowed): its length, and the seconds it loses."""
        self._may_pay: dict[tuple[int, int], bool] = {}
        """By (batch, number of requests that could get drafts)."""

    # ---- observing ------------------------------------------------------------------------------

    def planned(self, step: PlannedStep) -> None:
        """A step was planned. ``observe`` follows once it is over; other steps may be planned in
        between."""
        self._experience.planned(step)
        if not self._by_request and step.batch:
            has_drafts = step.num_drafts > 0 and not step.is_probe
            if step.is_probe:
                self._probe.planned(step.length, step.num_drafts // max(1, step.length))
            else:
                self._probe.end()
            step.takes_up = has_drafts and self._hysteresis.takes_up
            self._hysteresis.planned(
                self._gain(step.batch),
                has_drafts=has_drafts,
                has_newcomers=step.num_new > 0,
                is_new=step.num_new == step.batch,
                num_steps=step.num_like,
                batch=step.batch,
                num_tokens=self._best_uniform(step.batch, self._most).num_tokens,
            )

    def observe(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """As ``Experience.observe``."""
        if step.takes_up and step.only_decodes:
            usual_s = self._costs.seconds(step.batch, step.length, step.num_drafts)
            more_s = seconds / self._costs.pace - usual_s
            self._hysteresis.took_up(more_s / self._costs.uniform(step.batch, 0))
        if step.is_probe:
            self._probe.judge(sum(num_right > 0 for *_, num_right in outcomes), len(outcomes))
        is_drafting = self._hysteresis.is_drafting
        self._experience.observe(step, seconds, outcomes, is_drafting=is_drafting)

    def observe_streak(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Steps of a streak are over. outcomes: of all of them, as for ``observe``, with an empty
        id for requests that have ended."""
        self._experience.observe_streak(outcomes)

    def observe_rest(
        self,
        taken: Mapping[int, Sequence[float]],
        num_tokens: Mapping[int, int],
        num_passed: int = 0,
    ) -> None:
        """Steps of a rest are over.

        taken: the seconds of those that were timed, by batch. num_tokens: the tokens that all of
        them generated, by tokens per step. num_passed: how many were not timed; they are assumed to
        be like the timed ones of the first batch.
        """
        for batch, seconds in taken.items():
            if not self._by_request:
                num_steps = len(seconds) + num_passed
                gain = self._gain(batch)
                self._hysteresis.planned(gain, has_drafts=False, num_steps=num_steps)
            self._experience.observe_rest(batch, seconds)
            self._experience.pass_by(batch, num_passed)
            num_passed = 0
        for batch, num_given in num_tokens.items():
            num_others = num_given - batch * len(taken.get(batch, ()))
            if num_others > 0:
                self._experience.newcomers.go_on(batch, num_others)

    def _gain(self, batch: int) -> float:
        """Tokens per second with drafts relative to without, the cost of newcomers included."""
        uniform = self._best_uniform(batch, self._most)
        if uniform.gain_in_all is None:
            uniform.gain_in_all = uniform.gain
            if uniform.gain > 1:
                uniform.gain_in_all = 1 + (uniform.gain - 1) * (1 - self._newcomers_share(batch))
        return uniform.gain_in_all

    def _newcomers_share(self, batch: int) -> float:
        """The share of what drafts save that newcomers cost. It changes slowly, and takes time to
        compute, because it sums over all sizes of batches."""
        if self._version >= self._shares_due:
            self._shares_due = self._version + STEPS_PER_UPDATE
            self._shares.clear()
        size = (batch - 1).bit_length()
        share = self._shares.get(size)
        if share is None:
            share = self._experience.newcomers.share(1 << size, self._saved_s_per_token)
            self._shares[size] = share
        return share

    def _saved_s_per_token(self, batch: int) -> float:
        """Seconds that drafts save per token of such a batch, apart from what newcomers cost."""
        uniform = self._best_uniform(batch, self._most)
        return uniform.plain_s / batch * (1 - 1 / uniform.gain) if uniform.gain > 1 else 0.0

    def admitted_in_rest(self, number: int, batch: int) -> None:
        """A step of a rest admits so many requests, which makes ``batch``."""
        self._experience.newcomers.admit(number, batch)

    def drop(self, request: Request) -> None:
        """The request is finished. Where requests have no drafts of their own, ``end`` will do."""
        self._experience.drop(request.request_id)

    def end(self, number: int) -> None:
        """So many requests are finished."""
        self._experience.newcomers.end(number)

    def _forget_outdated(self) -> None:
        if self._version != self._experience.version:
            self._version = self._experience.version
            self._uniform.clear()
            self._probes.clear()
            self._may_pay.clear()

    # ---- deciding -------------------------------------------------------------------------------

    def uniform_length(self, batch: int, most: int) -> int:
        """The number of drafts, at most ``most``, for each request of a batch; 0 if drafts do not
        pay, or if a step without them is due to be measured."""
        if not self._hysteresis.is_drafting:
            return 0
        uniform = self._best_uniform(batch, most)
        is_trial = not self._by_request and self._hysteresis.is_trial and uniform.could_pay
        if uniform.gain < _TOLERATED and not is_trial:
            return 0
        num_known = self._costs.num_seen(batch, 0, 0)
        return (
            0 if self._experience.remeasurement.is_due(uniform.gain, num_known) else uniform.length
        )

    def _best_uniform(self, batch: int, most: int) -> _Uniform:
        """The best length above 0. The batch is rounded up to a power of two, as in
        ``LearnedCosts``: otherwise the result would be computed again for each size of a batch that
        changes in almost every step."""
        self._forget_outdated()
        batch = 1 << (batch - 1).bit_length()
        found = self._uniform.get((batch, most))
        if found is None:
            found = self._uniform[batch, most] = self._find_uniform(batch, most)
        return found

    def _find_uniform(self, batch: int, most: int) -> _Uniform:
        best, best_speed, best_tokens, could_pay = 0, 0.0, 1.0, False
        plain_s = self._costs.uniform(batch, 0)
        survival = self._acceptance.survival()
        for length in self._costs.table.choices:
            if length > most:
                break
            tokens, step_s = 1 + sum(survival[:length]), self._costs.uniform(batch, length)
            if (speed := tokens / step_s) > best_speed:
                best, best_speed, best_tokens = length, speed, tokens
            could_pay |= _hoped(length) * plain_s > MARGIN * step_s
        return _Uniform(best, best_speed * plain_s, best_tokens, plain_s, could_pay)

    def rest_length(self, batch: int, asked_s: float | None = None, *, overlaps: bool) -> int:
        """For how many steps of ``batch`` requests, one token each, not to ask for drafts again, at
        most.

        overlaps: whether these steps are planned while another is in flight. asked_s: the seconds
        that a proposer took to find no drafts; None if drafts were found not to pay.
        """
        before = self._experience.before
        if not self._experience.remeasurement.is_idle:
            return 0
        if not self._by_request:
            return self.hopeless_length(batch) or self._num_waiting(batch)
        if before is None or before.num_drafts or not before.is_typical:
            return 0
        if (before.batch, before.overlaps) != (batch, overlaps):
            return 0
        if asked_s is None:
            return _SOME
        return min(_MAX_REST, int(asked_s / (_ASKING_SHARE * self._costs.uniform(batch, 0))))

    def _num_waiting(self, batch: int) -> int:
        """How many more steps the hysteresis needs until it begins to draft, at most ``_MAX_WAIT``;
        0 if these are few."""
        if self._hysteresis.is_drafting or batch == 0:
            return 0
        num_steps = min(self._hysteresis.num_steps_left(self._gain(batch)), _MAX_WAIT)
        return num_steps if num_steps > STEPS_PER_UPDATE else 0

    def hopeless_length(self, batch: int) -> int:
        """For how many steps a batch of this size gets no drafts, whichever requests it has: it is
        known that drafts would gain too little to look at every step. 0 if it is not."""
        if self._by_request or self._hysteresis.is_drafting:
            return 0
        if batch == 0:
            return LONGEST
        if (
            self._costs.num_seen(batch, 0, 0) < _NUM_KNOWN
            or (gain := self._gain(batch)) > _TEMPTING
        ):
            return 0
        return _SOME if gain > 1 else LONGEST

    def num_steps_to_probe(self, batch: int, most: int) -> int:
        """Steps without drafts after which a probe is due, at most ``LONGEST``."""
        if batch == 0:
            return LONGEST
        length, lost_s = self._cheapest_probe(batch, most)
        if length == 0:
            return LONGEST
        plain_s = self._costs.uniform(batch, 0)
        return min(self._experience.probes.num_steps_to(lost_s, plain_s), LONGEST)

    def steady_length(self, batch: int, most: int) -> int:
        """As ``uniform_length``, if so many steps with as many drafts were measured that it is
        enough to look at some of those that follow; else 0. Where each request has its own number
        it is the most that any has."""
        length = most if self._by_request else self.uniform_length(batch, most)
        return length if self._costs.num_seen(batch, length, batch * length) >= _NUM_STEADY else 0

    @property
    def overlaps(self) -> bool:
        """Whether steps without drafts usually overlap."""
        return self._experience.overlaps

    def may_wait(self) -> bool:
        """Whether to wait for the step in flight if drafts are expected after it. If there are none
        then, the wait was in vain: the host's work was not hidden. So where that happens often,
        such waits are paid from the budget of probes."""
        return -self._experience.patience_s <= max(0.0, self._experience.probes.saved_s)

    def probe_length(self, batch: int, most: int) -> int:
        """Drafts for each request of a probe, if one is due or has begun; else 0.

        Of the lengths that could pay, the one with the least expected loss, which is near 0 where
        drafts nearly pay.
        """
        if batch == 0 or not self._experience.remeasurement.is_idle:
            return 0
        if self.is_probing:
            return min(self._probe.length, most)
        length, lost_s = self._cheapest_probe(batch, most)
        return length if lost_s <= self._experience.probes.saved_s else 0

    def _cheapest_probe(self, batch: int, most: int) -> tuple[int, float]:
        """The length of the cheapest probe, and the seconds that it is expected to lose."""
        self._forget_outdated()
        found = self._probes.get((batch, most))
        if found is None:
            found = self._probes[batch, most] = self._find_probe(batch, most)
        return found

    def _find_probe(self, batch: int, most: int) -> tuple[int, float]:
        """As ``_cheapest_probe``. The seconds are limited to [``_MIN_LOSS``, 1] steps, because the
        estimates may be far off."""
        size, plain_s = min(batch, _PROBE_REQUESTS), self._costs.uniform(batch, 0)
        found, found_s = 0, float("inf")
        gain = 0.0
        for length, chance in enumerate(self._acceptance.survival()[:most], 1):
            gain += chance
            if length not in self._costs.table.choices:
                continue
            hopeful_s = self._costs.hopeful(batch, length)
            hopeful_s += batch * _hoped(length) * self._experience.newcomers.s_per_token(batch)
            if _hoped(length) * plain_s < MARGIN * hopeful_s:
                continue
            step_s = self._costs.seconds(batch, length, size * length)
            lost_s = step_s - (1 + size / batch * gain) * plain_s
            if lost_s < found_s:
                found, found_s = length, lost_s
        return found, min(max(found_s, _MIN_LOSS * plain_s), plain_s)

    @property
    def is_probing(self) -> bool:
        """Whether the next step belongs to a probe that has begun."""
        return self._probe.length > 0

    @staticmethod
    def probed(asked: Mapping[Request, int]) -> dict[Request, int]:
        """The requests that take part in a probe: always the oldest, so that a draft network has
        less to catch up with."""
        return dict(islice(asked.items(), _PROBE_REQUESTS))

    def lengths(self, found: Mapping[Request, int], batch: int) -> dict[Request, int]:
        """How many of the drafts that were found to verify for each request of a batch. found:
        their number by request; other requests of the batch have none."""
        request_ids = [request.request_id for request in found]
        chances = dict(zip(found, self._acceptance.of_each(request_ids), strict=True))
        choice = _Choice(MARGIN * batch / self._costs.uniform(batch, 0), dict.fromkeys(found, 0))
        self._try_uniform(choice, found, chances, batch)
        if batch > 1 and not self._costs.table.is_padded:
            self._try_individual(choice, found, chances, batch)
        return dict(choice.lengths)

    def _try_uniform(
        self,
        choice: _Choice,
        found: Mapping[Request, int],
        chances: Mapping[Request, tuple[float, float]],
        batch: int,
    ) -> None:
        """Try the same number of drafts for each request: all that are found where steps are padded
        to the longest anyway, else only if every request of the batch has so many."""
        if self._costs.table.is_padded:
            most = max(found.values(), default=0)
        else:
            most = min(found.values(), default=0) if len(found) == batch else 0
        # By draft position: the expected tokens of all requests together, and how many have one.
        gains, counts = [0.0] * (most + 1), [0] * (most + 1)
        for request, limit in found.items():
            chance, later = chances[request]
            for place in range(1, min(limit, most) + 1):
                gains[place] += chance
                counts[place] += 1
                chance *= later
        best, tokens, num_drafts = 0, float(batch), 0
        lost_s = self._experience.newcomers.s_per_token(batch)
        for length in range(1, most + 1):
            tokens += gains[length]
            num_drafts += counts[length]
            if length == most or length in self._costs.table.choices:
                step_s = self._costs.seconds(batch, length, num_drafts) + tokens * lost_s
                speed = tokens / step_s
                if speed > choice.speed:
                    choice.speed, best = speed, length
        if best:
            choice.lengths = {request: min(best, limit) for request, limit in found.items()}

    def _try_individual(
        self,
        choice: _Choice,
        found: Mapping[Request, int],
        chances: Mapping[Request, tuple[float, float]],
        batch: int,
    ) -> None:
        """Add drafts one by one, the most probable first (a draft only after those before it), and
        take the number with the best speed."""
        heap = [(-chances[r][0], i, r, 1) for i, r in enumerate(found) if found[r] > 0]
        heapq.heapify(heap)
        lengths = dict.fromkeys(found, 0)
        tokens, num_drafts, longest = float(batch), 0, 0
        lost_s = self._experience.newcomers.s_per_token(batch)
        while heap:
            gain, index, request, length = heap[0]
            tokens -= gain
            num_drafts += 1
            lengths[request] = length
            longest = max(longest, length)
            step_s = self._costs.seconds(batch, longest, num_drafts) + tokens * lost_s
            speed = tokens / step_s
            if speed > choice.speed:
                choice.speed, choice.lengths = speed, dict(lengths)
            if length < found[request]:
                following = (gain * chances[request][1], index, request, length + 1)
                heapq.heapreplace(heap, following)
            else:
                heapq.heappop(heap)

    def may_pay(self, requests: Collection[Request], batch: int) -> bool:
        """Whether drafts of these requests could pay at all, before any are made: in the best
        cases, where only the request with the best acceptance rate has drafts, or all of them
        have."""
        if batch == 0 or not requests:
            return False  # All of them ended while a step was in flight.
        self._forget_outdated()
        key = batch, len(requests)
        if key not in self._may_pay:
            self._may_pay[key] = self._judge_hopes(requests, batch)
        return self._may_pay[key]

    def _judge_hopes(self, requests: Collection[Request], batch: int) -> bool:
        costs, most = self._costs, self._most
        chances = self._acceptance.of_each(request.request_id for request in requests)
        gains = [_gain(first, later, most) for first, later in chances]
        plain_speed = MARGIN * batch / costs.uniform(batch, 0)
        first = costs.table.choices[0]
        return (batch + sum(gains)) / costs.uniform(batch, first) > plain_speed or (
            batch + max(gains)
        ) / costs.seconds(batch, most, most) > plain_speed


def _hoped(length: int) -> float:
    """Expected tokens of a request in a step with so many drafts, at the acceptance rate
    ``_HOPE``."""
    return (1 - _HOPE ** (length + 1)) / (1 - _HOPE)


def _gain(first: float, later: float, length: int) -> float:
    """Expected number of accepted drafts. first: the acceptance rate of the first draft; later: of
    each that follows accepted ones."""
    if later > 0.999:
        return first * length
    return first * (1 - later**length) / (1 - later)
