"""The limits of a tenant, a project or a key, and the records of a reservation.

All limits of a request's scopes hold at once. None means that a scope sets no limit.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, get_args
from uuid import UUID

import msgspec

from tenants.buckets import MAX_PER_MINUTE
from tenants.errors import InvalidValue

ScopeKind = Literal["tenant", "project", "key"]
SCOPE_KINDS: tuple[ScopeKind, ...] = get_args(ScopeKind)
LimitName = Literal["requests", "tokens", "concurrent", "monthly_tokens", "monthly_cost"]

MAX_MONTHLY = 10**15
MAX_PRICE = 10**9
MAX_COUNT = 2**31 - 1

_BOUNDS = {
    "requests_per_minute": (1, MAX_PER_MINUTE),
    "tokens_per_minute": (1, MAX_PER_MINUTE),
    "max_concurrent": (1, MAX_COUNT),
    "max_queued": (0, MAX_COUNT),
    "monthly_tokens": (0, MAX_MONTHLY),
    "monthly_cost_micro": (0, MAX_MONTHLY),
    "max_cached_blocks": (0, MAX_COUNT),
    "priority": (-(2**15) + 1, 2**15 - 1),
}


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one scope. Raises ``InvalidValue`` for a value out of range."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and completion tokens. Refilled continuously; the burst is a minute's worth."""
    max_concurrent: int | None = None
    max_queued: int | None = None
    """Requests that may wait for one of ``max_concurrent`` slots; None: none may."""
    monthly_tokens: int | None = None
    monthly_cost_micro: int | None = None
    """Millionths of the currency of the prices. Months are UTC's."""
    priority: int | None = None
    """Priority class of its requests; the most specific scope that has one decides."""
    weight: float | None = None
    """Share under contention; the most specific scope that has one decides."""
    max_cached_blocks: int | None = None
    """Blocks of the engine's KV cache that its requests may leave in the prefix cache."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidValue(name, f"must be within {least}..{most}, is {value}")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise InvalidValue("weight", f"must be a finite number above 0, is {self.weight}")


class ScopePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A scope and its limits."""

    scope_kind: ScopeKind
    scope_id: UUID
    limits: Limits


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Millionths of a currency per million tokens: $0.15 per million are 150,000."""

    prompt: int = 0
    cached: int = 0
    """Price of prompt tokens found in the prefix cache; at most ``prompt``."""
    completion: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt", "cached", "completion"):
            if not 0 <= getattr(self, name) <= MAX_PRICE:
                raise InvalidValue(name, f"must be within 0..{MAX_PRICE}")
        if self.cached > self.prompt:
            raise InvalidValue("cached", "must not be above the price of a prompt token")

    def cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """The cost of a request in millionths of the currency, rounded up once."""
        total = (
            (prompt_tokens - cached_tokens) * self.prompt
            + cached_tokens * self.cached
            + completion_tokens * self.completion
        )
        return -(-total // 1_000_000)


def room(
    wanted: int,
    prompt_tokens: int,
    price: Price,
    *,
    tokens_left: int | None,
    cost_left_micro: int | None,
) -> int:
    """How many of ``wanted`` completion tokens fit into what is left of a month, after the prompt;
    below 1 if the prompt does not. As ``limit_room`` in the migrations."""
    fitting = wanted
    if tokens_left is not None:
        fitting = min(fitting, tokens_left - prompt_tokens)
    if cost_left_micro is not None:
        left = max(0, cost_left_micro) * 1_000_000 - prompt_tokens * price.prompt
        if left < 0:
            return 0
        if price.completion > 0:
            fitting = min(fitting, left // price.completion)
    return fitting


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a scope has used of its limits, with what its running requests hold."""

    tenant_id: UUID
    tenant_name: str
    policy: ScopePolicy
    used: dict[str, int]
    """By the name of the limit, of those that it has."""

    @property
    def share(self) -> float:
        """The greatest share of any of its limits."""
        limits = self.policy.limits
        return max(
            used / max(most, 1)
            for name, used in self.used.items()
            if isinstance(most := getattr(limits, name), int)
        )


BUDGETS = (
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrent",
    "monthly_tokens",
    "monthly_cost_micro",
)
"""The limits of which something is used up, in the order of ``list_budgets``."""


class MonthLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What a scope in which no request runs has left of its month: nothing can come back to it."""

    scope_kind: ScopeKind
    tokens: int | None
    cost_micro: int | None
    lasts_us: int
    """Microseconds until the next month."""

    def refuses(self, prompt_tokens: int, price: Price) -> LimitName | None:
        """The limit that refuses a request with at least this prompt; None if it fits."""
        if self.tokens is not None and self.tokens <= prompt_tokens:
            return "monthly_tokens"
        left = room(1, prompt_tokens, price, tokens_left=None, cost_left_micro=self.cost_micro)
        return "monthly_cost" if left < 1 else None


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """What a scope has used of its limits, by the store."""

    scope_id: UUID
    at: datetime
    """By the store's clock."""
    requests_used: int
    """In the unit of ``buckets``."""
    tokens_used: int
    num_running: int
    month_tokens: int
    month_cost_micro: int


class QuotaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request reserves in its scopes before it may run."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    prompt_tokens: int
    completion_tokens: int
    """The first slice, at least 1; fewer are granted if a monthly limit ends before."""
    price: Price
    owner: UUID
    """The process that renews the lease."""
    lease: timedelta
    endpoint: str | None = None
    """For its row in the ledger."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A rate limit as reported in ``x-ratelimit-*``: that of the scope with the least left."""

    limit: int
    remaining: int
    reset_us: int
    """Microseconds until the whole limit is available again."""


class QuotaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a ``QuotaRequest``; nothing is reserved unless ``state`` is ``running``."""

    state: Literal["running", "queued", "refused"]
    completion_tokens: int = 0
    refused_by: LimitName | None = None
    scope_kind: ScopeKind | None = None
    wait_us: int | None = None
    """Microseconds until it is worth trying again; None when waiting is in vain."""
    requests: Window | None = None
    tokens: Window | None = None
