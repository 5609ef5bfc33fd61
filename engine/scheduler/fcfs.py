"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.scheduler.claim import Claim
from engine.scheduler.heap import RequestHeap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.request import Request

_BEHIND_ALL = 1 << 63
"""Arrivals of requests that were admitted elsewhere are negative and large, too."""


class FcfsPolicy:
    """By arrival alone, but for the idle class, which comes last and gives way. A preempted request
    goes back to its place, before all that came later."""

    def __init__(self) -> None:
        self._waiting = RequestHeap()

    def _key(self, request: Request) -> float:
        """Those of the least go first; among equals, those that came first."""
        return request.arrival + (_BEHIND_ALL if request.is_idle else 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def enqueue(self, request: Request) -> None:
        self._waiting.push(self._key(request), request)

    def dequeue(self, request: Request) -> None:
        self._waiting.remove(request)

    def admit(self, request: Request) -> None:
        self._waiting.remove(request)

    def leave(self, request: Request) -> None:
        """Nothing to do: what runs does not change the order."""

    @property
    def is_contended(self) -> bool:
        return False

    def head(self) -> Request | None:
        return self._waiting.peek()

    def ranked(self, running: Iterable[Request]) -> list[Request]:
        return sorted(running, key=lambda request: (self._key(request), request.arrival))

    def by_service(self, running: Iterable[Request]) -> list[Request]:
        return list(running)

    def claims(self, running: Iterable[Request]) -> Iterator[Claim]:
        head, idle = self.head(), [request for request in running if request.is_idle]
        if head is not None and not head.is_idle and idle:
            yield Claim(head, reversed(idle), at_once=False)

    def charge_prompt(self, request: Request, num_computed: int, num_cached: int) -> None:
        """Nothing to do: service does not change the order."""

    def charge_output(self, request: Request, num_tokens: int) -> None:
        """Nothing to do: service does not change the order."""

    def spread(self) -> float:
        return 0.0
