"""How much may wait: in total, and for each tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.config import EngineConfig


@dataclass(slots=True)
class Queued:
    """Requests that wait for their first admission, and their prompt tokens."""

    num_reqs: int = 0
    num_tokens: int = 0

    def add(self, num_reqs: int, num_tokens: int) -> None:
        self.num_reqs += num_reqs
        self.num_tokens += num_tokens


def refusal(
    config: EngineConfig, in_all: Queued, tenant: Queued, num_tenants: int
) -> QueueFull | None:
    """Names the first limit that this much queued work exceeds; None if it exceeds none.

    A limit on all refuses only tenants that have their part of it, or more: so the flood of one
    does not get another's requests refused. Since the parts shrink as tenants come, who came
    earlier may have more than now is theirs: n tenants at most ``limit * (1 + ln(n))`` together.
    num_tenants: those who have anything queued, this one included.
    """
    for name, limit, count, part in (
        ("max_num_queued_reqs", config.max_num_queued_reqs, in_all.num_reqs, tenant.num_reqs),
        (
            "max_num_queued_tokens",
            config.max_num_queued_tokens,
            in_all.num_tokens,
            tenant.num_tokens,
        ),
    ):
        if limit is not None and count > limit and part * num_tenants > limit:
            return _queue_full(name, limit, count)
    for name, limit, count in (
        (
            "max_num_queued_reqs_per_tenant",
            config.max_num_queued_reqs_per_tenant,
            tenant.num_reqs,
        ),
        (
            "max_num_queued_tokens_per_tenant",
            config.max_num_queued_tokens_per_tenant,
            tenant.num_tokens,
        ),
    ):
        if limit is not None and count > limit:
            return _queue_full(name, limit, count)
    return None


def _queue_full(name: str, limit: int, count: int) -> QueueFull:
    return QueueFull(f"too much is queued: {count} would exceed {name} = {limit}: try again later")


class QueueLimits:
    """Counts requests from their arrival to their first admission, and refuses what is too much.

    A request that was admitted once is never refused any more: a preemption does not count. The
    limits are those of ``EngineConfig``; None sets no limit. Tenants are told apart by fair key.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._all = Queued()
        self._tenants: dict[str, Queued] = {}

    @property
    def num_reqs(self) -> int:
        return self._all.num_reqs

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all queued requests."""
        return self._all.num_tokens

    @property
    def by_tenant(self) -> Mapping[str, Queued]:
        """What is queued for each tenant that has something queued, by fair key."""
        return self._tenants

    def enter(self, fair_key: str, num_tokens: int, *, is_moved: bool = False) -> None:
        """Count an arriving request. Raises ``QueueFull``, naming the limit, if it has to be
        refused: never one that another engine has taken before."""
        tenant = self._tenants.get(fair_key) or Queued()
        error = refusal(
            self._config,
            Queued(self._all.num_reqs + 1, self._all.num_tokens + num_tokens),
            Queued(tenant.num_reqs + 1, tenant.num_tokens + num_tokens),
            len(self._tenants.keys() | {fair_key}),
        )
        if error is not None and not is_moved:
            raise error
        self._tenants[fair_key] = tenant
        for queued in (self._all, tenant):
            queued.add(1, num_tokens)

    def leave(self, fair_key: str, num_tokens: int) -> None:
        tenant = self._tenants[fair_key]
        for queued in (self._all, tenant):
            queued.add(-1, -num_tokens)
        assert tenant.num_reqs >= 0, f"{fair_key!r} leaves the queue too often"
        if tenant.num_reqs == 0:
            del self._tenants[fair_key]
