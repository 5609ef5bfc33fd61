"""Running totals for each tenant, for the metrics."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from engine.messages import TenantStats
from engine.scheduler.queue_limits import Queued
from engine.scheduler.totals import DraftTotals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from engine.request import Request

# A metric has a series per tenant, so their number must be bounded.
_MAX_TENANTS = 256
OTHERS = "others"
"""The fair key under which forgotten tenants are summed up."""


_COUNTS = (
    "cached_tokens",
    "computed_tokens",
    "generation_tokens",
    "num_admitted",
    "preemptions_caused",
    "preemptions_suffered",
    "queue_time_sum_s",
)


class Totals:
    """Running totals of one tenant."""

    __slots__ = (*_COUNTS, "drafts")

    def __init__(self) -> None:
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.preemptions_caused = 0
        self.preemptions_suffered = 0
        self.num_admitted = 0
        self.queue_time_sum_s = 0.0
        self.drafts = DraftTotals()

    def add(self, other: Totals) -> None:
        self.drafts.add(other.drafts)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TenantTotals:
    """Totals by fair key. The tenant known longest makes room for a new one, and goes into
    ``OTHERS``."""

    def __init__(self) -> None:
        self._totals: dict[str, Totals] = {}
        self._others = Totals()

    def of(self, fair_key: str) -> Totals:
        totals = self._totals.get(fair_key)
        if totals is None:
            if len(self._totals) >= _MAX_TENANTS:
                self._others.add(self._totals.pop(next(iter(self._totals))))
            totals = self._totals[fair_key] = Totals()
        return totals

    def stats(self, running: Iterable[Request], queued: Mapping[str, Queued]) -> list[TenantStats]:
        num_running: defaultdict[str, int] = defaultdict(int)
        for request in running:
            num_running[request.fair_key] += 1
        none = Queued()
        return [
            TenantStats(
                fair_key=fair_key,
                num_running=num_running[fair_key],
                num_queued=queued.get(fair_key, none).num_reqs,
                queued_tokens=queued.get(fair_key, none).num_tokens,
                num_drafts=totals.drafts.num_drafts,
                num_draft_tokens=totals.drafts.num_draft_tokens,
                num_accepted_tokens=totals.drafts.num_accepted_tokens,
                num_accepted_tokens_per_pos=totals.drafts.num_accepted_tokens_per_pos,
                **{name: getattr(totals, name) for name in _COUNTS},
            )
            for fair_key, totals in (*self._totals.items(), (OTHERS, self._others))
        ]
