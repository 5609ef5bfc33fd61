"""How many drafts pay: from what was accepted before, and from what steps cost.

A step of b requests that checks k_i drafts of request i gives ``b + sum_i sum_{j <= k_i} a_i ** j``
tokens, where a_i is the chance that a draft of i is right if those before it are. It takes longer
than a step without drafts. The k_i are those for which tokens a second are the most (the goodput of
Liu et al., "Optimizing Speculative Decoding for Serving LLMs Using Goodput", arXiv 2406.14066).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from engine.request import Request

# Before anything is known, as if so many drafts had been checked, at this rate of hits.
_PRIOR_CHANCE, _PRIOR_WEIGHT = 0.6, 4.0
# What a check weighs against the next one: of the same request, and of any.
_DECAY, _OVERALL_DECAY = 0.9, 0.995
# Steps without drafts after which a few requests try again, as what was learned may be out of
# date; then twice as many, and so on.
_PROBE_INTERVAL, _MAX_PROBE_INTERVAL = 128, 4096
PROBE_REQUESTS = 2
# Measured times beyond this multiple of the expected ones tell of something else.
_OUTLIER = 5.0
_LEARNING_RATE = 0.1


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds that a step of so many requests takes, as measured when the engine started."""

    batches: Sequence[int]
    """Ascending."""
    plain_s: Sequence[float]
    """Without drafts."""
    checking_s: Sequence[float]
    """With ``num_drafts`` for each request."""
    num_drafts: int
    all_or_none: bool = False
    """Whether steps with fewer drafts save nothing, as they run without a graph."""

    def seconds(self, batch: int, num_drafts: int) -> float:
        """Of a step that checks ``num_drafts`` in all."""
        plain = _interpolate(self.batches, self.plain_s, batch)
        checking = _interpolate(self.batches, self.checking_s, batch)
        share = num_drafts / (batch * self.num_drafts)
        return plain + share * max(0.0, checking - plain)


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    index = bisect_left(xs, x)
    if index == 0:
        return ys[0]
    if index == len(xs):
        return ys[-1] * x / xs[-1]
    share = (x - xs[index - 1]) / (xs[index] - xs[index - 1])
    return ys[index - 1] + share * (ys[index] - ys[index - 1])


class _Chance:
    """A rate of hits, of which the latest count most."""

    __slots__ = ("decay", "hits", "seen", "tries")

    def __init__(self, prior: float, decay: float = _DECAY) -> None:
        self.decay = decay
        self.hits, self.tries = prior * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self.seen = (0, 0)
        """Drafts and accepted drafts of the request that were taken in."""

    @property
    def value(self) -> float:
        return self.hits / self.tries

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        self.hits = self.decay * self.hits + num_accepted
        self.tries = self.decay * self.tries + min(num_accepted + 1, num_drafts)


