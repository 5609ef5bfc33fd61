"""Waiting requests in the order of a key."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.request import Request

# A heap with fewer dead entries than this is not worth rebuilding.
_MIN_DEAD = 64


class RequestHeap:
    """A priority queue that can forget a request in the middle in amortized O(log n).

    A forgotten request stays in the heap as a dead entry until it surfaces, or until dead entries
    are the majority and the heap is rebuilt. Equal keys keep the order of arrival.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._live: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: Request) -> bool:
        return self._live.get(request.request_id) is request

    def push(self, key: float, request: Request) -> None:
        assert request.request_id not in self._live, f"{request.request_id} is queued twice"
        self._live[request.request_id] = request
        heapq.heappush(self._heap, (key, request.arrival, request))

    def peek(self) -> Request | None:
        """The request with the least key."""
        while self._heap:
            request = self._heap[0][2]
            if request in self:
                return request
            heapq.heappop(self._heap)
        return None

    def first(self, count: int) -> list[Request]:
        """Up to ``count`` requests in the order of their keys, in O(count log count).

        Fewer than there are, but at least one, when dead entries are in the way.
        """
        found: list[Request] = []
        if self.peek() is None:
            return found
        frontier = [(self._heap[0], 0)]
        for _ in range(2 * count):
            if not frontier or len(found) == count:
                break
            (_, _, request), index = heapq.heappop(frontier)
            if request in self:
                found.append(request)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(self._heap):
                    heapq.heappush(frontier, (self._heap[child], child))
        return found

    def remove(self, request: Request) -> None:
        assert request in self, f"{request.request_id} is not queued"
        del self._live[request.request_id]
        if self._heap[0][2] is request:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._live) + _MIN_DEAD:
            self._heap = [entry for entry in self._heap if entry[2] in self]
            heapq.heapify(self._heap)
