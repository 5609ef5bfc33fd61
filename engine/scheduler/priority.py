"""The most important first, and nobody waits forever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.scheduler.aging import aged_priority, outranked
from engine.scheduler.claim import Claim
from engine.scheduler.heap import RequestHeap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.request import Request


class PriorityPolicy:
    """Lower numbers first, as in vLLM; with aging, and with displacement.

    A waiting request displaces running ones of lower classes when rows or blocks are short. What
    was displaced keeps its arrival, so it returns to its place and goes on aging.
    """

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self._waiting = RequestHeap()

    def __len__(self) -> int:
        return len(self._waiting)

    def enqueue(self, request: Request) -> None:
        self._waiting.push(aged_priority(request, self._aging_s), request)

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
        return sorted(running, key=lambda r: (aged_priority(r, self._aging_s), r.arrival))

    def by_service(self, running: Iterable[Request]) -> list[Request]:
        return list(running)

    def claims(self, running: Iterable[Request]) -> Iterator[Claim]:
        head = self.head()
        if head is not None and (victims := outranked(head, running, self._aging_s)):
            yield Claim(head, victims, at_once=False)

    def charge_prompt(self, request: Request, num_computed: int, num_cached: int) -> None:
        """Nothing to do: only priority and arrival decide."""

    def charge_output(self, request: Request, num_tokens: int) -> None:
        """Nothing to do: only priority and arrival decide."""

    def spread(self) -> float:
        return 0.0
