"""The port of those who draft, and what those have in common that read texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.request import Request


class Proposer(Protocol):
    """Proposes what requests say next. A wrong draft costs time, never correctness."""

    @property
    def is_free(self) -> bool:
        """Whether a draft costs nothing to speak of until it is checked."""

    def propose(self, asked: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """For each (request, n), n > 0, at most n tokens to follow its ``token_ids``; none where it
        has no idea. Every token of the requests is known."""

    def foresees(self, request: Request) -> bool:
        """Whether there will be drafts once the token in flight is known, as far as can be told."""

    def drop(self, request: Request) -> None:
        """The request is finished: forget it. Unknown ones pass."""


class TextProposer(ABC):
    """Drafts on the host, from tokens alone, one request after another."""

    is_free = True

    @abstractmethod
    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        """As ``Proposer.propose``, of one request."""

    def propose(self, asked: Sequence[tuple[Request, int]]) -> list[list[int]]:
        return [self.continue_text(request, max_tokens) for request, max_tokens in asked]

    def foresees(self, request: Request) -> bool:
        # The first of two drafts stands for the token in flight.
        return len(self.continue_text(request, 2)) == 2