class AdaptiveLength:
    """Learns while it decides. Without ``costs`` every draft pays."""

    def __init__(self, costs: StepCosts | None) -> None:
        self._costs = costs
        self._chances: dict[Request, _Chance] = {}
        self._overall = _Chance(_PRIOR_CHANCE, _OVERALL_DECAY)
        self._ratio = 1.0
        """Measured over expected time of steps without drafts: what the start-up table does not
        know, such as longer texts, and the host's work."""
        self._drafting_ratio = 1.0
        """By how much more those with drafts take longer: for drafting, and because the host's work
        is no longer hidden."""
        self._expected: tuple[float, bool, float] | None = None
        """When the last step began, whether it has drafts, its seconds by the table."""
        self._num_idle_steps = 0
        self._probe_interval = _PROBE_INTERVAL

    # ---- learning -------------------------------------------------------------------------------

    def observe(self, request: Request) -> None:
        """Take in what became of a request's drafts since the last time."""
        if request.num_draft_tokens == 0:
            return
        chance = self._chances.get(request)
        if chance is None:
            chance = self._chances[request] = _Chance(self._overall.value)
        drafts, accepted = chance.seen
        if request.num_draft_tokens > drafts:
            news = request.num_draft_tokens - drafts, request.num_accepted_tokens - accepted
            chance.observe(*news)
            self._overall.observe(*news)
            chance.seen = request.num_draft_tokens, request.num_accepted_tokens

    def drop(self, request: Request) -> None:
        self._chances.pop(request, None)

    def step_begins(self, now: float, batch: int, num_drafts: int) -> None:
        """A step of this batch began at ``now``, with the drafting; the one before was over."""
        if self._costs is None or batch == 0:
            self._expected = None
            return
        if self._expected is not None:
            began, has_drafts, seconds = self._expected
            ratio = (now - began) / seconds
            if ratio < _OUTLIER and has_drafts:
                ratio /= self._ratio
                self._drafting_ratio += _LEARNING_RATE * (ratio - self._drafting_ratio)
            elif ratio < _OUTLIER:
                self._ratio += _LEARNING_RATE * (ratio - self._ratio)
        self._expected = now, num_drafts > 0, self._costs.seconds(batch, num_drafts)
        if num_drafts == 0:
            self._num_idle_steps += 1
        elif self._num_idle_steps >= self._probe_interval:
            self._num_idle_steps = 0
            self._probe_interval = min(2 * self._probe_interval, _MAX_PROBE_INTERVAL)
        else:
            self._num_idle_steps, self._probe_interval = 0, _PROBE_INTERVAL

    def forget_step(self) -> None:
        """The step that was begun last did other work, too: its time says nothing."""
        self._expected = None

    # ---- deciding -------------------------------------------------------------------------------

    @property
    def is_probe(self) -> bool:
        """Whether it is time to let ``PROBE_REQUESTS`` draft, whether that pays or not."""
        return self._costs is not None and self._num_idle_steps >= self._probe_interval

    def lengths(self, asked: Mapping[Request, int], batch: int) -> dict[Request, int]:
        """Drafts for each request, at most as many as asked, of which those in a batch of
        ``batch`` requests pay that are not 0."""
        if self._costs is None or self.is_probe:
            return dict(asked)
        # The likeliest drafts first: a draft comes after those it depends on.
        chances = {request: self._chance(request) for request in asked}
        heap = [(-chances[r], i, r, 1) for i, r in enumerate(asked) if asked[r] > 0]
        heapq.heapify(heap)
        lengths = dict.fromkeys(asked, 0)
        best, best_speed = dict(lengths), batch / self._seconds(batch, 0)
        tokens, num_drafts, speed = float(batch), 0, 0.0
        while heap:
            gain, index, request, length = heap[0]
            tokens -= gain
            num_drafts += 1
            lengths[request] = length
            speed = tokens / self._seconds(batch, num_drafts)
            if speed > best_speed:
                best, best_speed = dict(lengths), speed
            if length < asked[request]:
                following = gain * chances[request]
                heapq.heapreplace(heap, (following, index, request, length + 1))
            else:
                heapq.heappop(heap)
        if self._costs.all_or_none and any(best.values()):
            # Here tokens and speed are those of all drafts there are.
            return (
                dict(asked) if speed > batch / self._seconds(batch, 0) else dict.fromkeys(asked, 0)
            )
        return best

    def even_length(self, asked: Mapping[Request, int], batch: int) -> int:
        """One length for all, where all are drafted at once; 0 if drafts do not pay."""
        most = max(asked.values(), default=0)
        if self._costs is None or self.is_probe or most == 0:
            return most
        chances = [self._chance(request) for request in asked]
        best, best_speed = 0, batch / self._seconds(batch, 0)
        tokens = float(batch)
        for length in range(1, most + 1):
            tokens += sum(chance**length for chance in chances)
            speed = tokens / self._seconds(batch, length * len(asked))
            if speed > best_speed and (length == most or not self._costs.all_or_none):
                best, best_speed = length, speed
        return best

    def may_pay(self, requests: Collection[Request], batch: int) -> bool:
        """Whether drafts of the request with the best chance would pay, were it the only one."""
        if self._costs is None or self.is_probe:
            return True
        if batch == 0:
            return False  # All left while a step was in flight.
        chance = max(map(self._chance, requests), default=0.0)
        gain = sum(chance**place for place in range(1, self._costs.num_drafts + 1))
        drafted = (batch + gain) / self._seconds(batch, self._costs.num_drafts)
        return drafted > batch / self._seconds(batch, 0)

    def _chance(self, request: Request) -> float:
        return self._chances.get(request, self._overall).value

    def _seconds(self, batch: int, num_drafts: int) -> float:
        assert self._costs is not None
        ratio = self._ratio * (self._drafting_ratio if num_drafts else 1.0)
        return ratio * self._costs.seconds(batch, num_drafts)
