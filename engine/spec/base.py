"""The port of the proposers that draft on the host, from tokens the host has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.request import Request


class Proposer(Protocol):
    """Guesses at what a request says next. A wrong guess costs time, never correctness."""

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """At most ``max_tokens`` tokens to follow ``request.token_ids``; none where it has no idea.

        Called at most once or twice a step, with a list that only grew since the last call.
        """

    def drop(self, request: Request) -> None:
        """The request is finished: forget it. Unknown ones pass."""
