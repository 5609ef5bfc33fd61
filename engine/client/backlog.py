"""The engine's queue as a client knows it: its last report, and the requests sent since."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from engine.messages import Stats
from engine.scheduler.queue_limits import Queued, refusal

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.errors import QueueFull
    from engine.messages import GenerateRequest


class Backlog:
    """Refuses requests in the client that the engine would refuse, before any work for them.

    The engine decides again, with exact counts. The counts here are too high by what was admitted
    since its last report, and too low by what other clients have sent since.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._stats = Stats()
        self._tenants: dict[str, Queued] = {}
        """What the engine reported of each tenant that has anything queued."""
        self._sent: deque[tuple[int, str, int]] = deque()
        """(number, fair key, tokens) of each request that no report of the engine covers yet."""
        self._unreported: defaultdict[str, Queued] = defaultdict(Queued)
        self._unreported_in_all = Queued()
        self.num_tokens = 0
        """Prompt tokens that wait for their first admission, and by fair key. Routers read both for
        each engine, at each request."""
        self.tokens_of: dict[str, int] = {}
        self._num_sent = 0
        self._reported_at = -float("inf")

    @property
    def age_s(self) -> float:
        """Seconds since the engine's last report."""
        return time.monotonic() - self._reported_at

    def mark(self) -> int:
        """To be passed to ``report`` with the answer to a question that is sent now: the answer
        covers all requests sent before."""
        return self._num_sent

    def send(self, request: GenerateRequest) -> None:
        self._num_sent += 1
        num_tokens = len(request.prompt_token_ids)
        self._sent.append((self._num_sent, request.fair_key, num_tokens))
        self._count(request.fair_key, +1, num_tokens)
        self.num_tokens += num_tokens
        self.tokens_of[request.fair_key] = self.tokens_of.get(request.fair_key, 0) + num_tokens

    def report(self, stats: Stats, mark: int) -> None:
        """Take in a report of the engine. ``mark``: from when the question for it was sent."""
        self._reported_at = time.monotonic()
        self._stats = stats
        self._tenants = {
            tenant.fair_key: Queued(tenant.num_queued, tenant.queued_tokens)
            for tenant in stats.tenants
            if tenant.num_queued or tenant.queued_tokens
        }
        while self._sent and self._sent[0][0] <= mark:
            _, fair_key, num_tokens = self._sent.popleft()
            self._count(fair_key, -1, -num_tokens)
        self.num_tokens = stats.num_queued_tokens + self._unreported_in_all.num_tokens
        self.tokens_of = {key: queued.num_tokens for key, queued in self._tenants.items()}
        for fair_key, queued in self._unreported.items():
            self.tokens_of[fair_key] = self.tokens_of.get(fair_key, 0) + queued.num_tokens

    def refusal(self, fair_key: str) -> QueueFull | None:
        """The error with which one more request of this tenant would be refused, even a short one;
        None if it would not."""
        in_all = Queued(self._stats.num_queued_reqs + 1, self._stats.num_queued_tokens + 1)
        tenant = Queued(1, 1)
        for queued, parts in (
            (in_all, (self._unreported_in_all,)),
            (tenant, (self._tenants.get(fair_key), self._unreported.get(fair_key))),
        ):
            for part in parts:
                if part is not None:
                    queued.add(part.num_reqs, part.num_tokens)
        others = self._unreported.keys() - self._tenants.keys() - {fair_key}
        num_tenants = len(self._tenants) + (fair_key not in self._tenants) + len(others)
        return refusal(self._config, in_all, tenant, num_tenants)

    def _count(self, fair_key: str, num_reqs: int, num_tokens: int) -> None:
        self._unreported_in_all.add(num_reqs, num_tokens)
        tenant = self._unreported[fair_key]
        tenant.add(num_reqs, num_tokens)
        if tenant.num_reqs == 0:
            del self._unreported[fair_key]
