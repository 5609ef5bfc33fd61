"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.scheduler.heap import RequestHeap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


class FcfsPolicy:
    """By arrival alone. A preempted request goes back to its place, before all that came later."""

    def __init__(self) -> None:
        self._waiting = RequestHeap()

    def __len__(self) -> int:
        return len(self._waiting)

    def enqueue(self, request: Request) -> None:
        self._waiting.push(request.arrival, request)

    def dequeue(self, request: Request) -> None:
        self._waiting.remove(request)

    def head(self) -> Request | None:
        return self._waiting.peek()

    def ranked(self, running: Iterable[Request]) -> list[Request]:
        return sorted(running, key=lambda request: request.arrival)

    def displaceable(self, request: Request, running: Iterable[Request]) -> list[Request]:
        return []

    def charge_prompt(self, request: Request, num_computed: int, num_cached: int) -> None:
        """Nothing to do: arrival alone decides."""

    def charge_output(self, request: Request, num_tokens: int) -> None:
        """Nothing to do: arrival alone decides."""

    def spread(self) -> float:
        return 0.0
