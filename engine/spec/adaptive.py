"""How many drafts pay: from what was accepted before, and from what steps cost.

A step of b requests that checks k_i drafts of request i gives ``b + sum_i sum_{j <= k_i} s_ij``
tokens, where s_ij is the chance that the first j drafts of i are right. It takes longer than a step
without drafts. The k_i are those for which tokens a second are the most (the goodput of Liu et al.,
"Optimizing Speculative Decoding for Serving LLMs Using Goodput", arXiv 2406.14066).

What is not drafted is not learned. So where drafts do not pay, some are checked all the same now
and then: as often as the time that this has cost stays below 0.5 % of the time without drafts.
Such probes that turn out to pay earn their successors' time, so that a change for the better is
found out soon, and one that never comes costs that 0.5 %.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from engine.spec.acceptance import Acceptance
from engine.spec.costs import OUTLIER, LearnedCosts
from engine.spec.hysteresis import MARGIN, Hysteresis
from engine.spec.newcomers import Newcomers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from engine.request import Request
    from engine.spec.costs import StepCosts
    from engine.spec.planned_step import PlannedStep

# Steps without drafts for which a judgement holds: they teach little.
HOLDS = 8
# And steps with them, or others; the former once so many of their kind were seen.
_HOLDS_DRAFTING, _NUM_FAMILIAR = 4, 32
# What probes may cost of the time spent without drafts, and how many steps' time they may save up.
_PROBE_SHARE, _MAX_SAVED_STEPS = 0.005, 2.0
# What a probe is taken to lose of a step, at least.
_MIN_LOSS = 0.05
# What the latest step that was awaited weighs against all before it.
_PATIENCE_SHARE = 0.02
# And what a step says of the host's work beside a device that waits.
_EXPOSED_SHARE = 0.1
# Requests in a probe, where there are more.
_PROBE_REQUESTS = 8
# How often drafts are right in a probe that could change anything.
_HOPE = 0.9
# Where they are not faster by more than this, a few steps without them are measured anew after so
# many with them, and after ever longer: more of them the first time. The first of them is not
# typical.
_CLOSE, _PLAIN_INTERVAL, _MAX_PLAIN_INTERVAL, _NUM_PLAIN, _NUM_UNKNOWN = 1.3, 16, 256, 3, 8


@dataclass(slots=True)
class _Plain:
    """Steps without drafts, one like the other, of which nothing was learned yet."""

    batch: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Drafted:
    """Steps with drafts, one like the other, of which nothing was learned yet."""

    steps: list[PlannedStep] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    outcomes: list[tuple[str, int, int]] = field(default_factory=list)

    def takes(self, step: PlannedStep) -> bool:
        if not self.steps:
            return True
        last = self.steps[-1]
        return (last.batch, last.length, last.num_drafts) == (
            step.batch,
            step.length,
            step.num_drafts,
        )


@dataclass(slots=True)
class _Choice:
    """The best so far."""

    speed: float
    lengths: Mapping[Request, int] = field(default_factory=dict)


class AdaptiveLength:
    """Learns while it decides. Without ``costs`` every draft pays."""

    def __init__(self, costs: StepCosts | None, *, by_request: bool = True) -> None:
        """by_request: what was right is remembered for each request, too."""
        self._costs = self._acceptance = None
        if costs is not None:
            self._costs = LearnedCosts(costs)
            self._acceptance = Acceptance(costs.lengths[-1], by_request=by_request)
        self._saved_s = 0.0
        """Seconds that probes may cost now."""
        self._has_begun = False
        self._even: dict[tuple[int, int], int] = {}
        """What ``even_length`` found out lately."""
        self._probes: dict[tuple[int, int], tuple[int, float]] = {}
        """Likewise, the cheapest probe: its length, and what it would lose."""
        self._num_drafting = 0
        """Steps with drafts since those without were measured; no less than the interval while
        they are."""
        self._num_measuring = 0
        """Steps without drafts, while these are measured."""
        self._plain_interval = _PLAIN_INTERVAL
        self._num_observed = 0
        self._may_pay: dict[tuple[int, int], bool] = {}
        """Likewise, by the batch and the requests asked for."""
        self._plain, self._drafted = _Plain(), _Drafted()
        self._patience_s = 0.0
        """What a step that was awaited gains, of late; below 0 if it loses."""
        self._newcomers = Newcomers()
        self._exposed_s = 0.0
        """What drafts usually expose of the host's work, in a step that only decodes."""
        self._hysteresis = Hysteresis()
        self._before: PlannedStep | None = None
        self._overlaps = False
        """Whether steps without drafts overlap as a rule."""

    # ---- learning -------------------------------------------------------------------------------

    def planned(self, step: PlannedStep) -> None:
        """To be followed by ``observe`` once it is over; others may be planned between the two."""
        before, self._before = self._before, step if step.only_decodes else None
        self._overlaps |= step.overlaps
        self._hysteresis.planned(has_drafts=step.num_drafts > 0 and not step.is_probe)
        step.follows_others = before is None
        if before is not None:
            step.follows_probe = before.is_probe and not step.is_probe
            # What follows drafts need not be awaited any more: it is their merit.
            step.was_awaited |= before.was_awaited and step.num_drafts > 0
        step.is_typical = (
            step.only_decodes
            and (step.overlaps or step.num_drafts > 0 or not (self._overlaps or step.was_awaited))
            and before is not None
            and before.length == step.length
            and before.is_even == step.is_even
            and before.batch >= step.batch
        )
        if step.is_probe and not step.num_drafts:
            # Nobody had an idea. Ask again after a while.
            self._saved_s = 0.0

    def observe(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """A step is over: what it took, and for each request that had drafts how many, and how
        many of them were right."""
        if self._costs is None or self._acceptance is None or step.batch == 0:
            return
        step.is_typical &= not step.is_last
        if step.is_typical and not (step.num_drafts or step.is_probe or self._num_drafting):
            # Most steps, where drafts do not pay: the host has better things to do.
            self.observe_rest(step.batch, [seconds])
            return
        self._observe_plain()
        if step.is_typical and step.num_drafts and not (step.is_probe or step.was_awaited):
            kind = step.batch, step.length, step.num_drafts
            if self._costs.num_seen(*kind) >= _NUM_FAMILIAR:
                self._put_together(step, seconds, outcomes)
                return
        self._observe_drafted()
        self._observe_newcomers(step, seconds, outcomes)
        self._acceptance.observe(outcomes)
        kind = step.batch, step.length, step.num_drafts
        # Others take longer, if anything.
        is_whole = step.only_decodes and not step.is_last
        if step.is_typical or (is_whole and seconds < self._costs.seconds(*kind)):
            self._costs.observe(*kind, seconds)
        self._count(step)
        if step.num_drafts and not step.is_probe:
            self._hysteresis.drafted()
        self._num_observed += 1
        is_due = self._num_observed % _HOLDS_DRAFTING == 0
        if is_due or step.is_probe or (self._num_drafting and not step.num_drafts):
            self._forget_choices()
        plain_s = self._begin_saving(step.batch)
        num_tokens = step.batch + sum(num_right for _, _, num_right in outcomes)
        gained_s = num_tokens / step.batch * plain_s - seconds
        if step.was_awaited and step.only_decodes:
            gained_s = max(gained_s, -plain_s)
            self._patience_s += _PATIENCE_SHARE * (gained_s - self._patience_s)
        if step.is_probe or (step.was_awaited and self._patience_s < 0):
            self._saved_s += gained_s
        elif step.follows_probe:
            # There was nothing in flight that could have hidden the host's work.
            self._saved_s -= min(max(0.0, seconds - plain_s), plain_s)
        elif step.length == 0 and step.is_typical:
            self._saved_s += _PROBE_SHARE * min(seconds, 2 * plain_s)
        self._saved_s = min(self._saved_s, _MAX_SAVED_STEPS * plain_s)

    def _put_together(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """What most steps teach, where drafts pay: once for several of them."""
        if not self._drafted.takes(step):
            self._observe_drafted()
        drafted = self._drafted
        drafted.steps.append(step)
        drafted.seconds.append(seconds)
        drafted.outcomes += outcomes
        if len(drafted.steps) == _HOLDS_DRAFTING:
            self._observe_drafted()

    def _observe_drafted(self) -> None:
        """Learn from steps with drafts that were put together."""
        drafted, num_steps = self._drafted, len(self._drafted.steps)
        if num_steps == 0 or self._costs is None or self._acceptance is None:
            return
        self._drafted = _Drafted()
        step = drafted.steps[-1]
        num_right = sum(num_right for _, _, num_right in drafted.outcomes)
        self._newcomers.observe(0, num_steps * step.batch + num_right, drafting=True)
        self._exposed_s += _EXPOSED_SHARE * num_steps * (step.exposed_s - self._exposed_s)
        self._acceptance.observe(drafted.outcomes)
        seconds = _mean(drafted.seconds)
        self._costs.observe(step.batch, step.length, step.num_drafts, seconds, num_steps)
        for each in drafted.steps:
            self._count(each)
        self._hysteresis.drafted(num_steps)
        self._forget_choices()
        self._begin_saving(step.batch)

    def _observe_newcomers(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        assert self._costs is not None
        num_right = sum(num_right for _, _, num_right in outcomes)
        drafting, newcomers = self._hysteresis.is_drafting, self._newcomers
        newcomers.observe(step.num_new, step.batch + num_right, drafting=drafting)
        if not step.only_decodes:
            if drafting and self._overlaps:
                newcomers.lose(step.exposed_s - (self._exposed_s if step.num_drafts else 0.0))
        elif step.num_drafts and not step.is_probe:
            if step.follows_others:
                usual_s = self._costs.seconds(step.batch, step.length, step.num_drafts)
                newcomers.lose(max(0.0, seconds - usual_s))
            else:
                self._exposed_s += _EXPOSED_SHARE * (step.exposed_s - self._exposed_s)

    def observe_rest(self, batch: int, seconds: Sequence[float]) -> None:
        """Steps of ``rest_length`` are over, or others like them."""
        self._observe_drafted()
        if self._plain.batch != batch:
            self._observe_plain()
            self._plain.batch = batch
        self._plain.seconds += seconds
        if len(self._plain.seconds) >= HOLDS:
            self._observe_plain()

    def _observe_plain(self) -> None:
        """Learn from steps without drafts that were put together."""
        plain, num_steps = self._plain, len(self._plain.seconds)
        self._plain = _Plain()
        if num_steps == 0 or self._costs is None or self._acceptance is None:
            return
        self._acceptance.rest(num_steps)
        self._newcomers.observe(0, num_steps * plain.batch, drafting=False)
        seconds = _mean(plain.seconds)
        self._costs.observe(plain.batch, 0, 0, seconds, num_steps)
        self._forget_choices()
        plain_s = self._begin_saving(plain.batch)
        self._saved_s += _PROBE_SHARE * num_steps * seconds
        self._saved_s = min(self._saved_s, _MAX_SAVED_STEPS * plain_s)

    def _forget_choices(self) -> None:
        self._even.clear()
        self._probes.clear()
        self._may_pay.clear()

    def _begin_saving(self, batch: int) -> float:
        """Seconds of a step of this batch without drafts."""
        assert self._costs is not None
        plain_s = self._costs.even(batch, 0)
        if not self._has_begun:
            self._has_begun = True
            self._saved_s = _MAX_SAVED_STEPS * plain_s
        return plain_s

    def _count(self, step: PlannedStep) -> None:
        """Towards the next time that steps without drafts are measured, or within it."""
        assert self._costs is not None
        if step.num_drafts:
            self._num_drafting += 1
            self._num_measuring = 0
            # Drafts are so much faster that nothing was measured.
            is_over = self._num_drafting >= self._plain_interval + _NUM_PLAIN
        elif self._num_drafting < self._plain_interval:
            self._num_drafting = 0
            return
        else:
            self._num_measuring += 1
            is_known = self._costs.num_seen(step.batch, 0, 0) >= _NUM_UNKNOWN
            is_over = self._num_measuring >= (_NUM_PLAIN if is_known else _NUM_UNKNOWN)
        if is_over:
            self._plain_interval = min(2 * self._plain_interval, _MAX_PLAIN_INTERVAL)
            self._num_drafting = self._num_measuring = 0
            self._even.clear()

    def drop(self, request: Request) -> None:
        if self._acceptance is not None:
            self._acceptance.drop(request.request_id)

    # ---- deciding -------------------------------------------------------------------------------

    def even_length(self, batch: int, most: int) -> int:
        """One length for all, at most ``most``; 0 if drafts do not pay."""
        if self._costs is None or self._acceptance is None:
            return most
        found = self._even.get((batch, most))
        if found is None:
            found = self._best_even(batch, most, self._acceptance.survival())
            self._even[batch, most] = found
        if found:
            return found if self._hysteresis.allows_drafts() else 0
        if self._num_drafting < self._plain_interval:  # They are not only measured.
            self._hysteresis.refuse()
        return 0

    def _best_even(self, batch: int, most: int, survival: Sequence[float]) -> int:
        assert self._costs is not None
        plain_speed, lost_s = 1 / self._costs.even(batch, 0), self._newcomers.s_per_token
        best, best_speed = 0, self._hysteresis.margin * plain_speed
        for length in self._costs.table.choices:
            if length > most:
                break
            tokens = 1 + sum(survival[:length])
            step_s = self._costs.even(batch, length) + batch * tokens * lost_s
            if (speed := tokens / step_s) > best_speed:
                best, best_speed = length, speed
        return best if self._is_clear(best_speed / plain_speed) else 0

    def _is_clear(self, gain: float) -> bool:
        """Whether what is known of steps without drafts will do to judge by."""
        return gain > _CLOSE or self._num_drafting < self._plain_interval

    def rest_length(self, batch: int, *, overlaps: bool) -> int:
        """How many steps nobody need ask for drafts, where they do not pay now: of ``batch``
        requests that compute one token each, and all overlap, or none does."""
        before = self._before
        if before is None or self._num_drafting or self._hysteresis.is_tempted:
            return 0
        if before.num_drafts or not before.is_typical:
            return 0
        return HOLDS if (before.batch, before.overlaps) == (batch, overlaps) else 0

    def may_wait(self) -> bool:
        """Whether to wait for a step in flight where drafts are foreseen. If they do not come, the
        host's work was not hidden for nothing; so where they seldom do, it is like a probe."""
        return -self._patience_s <= max(0.0, self._saved_s)

    def probe_length(self, batch: int, most: int) -> int:
        """Drafts for each request of a probe, if one is due; 0 if not.

        Of the lengths that could pay the one that costs least, as far as is known: nothing, where
        drafts nearly pay."""
        if self._costs is None or self._acceptance is None or batch == 0 or self._num_drafting:
            return 0
        cheapest = self._probes.get((batch, most))
        if cheapest is None:
            cheapest = self._probes[batch, most] = self._cheapest_probe(batch, most)
        length, lost_s = cheapest
        return length if lost_s <= self._saved_s else 0

    def _cheapest_probe(self, batch: int, most: int) -> tuple[int, float]:
        """Its length and the seconds it loses, which are taken for no less and no more than parts
        of a step: what is known may be wrong."""
        assert self._costs is not None
        assert self._acceptance is not None
        size, plain_s = min(batch, _PROBE_REQUESTS), self._costs.even(batch, 0)
        found, found_s = 0, float("inf")
        gain = hope = 0.0
        for length, chance in enumerate(self._acceptance.survival()[:most], 1):
            hope += _HOPE**length
            gain += chance
            if length not in self._costs.table.choices:
                continue
            hopeful_s = self._costs.hopeful(batch, length)
            hopeful_s += batch * (1 + hope) * self._newcomers.s_per_token
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
        if self._costs is None or self._acceptance is None:
            return dict(found)
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
        assert self._costs is not None
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
        lost_s = self._newcomers.s_per_token
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
        assert self._costs is not None
        heap = [(-chances[r][0], i, r, 1) for i, r in enumerate(found) if found[r] > 0]
        heapq.heapify(heap)
        lengths = dict.fromkeys(found, 0)
        tokens, num_drafts, longest = float(batch), 0, 0
        lost_s = self._newcomers.s_per_token
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
        if self._costs is None or self._acceptance is None:
            return True
        if batch == 0 or not requests:
            return False  # All left while a step was in flight.
        key = batch, len(requests)
        if key not in self._may_pay:
            self._may_pay[key] = self._judge_hopes(self._costs, self._acceptance, requests, batch)
        return self._may_pay[key]

    @staticmethod
    def _judge_hopes(
        costs: LearnedCosts, acceptance: Acceptance, requests: Collection[Request], batch: int
    ) -> bool:
        most = costs.table.lengths[-1]
        chances = acceptance.of_each(request.request_id for request in requests)
        gains = [_gain(first, later, most) for first, later in chances]
        plain_speed = MARGIN * batch / costs.even(batch, 0)
        first = costs.table.choices[0]
        return (batch + sum(gains)) / costs.even(batch, first) > plain_speed or (
            batch + max(gains)
        ) / costs.seconds(batch, most, most) > plain_speed


def _mean(seconds: Sequence[float]) -> float:
    """Of a step that took far longer only so much counts: something else had the processor."""
    most = OUTLIER * sorted(seconds)[(len(seconds) - 1) // 2]
    return sum(min(each, most) for each in seconds) / len(seconds)


def _gain(first: float, later: float, length: int) -> float:
    """Right ones of so many drafts, on average."""
    if later > 0.999:
        return first * length
    return first * (1 - later**length) / (1 - later)
