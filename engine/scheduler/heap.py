"""Waiting requests in the order of a key."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.request import Request

    _Entry = tuple[float, int, Request]

# A heap with fewer dead entries than this is not worth rebuilding.
_MIN_DEAD = 64


class RequestHeap:
    """A priority queue that can forget a request in the middle in amortized O(log n).

    A forgotten request stays in the heap as a dead entry until it surfaces, or until dead entries
    are the majority and the heap is rebuilt. If it comes back with the same key before that, the
    entry is live again. Equal keys keep the order of arrival.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._live: dict[Request, _Entry] = {}
        self._dead: dict[Request, _Entry] = {}
        """The latest dead entry of each forgotten request that has one."""

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: Request) -> bool:
        return request in self._live

    def push(self, key: float, request: Request) -> None:
        assert request not in self._live, f"{request.request_id} is queued twice"
        entry = self._dead.pop(request, None)
        if entry is None or entry[0] != key:
            entry = (key, request.arrival, request)
            heapq.heappush(self._heap, entry)
        self._live[request] = entry

    def peek(self) -> Request | None:
        """The request with the least key."""
        while self._heap:
            entry = self._heap[0]
            request = entry[2]
            if self._is_live(entry):
                return request
            heapq.heappop(self._heap)
            if self._dead.get(request) is entry:
                del self._dead[request]
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
            entry, index = heapq.heappop(frontier)
            if self._is_live(entry):
                found.append(entry[2])
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(self._heap):
                    heapq.heappush(frontier, (self._heap[child], child))
        return found

    def remove(self, request: Request) -> None:
        assert request in self._live, f"{request.request_id} is not queued"
        entry = self._live.pop(request)
        if entry is self._heap[0]:
            heapq.heappop(self._heap)
            return
        self._dead[request] = entry
        if len(self._heap) > 2 * len(self._live) + _MIN_DEAD:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)
            self._dead.clear()

    def _is_live(self, entry: _Entry) -> bool:
        return self._live.get(entry[2]) is entry
