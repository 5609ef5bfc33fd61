"""Acceptance rates of drafts: by draft position over all requests, and for each request.

A draft can be accepted only if all drafts before it are. So the rate that is estimated for a
position is conditional: accepted drafts by those whose predecessors were all accepted. For a single
request there are too few drafts for that; two numbers say most of how it differs from the others,
the rate of its first drafts and that of all later ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The prior: as if this many drafts had been verified, at this acceptance rate.
_PRIOR_CHANCE, _PRIOR_WEIGHT = 0.6, 4.0
# How many of the latest drafts count: of a position in the long and in the short memory, of a
# request.
_LONG, _SHORT, _OF_REQUEST = 512.0, 48.0, 24.0
# The drafts of this many steps count in any case, however many they are.
_MIN_STEPS = 4.0
# The rate has changed if the short memory, or a single step, is off by this many standard
# deviations. Then all but the latest ``_ENOUGH`` drafts are forgotten.
_SURPRISING, _SURPRISING_STEP, _ENOUGH = 4.0, 5.5, 8.0
# What is left of the counts after a step without drafts, and of those of a position after a step
# whose drafts did not reach it.
_AGEING, _AGEING_BEHIND = 0.999, 0.99
# So many drafts are remembered however long none are made: else the prior alone would take drafts
# up again, where a probe tells more for less.
_LASTING = 24.0
# Steps without drafts are accounted for this many at a time.
_IDLE_STEPS = 16


class _Counts:
    """Accepted and judged drafts (hits and tries); only about the latest ``limit`` of them
    count."""

    __slots__ = ("hits", "limit", "tries")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.hits = self.tries = 0.0

    def add(self, hits: float, tries: float) -> None:
        limit = max(self.limit, _MIN_STEPS * tries)
        if self.tries + tries > limit:
            self.scale((limit - tries) / self.tries)
        self.hits += hits
        self.tries += tries

    def scale(self, share: float) -> None:
        self.hits *= share
        self.tries *= share

    def fade(self, share: float) -> None:
        """As ``scale``, but the last ``_LASTING`` drafts stay."""
        if self.tries > _LASTING:
            self.scale(max(share, _LASTING / self.tries))

    def rate(self, prior: float) -> float:
        return (self.hits + _PRIOR_WEIGHT * prior) / (self.tries + _PRIOR_WEIGHT)


class _PositionRate:
    """The acceptance rate of one draft position: a long memory for a precise rate, and a short one
    to notice sudden changes."""

    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.long, self.short = _Counts(_LONG), _Counts(_SHORT)

    def scale(self, share: float) -> None:
        self.long.scale(share)
        self.short.scale(share)

    def fade(self, share: float) -> None:
        self.long.fade(share)
        self.short.fade(share)

    def add(self, hits: int, tries: int) -> None:
        usual, short = self.long.rate(_PRIOR_CHANCE), self.short
        if _is_surprising(hits, tries, usual, _SURPRISING_STEP):
            short.scale(0.0)
        self.long.add(hits, tries)
        short.add(hits, tries)
        if _is_surprising(short.hits, short.tries, usual, _SURPRISING):
            short.scale(max(_ENOUGH, tries) / short.tries)
            self.long.hits, self.long.tries = short.hits, short.tries


def _is_surprising(hits: float, tries: float, usual: float, deviations: float) -> bool:
    """Whether this many hits are unlikely at the rate ``usual``, by standard deviations."""
    if tries < _ENOUGH:
        return False
    deviation = math.sqrt(tries * usual * (1 - usual))
    return abs(hits - tries * usual) > deviations * deviation


class Acceptance:
    """The acceptance rates of all draft positions, and of the running requests."""

    def __init__(self, max_length: int, *, by_request: bool = True) -> None:
        """max_length: the most drafts of a request in a step. by_request: whether to keep rates for
        each request; if False all requests are assumed to be alike."""
        self._by_request = by_request
        self._positions = [_PositionRate() for _ in range(max_length)]
        self._requests: dict[str, tuple[_Counts, _Counts]] = {}
        self._rates: list[float] | None = None
        """The rates of the positions; None: to be computed."""
        self._num_idle_steps = 0
        """Steps without drafts since the last one with some."""

    def observe(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """A step is over: (request id, drafts, accepted drafts) of each request that had some;
        empty for a step without drafts, which only ages the counts. The id is empty where the
        request has ended."""
        if not outcomes:
            self._num_idle_steps += 1
            return
        self._forget()
        tries = [0] * (len(self._positions) + 1)
        hits = [0] * (len(self._positions) + 1)
        for _, num_drafts, num_right in outcomes:
            tries[num_right + 1 if num_right < num_drafts else num_drafts] += 1
            hits[num_right] += 1
        if self._by_request:
            for request_id, num_drafts, num_right in outcomes:
                if request_id:
                    self._observe_request(request_id, num_drafts, num_right)
        num_tries = num_hits = 0
        for index in range(len(self._positions) - 1, -1, -1):
            num_tries += tries[index + 1]
            num_hits += hits[index + 1]
            if num_tries:
                self._positions[index].add(num_hits, num_tries)
            else:
                self._positions[index].scale(_AGEING_BEHIND)
        self._rates = None

    def _observe_request(self, request_id: str, num_drafts: int, num_right: int) -> None:
        counts = self._requests.get(request_id)
        if counts is None:
            counts = self._requests[request_id] = _Counts(_OF_REQUEST), _Counts(_OF_REQUEST)
        counts[0].add(num_right > 0, 1)
        num_tried = min(num_right + 1, num_drafts)
        if num_tried > 1:
            counts[1].add(num_right - 1, num_tried - 1)

    def rest(self, num_steps: int) -> None:
        """``num_steps`` steps had no drafts."""
        self._num_idle_steps += num_steps

    def _forget(self) -> None:
        """Age the counts for the steps without drafts since the last call."""
        if self._num_idle_steps:
            for position in self._positions:
                position.fade(_AGEING**self._num_idle_steps)
            self._num_idle_steps = 0
            self._rates = None

    def drop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    @property
    def rates(self) -> Sequence[float]:
        """[max_length]: the conditional acceptance rate of each position, over all requests. The
        prior of a position is the rate of the one before it."""
        if self._num_idle_steps >= _IDLE_STEPS:
            self._forget()
        if self._rates is None:
            self._rates, rate = [], _PRIOR_CHANCE
            for position in self._positions:
                rate = position.long.rate(rate)
                self._rates.append(rate)
        return self._rates

    def survival(self) -> list[float]:
        """[max_length]: the probability that all drafts up to each position are accepted."""
        chance, chances = 1.0, []
        for rate in self.rates:
            chance *= rate
            chances.append(chance)
        return chances

    def of_each(self, request_ids: Iterable[str]) -> list[tuple[float, float]]:
        """For each request: the rates of its first draft, and of drafts after accepted ones."""
        first, later = self.rates[0], self.rates[min(1, len(self.rates) - 1)]
        chances = []
        for request_id in request_ids:
            counts = self._requests.get(request_id)
            if counts is None:
                chances.append((first, later))
            else:
                chances.append((counts[0].rate(first), counts[1].rate(later)))
        return chances
