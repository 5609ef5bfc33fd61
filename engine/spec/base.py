"""The interface of proposers, and the base class of those that draft from texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.request import Request


class Proposer(Protocol):
    """Proposes the next tokens of requests. A wrong draft costs time, never correctness."""

    @property
    def is_free(self) -> bool:
        """Whether making drafts takes next to no time; only verifying them does."""

    def propose(self, asked: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """For each (request, n), n > 0: at most n tokens to follow its ``token_ids``, or none if
        there is nothing to propose. No token of the requests is in flight."""

    def foresees(self, request: Request) -> bool:
        """Whether drafts are likely once the token in flight is known."""

    def drop(self, request: Request) -> None:
        """The request is finished: forget it. Unknown requests are ignored."""


class TextProposer(ABC):
    """Drafts on the host, from tokens alone, one request after another."""

    is_free = True

    @abstractmethod
    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        """As ``Proposer.propose``, for one request."""

    @abstractmethod
    def drop(self, request: Request) -> None:
        """As ``Proposer.drop``."""

    def propose(self, asked: Sequence[tuple[Request, int]]) -> list[list[int]]:
        return [self.continue_text(request, max_tokens) for request, max_tokens in asked]

    def foresees(self, request: Request) -> bool:
        # The first of two drafts is the token in flight; the second could be drafted after it.
        return len(self.continue_text(request, 2)) == 2
