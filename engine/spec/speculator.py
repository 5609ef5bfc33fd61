"""What the core asks for drafts: the forced tokens of grammars, and the configured proposer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.spec.config import NETWORK_METHODS
from engine.spec.network import NetworkProposer
from engine.spec.ngram import NgramProposer
from engine.spec.suffix import SuffixProposer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from engine.request import Request
    from engine.scheduler.plan import Runner
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
        runner: Runner,
        proposer: Proposer | None = None,
    ) -> None:
        """``proposer``: in place of the one that ``config`` names."""
        self._grammars = grammars
        self._proposer = proposer
        self._max_tokens = 0
        if config is not None:
            self._proposer = proposer or create_proposer(config, runner)
            self._max_tokens = config.num_tokens

    def propose(self, running: Iterable[Request]) -> None:
        """Drafts for the next step; every token of the requests that get some is known."""
        if self._proposer is None:
            return
        asked: list[tuple[Request, int]] = []
        for request in running:
            request.draft_token_ids = []
            limit = min(self._max_tokens, request.draft_room)
            if limit <= 0:
                continue
            if request.constrained:
                request.draft_token_ids = self._grammars.forced_tokens(request)[:limit]
            if not request.draft_token_ids:
                asked.append((request, limit))
        drafts = self._proposer.propose(asked)
        for (request, _), draft in zip(asked, drafts, strict=True):
            request.draft_token_ids = (
                self._grammars.legal_prefix(request, draft) if request.constrained else draft
            )

    def foresees_drafts(self, running: Iterable[Request]) -> bool:
        """Whether it looks as if there will be drafts once the step in flight is known.

        If so, its result is worth waiting for; otherwise the next step is planned beside it.
        """
        return self._proposer is not None and any(
            self._foresees(self._proposer, request)
            for request in running
            if request.num_pending and request.num_planned_tokens + 1 < request.max_total_tokens
        )

    def _foresees(self, proposer: Proposer, request: Request) -> bool:
        if request.constrained and len(self._grammars.forced_tokens(request)) >= 2:
            return True  # The first stands for the token in flight.
        return proposer.foresees(request)

    def drop(self, request: Request) -> None:
        """The request is finished."""
        if self._proposer is not None:
            self._proposer.drop(request)


def create_proposer(config: SpeculativeConfig, runner: Runner) -> Proposer:
    if config.method in NETWORK_METHODS:
        return NetworkProposer(runner)
    if config.method == "suffix":
        return SuffixProposer(config)
    return NgramProposer(*config.lookup)
