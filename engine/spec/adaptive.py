"""How many drafts pay: from what was accepted before, and from what steps cost.

A step of b requests that checks k_i drafts of request i gives ``b + sum_i sum_{j <= k_i} s_ij``
tokens, where s_ij is the chance that the first j drafts of i are right. It takes longer than a step
without drafts. The k_i are those for which tokens a second are the most (the goodput of Liu et al.,
"Optimizing Speculative Decoding for Serving LLMs Using Goodput", arXiv 2406.14066).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from engine.spec.experience import HOLDS, Experience
from engine.spec.hysteresis import MARGIN, Hysteresis

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from engine.request import Request
    from engine.spec.costs import StepCosts
    from engine.spec.planned_step import PlannedStep

# What questions that nobody has an answer to may take of the time, and for how many steps they are
# put off at most.
_ASKING_SHARE, _MAX_REST = 0.02, 16
# What a probe is taken to lose of a step, at least.
_MIN_LOSS = 0.05
# Requests in a probe, where there are more.
_PROBE_REQUESTS = 8
# How often drafts are right in a probe that could change anything.
_HOPE = 0.9
# Where drafts could gain more than this, though they are not made yet, each step is looked at.
_TEMPTING = 1.1
# And so many of them are not, where to begin with drafts has to pay for itself first.
_MAX_WAIT = 32
# Steps without drafts, and with them, that will do to know what they take.
_NUM_KNOWN, _NUM_STEADY = 4, 32
# Drafts that lose more than this are not made even where the last ones paid.
_TOLERATED = 0.97


@dataclass(slots=True)
class _Even:
    """As many drafts for all."""

    length: int
    gain: float
    """How many times as fast as no drafts, newcomers aside."""
    plain_s: float
    """Of a step without."""
    gain_in_all: float | None = None
    """How many times as fast with newcomers, once somebody asked."""


@dataclass(slots=True)
class _Choice:
    """The best so far."""

    speed: float
    lengths: Mapping[Request, int] = field(default_factory=dict)


class AdaptiveLength:
    """Decides; what it goes by is its ``Experience``, which hears all that it hears."""

    def __init__(self, costs: StepCosts, *, by_request: bool = True) -> None:
        """by_request: requests may have different numbers of drafts. If not, all have as many, and
        whether they have any changes seldom."""
        self._experience = Experience(costs, by_request=by_request)
        self._costs, self._acceptance = self._experience.costs, self._experience.acceptance
        self._most = costs.lengths[-1]
        self._by_request = by_request
        self._hysteresis = Hysteresis()
        self._version = 0
        """Of the experience that what follows was found out with."""
        self._even: dict[tuple[int, int], _Even] = {}
        self._probes: dict[tuple[int, int], tuple[int, float]] = {}
        """The cheapest probe: its length, and what it would lose."""
        self._may_pay: dict[tuple[int, int], bool] = {}
        """By the batch and the requests asked for."""

    # ---- what happens ---------------------------------------------------------------------------

    def planned(self, step: PlannedStep) -> None:
        """To be followed by ``observe`` once it is over; others may be planned between the two."""
        self._experience.planned(step)
        if not self._by_request and step.batch:
            has_drafts = step.num_drafts > 0 and not step.is_probe
            step.takes_up = has_drafts and self._hysteresis.takes_up
            if not step.num_drafts:
                step.saving_s = self._saving_s(step.batch)
            self._hysteresis.planned(
                self._gain(step.batch),
                has_drafts=has_drafts,
                has_newcomers=step.num_new > 0,
                is_new=step.num_new == step.batch,
                num_steps=step.num_like,
            )

    def observe(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """As ``Experience.observe``."""
        if step.takes_up and step.only_decodes:
            usual_s = self._costs.seconds(step.batch, step.length, step.num_drafts)
            more_s = seconds / self._costs.pace - usual_s
            self._hysteresis.took_up(more_s / self._costs.even(step.batch, 0))
        is_drafting = self._hysteresis.is_drafting
        self._experience.observe(step, seconds, outcomes, is_drafting=is_drafting)

    def observe_rest(
        self, taken: Mapping[int, Sequence[float]], num_tokens: int, num_passed: int = 0
    ) -> None:
        """Steps of ``rest_length`` are over: of each batch, what some of them took; the tokens that
        all of them gave; and how many nobody timed, which are taken for like the first of these."""
        for batch, seconds in taken.items():
            num_tokens -= batch * len(seconds)
            saving_s = 0.0
            if not self._by_request:
                num_steps = len(seconds) + num_passed
                saving_s = num_steps * self._saving_s(batch)
                gain = self._gain(batch)
                self._hysteresis.planned(gain, has_drafts=False, num_steps=num_steps)
            self._experience.observe_rest(batch, seconds, saving_s)
            self._experience.pass_by(batch, num_passed)
            num_passed = 0
        self._experience.newcomers.go_on(num_tokens, 0.0)

    def _gain(self, batch: int) -> float:
        """How many times as fast such a batch is with drafts, newcomers and all."""
        even = self._best_even(batch, self._most)
        if even.gain_in_all is None:
            share = 1 - self._experience.newcomers.share
            even.gain_in_all = even.gain if even.gain < 1 else 1 + (even.gain - 1) * share
        return even.gain_in_all

    def _saving_s(self, batch: int) -> float:
        """What drafts would save in a step of so many requests that has none."""
        even = self._best_even(batch, self._most)
        return even.plain_s * (1 - 1 / even.gain) if even.gain > 1 else 0.0

    def drop(self, request: Request) -> None:
        """The request is finished."""
        self._experience.drop(request.request_id)

    def _forget_outdated(self) -> None:
        if self._version != self._experience.version:
            self._version = self._experience.version
            self._even.clear()
            self._probes.clear()
            self._may_pay.clear()

    # ---- deciding -------------------------------------------------------------------------------

    def even_length(self, batch: int, most: int) -> int:
        """One length for all, at most ``most``; 0 if drafts do not pay, or steps without them are
        to be measured."""
        if not self._hysteresis.is_drafting:
            return 0
        even = self._best_even(batch, most)
        if even.gain < _TOLERATED:
            return 0
        num_known = self._costs.num_seen(batch, 0, 0)
        return 0 if self._experience.remeasurement.is_due(even.gain, num_known) else even.length

    def _best_even(self, batch: int, most: int) -> _Even:
        """Of the lengths above 0. Batches are told apart within a factor of two, as what they cost
        is learned: where answers end in almost every step, each would be judged anew."""
        self._forget_outdated()
        batch = 1 << (batch - 1).bit_length()
        found = self._even.get((batch, most))
        if found is None:
            found = self._even[batch, most] = self._find_even(batch, most)
        return found

    def _find_even(self, batch: int, most: int) -> _Even:
        best, best_speed = 0, 0.0
        plain_s = self._costs.even(batch, 0)
        survival = self._acceptance.survival()
        for length in self._costs.table.choices:
            if length > most:
                break
            tokens = 1 + sum(survival[:length])
            if (speed := tokens / self._costs.even(batch, length)) > best_speed:
                best, best_speed = length, speed
        return _Even(best, best_speed * plain_s, plain_s)

    def rest_length(self, batch: int, asked_s: float | None = None, *, overlaps: bool) -> int:
        """How many steps nobody need ask for drafts: of ``batch`` requests that compute one token
        each, and all overlap, or none does. They do not pay now; or nobody had an idea, and to ask
        took ``asked_s``."""
        before = self._experience.before
        if not self._experience.remeasurement.is_idle:
            return 0
        if not self._by_request:
            return HOLDS if self.is_hopeless(batch) else self._num_waiting(batch)
        if before is None or before.num_drafts or not before.is_typical:
            return 0
        if (before.batch, before.overlaps) != (batch, overlaps):
            return 0
        if asked_s is None:
            return HOLDS
        return min(_MAX_REST, int(asked_s / (_ASKING_SHARE * self._costs.even(batch, 0))))

    def _num_waiting(self, batch: int) -> int:
        """Steps before drafts are taken up, at most, where that costs more than some."""
        if self._hysteresis.is_drafting or batch == 0:
            return 0
        num_steps = min(self._hysteresis.num_steps_left(self._gain(batch)), _MAX_WAIT)
        return num_steps if num_steps > HOLDS else 0

    def is_hopeless(self, batch: int) -> bool:
        """Whether no drafts are made of so many requests, whichever they are, and none will be for
        some steps: what these could gain is known, and not worth a look at each."""
        if self._by_request or self._hysteresis.is_drafting:
            return False
        if batch == 0:
            return True
        is_known = self._costs.num_seen(batch, 0, 0) >= _NUM_KNOWN
        return is_known and self._gain(batch) <= _TEMPTING

    def is_steady(self, step: PlannedStep) -> bool:
        """Whether others like this one, which has drafts, can teach no more than some of them."""
        num_seen = self._costs.num_seen(step.batch, step.length, step.num_drafts)
        return not self._by_request and self._hysteresis.is_drafting and num_seen >= _NUM_STEADY

    @property
    def overlaps(self) -> bool:
        """Whether steps without drafts do as a rule."""
        return self._experience.overlaps

    def may_wait(self) -> bool:
        """Whether to wait for a step in flight where drafts are foreseen. If they do not come, the
        host's work was not hidden for nothing; so where they seldom do, it is like a probe."""
        return -self._experience.patience_s <= max(0.0, self._experience.probes.saved_s)

    def probe_length(self, batch: int, most: int) -> int:
        """Drafts for each request of a probe, if one is due; 0 if not.

        Of the lengths that could pay the one that costs least, as far as is known: nothing, where
        drafts nearly pay."""
        if batch == 0 or not self._experience.remeasurement.is_idle:
            return 0
        self._forget_outdated()
        cheapest = self._probes.get((batch, most))
        if cheapest is None:
            cheapest = self._probes[batch, most] = self._cheapest_probe(batch, most)
        length, lost_s = cheapest
        return length if lost_s <= self._experience.probes.saved_s else 0

    def _cheapest_probe(self, batch: int, most: int) -> tuple[int, float]:
        """Its length and the seconds it loses, which are taken for no less and no more than parts
        of a step: what is known may be wrong."""
        size, plain_s = min(batch, _PROBE_REQUESTS), self._costs.even(batch, 0)
        found, found_s = 0, float("inf")
        gain = hope = 0.0
        for length, chance in enumerate(self._acceptance.survival()[:most], 1):
            hope += _HOPE**length
            gain += chance
            if length not in self._costs.table.choices:
                continue
            hopeful_s = self._costs.hopeful(batch, length)
            hopeful_s += batch * (1 + hope) * self._experience.newcomers.s_per_token
            if (1 + hope) * plain_s < MARGIN * hopeful_s:
                continue
            step_s = self._costs.seconds(batch, length, size * length)
            lost_s = step_s - (1 + size / batch * gain) * plain_s
            if lost_s < found_s:
                found, found_s = length, lost_s
        return found, min(max(found_s, _MIN_LOSS * plain_s), plain_s)

    @staticmethod
    def probed(asked: Mapping[Request, int]) -> dict[Request, int]:
        """Those of the requests that are in a probe: always the oldest, so that a draft network
        has little to make up for."""
        return dict(islice(asked.items(), _PROBE_REQUESTS))

    def lengths(self, found: Mapping[Request, int], batch: int) -> dict[Request, int]:
        """Drafts for each request of a batch of ``batch``, at most as many as were found, of which
        those pay that are not 0."""
        request_ids = [request.request_id for request in found]
        chances = dict(zip(found, self._acceptance.of_each(request_ids), strict=True))
        choice = _Choice(MARGIN * batch / self._costs.even(batch, 0), dict.fromkeys(found, 0))
        self._try_even(choice, found, chances, batch)
        if batch > 1 and not self._costs.table.is_padded:
            self._try_uneven(choice, found, chances, batch)
        return dict(choice.lengths)

    def _try_even(
        self,
        choice: _Choice,
        found: Mapping[Request, int],
        chances: Mapping[Request, tuple[float, float]],
        batch: int,
    ) -> None:
        """As many for each request of the batch, if each has so many, or if that does not
        matter."""
        if self._costs.table.is_padded:
            most = max(found.values(), default=0)
        else:
            most = min(found.values(), default=0) if len(found) == batch else 0
        # What the drafts at each place give, of all requests together, and how many these are.
        gains, counts = [0.0] * (most + 1), [0] * (most + 1)
        for request, limit in found.items():
            chance, later = chances[request]
            for place in range(1, min(limit, most) + 1):
                gains[place] += chance
                counts[place] += 1
                chance *= later
        best, tokens, num_drafts = 0, float(batch), 0
        lost_s = self._experience.newcomers.s_per_token
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

    def _try_uneven(
        self,
        choice: _Choice,
        found: Mapping[Request, int],
        chances: Mapping[Request, tuple[float, float]],
        batch: int,
    ) -> None:
        """The likeliest drafts first: a draft comes after those it depends on."""
        heap = [(-chances[r][0], i, r, 1) for i, r in enumerate(found) if found[r] > 0]
        heapq.heapify(heap)
        lengths = dict.fromkeys(found, 0)
        tokens, num_drafts, longest = float(batch), 0, 0
        lost_s = self._experience.newcomers.s_per_token
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
        """Whether drafts of the request with the best chances would pay, were it the only one, or
        those of all requests, had all of them some. No more than that can be hoped for."""
        if batch == 0 or not requests:
            return False  # All left while a step was in flight.
        self._forget_outdated()
        key = batch, len(requests)
        if key not in self._may_pay:
            self._may_pay[key] = self._judge_hopes(requests, batch)
        return self._may_pay[key]

    def _judge_hopes(self, requests: Collection[Request], batch: int) -> bool:
        costs, most = self._costs, self._most
        chances = self._acceptance.of_each(request.request_id for request in requests)
        gains = [_gain(first, later, most) for first, later in chances]
        plain_speed = MARGIN * batch / costs.even(batch, 0)
        first = costs.table.choices[0]
        return (batch + sum(gains)) / costs.even(batch, first) > plain_speed or (
            batch + max(gains)
        ) / costs.seconds(batch, most, most) > plain_speed


def _gain(first: float, later: float, length: int) -> float:
    """Right ones of so many drafts, on average."""
    if later > 0.999:
        return first * length
    return first * (1 - later**length) / (1 - later)
