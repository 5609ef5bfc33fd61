"""How often drafts are accepted: a decayed average for each draft position, and for each request.

A draft can be accepted only if all drafts before it are. So the rate of a position is conditional:
accepted drafts by those whose predecessors were all accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# The prior: as if this many drafts had been checked, of which this share was accepted.
_PRIOR_RATE, _PRIOR_TRIES = 0.6, 2.0
# About so many of the latest drafts count for a position, and for a request.
_MEMORY, _REQUEST_MEMORY = 64.0, 24.0


class _Average:
    """Accepted and checked drafts (hits and tries), of which about the latest ``memory`` count."""

    __slots__ = ("hits", "tries")

    def __init__(self) -> None:
        self.hits = self.tries = 0.0

    def add(self, hits: float, tries: float, memory: float) -> None:
        self.hits += hits
        self.tries += tries
        # A single step of a large batch may have more drafts than the memory holds.
        self.limit(max(memory, 2 * tries))

    def limit(self, tries: float) -> None:
        """Forget evidence beyond so many tries."""
        if self.tries > tries:
            self.hits *= tries / self.tries
            self.tries = tries

    def rate(self, prior: float) -> float:
        return (self.hits + _PRIOR_TRIES * prior) / (self.tries + _PRIOR_TRIES)


class Acceptance:
    """The rates of all draft positions, and of running requests."""

    def __init__(self, max_length: int) -> None:
        """max_length: the most drafts of a request in a step."""
        self._positions = [_Average() for _ in range(max_length)]
        self._all = _Average()
        self._requests: dict[str, _Average] = {}

    def observe(self, outcomes: Sequence[tuple[str, int, int]], *, by_request: bool) -> None:
        """A step is over: (request id, drafts, accepted drafts) of each request that had some.
        by_request: keep rates of the requests, too, until they are dropped."""
        size = len(self._positions) + 1
        hits, tries = [0] * size, [0] * size
        for request_id, num_drafts, num_right in outcomes:
            num_tried = min(num_right + 1, num_drafts)
            hits[num_right] += 1
            tries[num_tried] += 1
            if by_request:
                average = self._requests.get(request_id)
                if average is None:
                    average = self._requests[request_id] = _Average()
                average.add(num_right, num_tried, _REQUEST_MEMORY)
                self._all.add(num_right, num_tried, _MEMORY)
        num_hits = num_tries = 0
        for place in range(size - 1, 0, -1):
            num_hits += hits[place]
            num_tries += tries[place]
            if num_tries:
                self._positions[place - 1].add(num_hits, num_tries, _MEMORY)

    def drop(self, request_id: str) -> None:
        """The request is finished."""
        self._requests.pop(request_id, None)

    def fade(self, tries: float) -> None:
        """Count what is known as no more than so many tries: it is old."""
        for position in self._positions:
            position.limit(tries)

    def survival(self) -> list[float]:
        """[max_length]: the probability that all drafts up to each position are accepted. The prior
        of a position is the mean of those before it."""
        prior, chance, chances, total = _PRIOR_RATE, 1.0, [], 0.0
        for number, position in enumerate(self._positions, 1):
            rate = position.rate(prior)
            total += rate
            prior = total / number
            chance *= rate
            chances.append(chance)
        return chances

    def of_request(self, request_id: str) -> float:
        """The rate of a request's drafts; its prior is that of all requests."""
        usual = self._all.rate(_PRIOR_RATE)
        average = self._requests.get(request_id)
        return usual if average is None else average.rate(usual)
