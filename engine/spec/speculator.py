"""What the core asks for drafts: the forced tokens of grammars, and the configured proposer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.spec.ngram import NgramProposer
from engine.spec.suffix import SuffixProposer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from engine.request import Request
    from engine.spec.base import Proposer
    from engine.spec.config import SpeculativeConfig

    class Grammars(Protocol):
        """What ``engine.constraints.Constraints`` knows of drafts."""

        def forced_tokens(self, request: Request) -> list[int]: ...

        def legal_prefix(self, request: Request, token_ids: list[int]) -> list[int]: ...


class Speculator:
    """Writes the ``draft_token_ids`` of running requests. None of it changes what they say."""

    def __init__(
        self,
        config: SpeculativeConfig | None,
        grammars: Grammars,
        proposer: Proposer | None = None,
    ) -> None:
        """``proposer``: in place of the one that ``config`` names."""
        self._grammars = grammars
        self._proposer = proposer
        self._max_tokens = 0
        if config is not None:
            self._proposer = proposer or create_proposer(config)
            self._max_tokens = config.num_tokens

    def propose(self, running: Iterable[Request]) -> None:
        """Drafts for the next step; every token of the requests that get some is known."""
        if self._proposer is None:
            return
        for request in running:
            limit = min(self._max_tokens, request.draft_room)
            request.draft_token_ids = self._drafts(request, limit) if limit > 0 else []

    def foresees_drafts(self, running: Iterable[Request]) -> bool:
        """Whether it looks as if there will be drafts once the step in flight is known.

        If so, its result is worth waiting for; otherwise the next step is planned beside it.
        """
        if self._proposer is None:
            return False
        # The first of two guesses stands for the token in flight.
        return any(
            len(self._drafts(request, 2)) == 2
            for request in running
            if request.num_pending and request.num_planned_tokens + 1 < request.max_total_tokens
        )

    def _drafts(self, request: Request, limit: int) -> list[int]:
        assert self._proposer is not None
        if not request.constrained:
            return self._proposer.propose(request, limit)
        forced = self._grammars.forced_tokens(request)[:limit]
        if forced:
            return forced
        return self._grammars.legal_prefix(request, self._proposer.propose(request, limit))

    def drop(self, request: Request) -> None:
        """The request is finished."""
        if self._proposer is not None:
            self._proposer.drop(request)


def create_proposer(config: SpeculativeConfig) -> Proposer:
    if config.method == "suffix":
        return SuffixProposer(config)
    return NgramProposer(*config.lookup)
