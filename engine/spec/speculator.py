"""What the core asks for drafts: the forced tokens of grammars, and the configured proposer."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from engine.spec.adaptive import PROBE_REQUESTS, AdaptiveLength
from engine.spec.config import NETWORK_METHODS
from engine.spec.network import NetworkProposer
from engine.spec.ngram import NgramProposer
from engine.spec.suffix import SuffixProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Protocol

    from engine.request import Request
    from engine.scheduler.plan import Runner, StepPlan
    from engine.spec.base import Proposer
    from engine.spec.config import SpeculativeConfig

    class Grammars(Protocol):
        """What ``engine.constraints.Constraints`` knows of drafts."""

        def forced_tokens(self, request: Request) -> list[int]: ...

        def legal_prefix(self, request: Request, token_ids: list[int]) -> list[int]: ...


MAX_FORCED = 7
"""Tokens that a grammar forces, drafted in a step without a config: with the one before they are
as many as attention takes for few."""

MAX_FORCED_BATCH = 4
"""And only in batches of up to so many, where a step waits for memory more than it computes."""


class Speculator:
    """Writes the ``draft_token_ids`` of running requests. None of it changes what they say."""

    def __init__(
        self,
        config: SpeculativeConfig | None,
        grammars: Grammars,
        runner: Runner,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        drafts_forced: bool = False,
    ) -> None:
        """``proposer``: in place of the one that ``config`` names; ``drafts_forced``: draft what
        grammars force without a config, too."""
        self._grammars = grammars
        self._proposer = proposer
        self._adaptive = AdaptiveLength(runner.step_costs)
        self._clock = clock
        self._began_s = 0.0
        self._max_tokens = 0
        self._max_forced = MAX_FORCED if drafts_forced else 0
        if config is not None:
            self._proposer = proposer or create_proposer(config, runner)
            self._max_tokens = self._max_forced = config.num_tokens

    def begin(self) -> None:
        """A step begins: what it takes includes the drafting."""
        self._began_s = self._clock()

    def propose(self, running: Collection[Request]) -> None:
        """Drafts for the next step; every token of the requests that get some is known."""
        max_forced = self._max_forced
        if self._proposer is None and len(running) > MAX_FORCED_BATCH:
            max_forced = 0
        if max_forced == 0 and self._proposer is None:
            for request in running:
                request.draft_token_ids = []
            return
        asked: dict[Request, int] = {}
        for request in running:
            request.draft_token_ids = []
            self._adaptive.observe(request)
            room = request.draft_room
            if room <= 0:
                continue
            if request.constrained:
                forced = self._grammars.forced_tokens(request)
                request.draft_token_ids = forced[: min(max_forced, room)]
            if not request.draft_token_ids:
                asked[request] = min(self._max_tokens, room)
        if asked and self._proposer is not None and self._adaptive.may_pay(asked, len(running)):
            if self._adaptive.is_probe:
                asked = dict(islice(asked.items(), PROBE_REQUESTS))
            self._ask(self._proposer, asked, len(running))

    def _ask(self, proposer: Proposer, asked: dict[Request, int], batch: int) -> None:
        if not proposer.is_free:
            length = self._adaptive.even_length(asked, batch)
            if length == 0:
                return
            asked = {request: min(limit, length) for request, limit in asked.items()}
        drafts = dict(zip(asked, proposer.propose(list(asked.items())), strict=True))
        for request, draft in drafts.items():
            request.draft_token_ids = (
                self._grammars.legal_prefix(request, draft) if request.constrained else draft
            )
        if proposer.is_free:
            found = {r: len(r.draft_token_ids) for r in asked if r.draft_token_ids}
            for request, length in self._adaptive.lengths(found, batch).items():
                del request.draft_token_ids[length:]

    def planned(self, plan: StepPlan | None) -> None:
        """What the step does; learn what the one before took."""
        if self._proposer is None:
            return
        chunks = [] if plan is None else plan.chunks
        if all(c.num_scheduled_tokens == 1 + c.num_draft_tokens for c in chunks):
            num_drafts = sum(chunk.num_draft_tokens for chunk in chunks)
            self._adaptive.step_begins(self._began_s, len(chunks), num_drafts)
        else:
            self._adaptive.forget_step()

    def foresees_drafts(self, running: Collection[Request]) -> bool:
        """Whether it looks as if there will be drafts once the step in flight is known.

        If so, its result is worth waiting for; otherwise the next step is planned beside it.
        """
        if self._proposer is None or not self._adaptive.may_pay(running, len(running)):
            return False
        return any(
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
            self._adaptive.drop(request)


def create_proposer(config: SpeculativeConfig, runner: Runner) -> Proposer:
    if config.method in NETWORK_METHODS:
        return NetworkProposer(runner)
    if config.method == "suffix":
        return SuffixProposer(config)
    return NgramProposer(*config.lookup)
