"""How much may wait: in all, and for each tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import QueueFull

if TYPE_CHECKING:
    from engine.config import EngineConfig


@dataclass(slots=True)
class _Queued:
    num_reqs: int = 0
    num_tokens: int = 0


class QueueLimits:
    """Counts requests from their arrival to their first admission, and refuses what is too much.

    A request that was admitted once is never refused any more: a preemption does not count. The
    limits are those of ``EngineConfig``; None sets no limit. Tenants are told apart by fair key.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._limits = {
            "max_num_queued_reqs": config.max_num_queued_reqs,
            "max_num_queued_tokens": config.max_num_queued_tokens,
            "max_num_queued_reqs_per_tenant": config.max_num_queued_reqs_per_tenant,
            "max_num_queued_tokens_per_tenant": config.max_num_queued_tokens_per_tenant,
        }
        self._all = _Queued()
        self._tenants: dict[str, _Queued] = {}

    @property
    def num_reqs(self) -> int:
        return self._all.num_reqs

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that wait."""
        return self._all.num_tokens

    def num_reqs_by_tenant(self) -> dict[str, int]:
        return {fair_key: queued.num_reqs for fair_key, queued in self._tenants.items()}

    def enter(self, fair_key: str, num_tokens: int) -> None:
        """Raises ``QueueFull``, naming the limit, if the request has to be refused."""
        tenant = self._tenants.get(fair_key) or _Queued()
        counts = {
            "max_num_queued_reqs": self._all.num_reqs + 1,
            "max_num_queued_tokens": self._all.num_tokens + num_tokens,
            "max_num_queued_reqs_per_tenant": tenant.num_reqs + 1,
            "max_num_queued_tokens_per_tenant": tenant.num_tokens + num_tokens,
        }
        for name, count in counts.items():
            limit = self._limits[name]
            if limit is not None and count > limit:
                raise QueueFull(f"too much is queued: {count} would exceed {name} = {limit}")
        self._tenants[fair_key] = tenant
        for queued in (self._all, tenant):
            queued.num_reqs += 1
            queued.num_tokens += num_tokens

    def leave(self, fair_key: str, num_tokens: int) -> None:
        tenant = self._tenants[fair_key]
        for queued in (self._all, tenant):
            queued.num_reqs -= 1
            queued.num_tokens -= num_tokens
        assert tenant.num_reqs >= 0, f"{fair_key!r} leaves the queue too often"
        if tenant.num_reqs == 0:
            del self._tenants[fair_key]
