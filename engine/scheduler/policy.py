"""The port of a scheduling policy: who is admitted next, and who gives way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.request import Request


class SchedulingPolicy(Protocol):
    """Owns the waiting requests and ranks the running ones. No method may be O(waiting)."""

    def __len__(self) -> int:
        """Requests waiting."""

    def enqueue(self, request: Request) -> None:
        """A request arrives, or comes back after a preemption and keeps its place."""

    def dequeue(self, request: Request) -> None:
        """A waiting request is admitted or aborted."""

    def head(self) -> Request | None:
        """The waiting request to admit next. It stays in the queue."""

    def ranked(self, running: list[Request]) -> list[Request]:
        """The running requests, the first to be served first and the first to give way last.

        Asked only when blocks are short; the argument is in the order of admission.
        """
