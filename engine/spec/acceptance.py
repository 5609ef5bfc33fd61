"""How often drafts are right: by their place for all requests, and for each request.

A draft can be right only if those before it are, so what is estimated is the chance of each place
under that condition. What a request does differs from what all do mostly in two numbers: how often
the first draft is right, and how often the ones that follow are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Before anything is known, as if so many drafts had been checked, at this rate of hits.
_PRIOR_CHANCE, _PRIOR_WEIGHT = 0.6, 4.0
# Drafts of a place that are remembered, in the long run and of late; and of a request.
_LONG, _SHORT, _OF_REQUEST = 512.0, 48.0, 24.0
# Those of so many steps are remembered in any case.
_MIN_STEPS = 4.0
# Standard deviations of the latest, and of a step alone, that are not luck. From then on only so
# many of the latest drafts count.
_SURPRISING, _SURPRISING_STEP, _ENOUGH = 4.0, 5.5, 8.0
# How fast places are forgotten: by this in a step without drafts, or without drafts so long.
_AGEING, _AGEING_BEHIND = 0.999, 0.99
# The former is made up for so many steps at a time.
_IDLE_STEPS = 16


class _Counts:
    """Hits and tries, of which the latest ``limit`` count."""

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

    def rate(self, prior: float) -> float:
        return (self.hits + _PRIOR_WEIGHT * prior) / (self.tries + _PRIOR_WEIGHT)


class _PositionRate:
    """Follows slow changes with many drafts in mind, and sudden ones with few."""

    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.long, self.short = _Counts(_LONG), _Counts(_SHORT)

    def scale(self, share: float) -> None:
        self.long.scale(share)
        self.short.scale(share)

    def add(self, hits: int, tries: int) -> None:
        usual, short = self.long.rate(_PRIOR_CHANCE), self.short
        is_news = _is_surprising(hits, tries, usual, _SURPRISING_STEP)
        if is_news:
            short.scale(0.0)
        self.long.add(hits, tries)
        short.add(hits, tries)
        if is_news or _is_surprising(short.hits, short.tries, usual, _SURPRISING):
            short.scale(min(1.0, max(_ENOUGH, tries) / short.tries))
            self.long.hits, self.long.tries = short.hits, short.tries


def _is_surprising(hits: float, tries: float, usual: float, deviations: float) -> bool:
    """Whether so many hits are hardly due to luck, if the rate is the usual one."""
    if tries < _ENOUGH:
        return False
    deviation = math.sqrt(tries * usual * (1 - usual))
    return abs(hits - tries * usual) > deviations * deviation


class Acceptance:
    def __init__(self, max_length: int, *, by_request: bool = True) -> None:
        """max_length: drafts of a request in a step, at most. by_request: without, all requests
        are taken for alike."""
        self._by_request = by_request
        self._positions = [_PositionRate() for _ in range(max_length)]
        self._requests: dict[str, tuple[_Counts, _Counts]] = {}
        self._rates: list[float] | None = None
        """Of the places; None: to be computed."""
        self._num_idle_steps = 0
        """Steps without drafts since the last one with some."""

    def observe(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Of a step: (request, its drafts, how many of them were right); none in a step without
        drafts, which only ages what is known."""
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
            for outcome in outcomes:
                self._observe_request(*outcome)
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
        """So many steps had no drafts."""
        self._num_idle_steps += num_steps

    def _forget(self) -> None:
        """What the steps without drafts are a reason to."""
        if self._num_idle_steps:
            for position in self._positions:
                position.scale(_AGEING**self._num_idle_steps)
            self._num_idle_steps = 0
            self._rates = None

    def drop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    @property
    def rates(self) -> Sequence[float]:
        """The chance of each place if all before it are right, over all requests. A place of which
        nothing is known is like the one before it."""
        if self._num_idle_steps >= _IDLE_STEPS:
            self._forget()
        if self._rates is None:
            self._rates, rate = [], _PRIOR_CHANCE
            for position in self._positions:
                rate = position.long.rate(rate)
                self._rates.append(rate)
        return self._rates

    def survival(self) -> list[float]:
        """The chance of each place over all requests, without a condition."""
        chance, chances = 1.0, []
        for rate in self.rates:
            chance *= rate
            chances.append(chance)
        return chances

    def of_each(self, request_ids: Iterable[str]) -> list[tuple[float, float]]:
        """The chance of a request's first draft, and of each that follows right ones."""
        first, later = self.rates[0], self.rates[min(1, len(self.rates) - 1)]
        chances = []
        for request_id in request_ids:
            counts = self._requests.get(request_id)
            if counts is None:
                chances.append((first, later))
            else:
                chances.append((counts[0].rate(first), counts[1].rate(later)))
        return chances
