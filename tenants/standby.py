"""Decides about quota while the store is away, from what the store said last.

    store ──► balances, each second ──► what they leave, divided by the workers ──► LocalQuota
              claims of this process since then ─────────────────▲                  decides here

The rules are those of ``local_quota``; only the limits are shares. What a scope had left when it
was last read is divided by the number of workers whose leases ran then, and what this worker has
taken since is subtracted from its own share. So one worker alone keeps every limit exactly, and
several workers exceed one by no more than what they had not heard of each other.

After the outage the store decides again once it knows all that was served without it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from tenants import buckets
from tenants.errors import StoreUnavailable
from tenants.limits import Balance, Limits, QuotaAnswer, QuotaRequest, ScopePolicy, room
from tenants.local_quota import LocalQuota, Reservation, ScopeState, month_of
from tenants.store import Store
from tenants.types import Principal

MAX_SCOPES = 30_000
BATCH = 1_000
WORKER_LEASE_S = 30.0
"""A worker that is missing in the store counts for this long: a database that has crashed knows
none until they have registered again."""

_ENDLESS = timedelta(days=10_000)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True, eq=False)
class Claim:
    """What a request of this process has taken from the limits of its scopes."""

    request: QuotaRequest
    policies: tuple[ScopePolicy, ...]
    completion_tokens: int
    """Reserved; after its end: generated."""
    is_stored: bool
    """Whether the store has its reservation."""
    unreported: int = 0
    """Completion tokens that it was given here, and that its reservation lacks."""
    is_open: bool = True
    known: int | None = None
    """Completion tokens that are part of the balances; None if they know nothing of it."""

    @property
    def is_reported(self) -> bool:
        return self.is_stored and not self.unreported

    def cost_micro(self, completion_tokens: int) -> int:
        request = self.request
        return request.price.cost(request.prompt_tokens, 0, completion_tokens)


@dataclass(slots=True)
class _Since:
    """What this process has taken from a scope since its balance was read."""

    requests: int = 0
    tokens: int = 0
    cost_micro: int = 0
    num_open: int = 0


class Standby:
    """What this process knows of its tenants' limits. One per process."""

    def __init__(
        self,
        *,
        worker_id: str = "",
        allowance_tokens: int = 0,
        keep_s: float = 60.0,
        is_pending: Callable[[UUID], bool] = lambda request_id: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """allowance_tokens: what a scope may use in an outage if its balance was never read.
        keep_s: how long a scope is followed after its last request. is_pending: whether the
        settlement of a request has not reached the store."""
        self._worker_id = worker_id
        self._allowance_tokens = allowance_tokens
        self._keep_s = keep_s
        self._is_pending = is_pending
        self._clock = clock
        self.is_away = False
        self._ahead_s: float | None = None
        """The store's clock, less this process's own."""
        self._asked_at: OrderedDict[UUID, float] = OrderedDict()  # by scope, the oldest first
        self._balances: dict[UUID, Balance] = {}
        self._num_known_open: dict[UUID, int] = {}
        """By scope: requests of this process that its balance counts as running."""
        self._workers: dict[str, float] = {}
        """When each worker was last in the store."""
        self._claims: dict[UUID, Claim] = {}
        # While the store is away
        self._local: LocalQuota | None = None
        self._since: dict[UUID, _Since] = {}
        self._since_at = datetime.min.replace(tzinfo=UTC)

    @property
    def num_claims(self) -> int:
        return len(self._claims)

    # -- what the store has answered

    def ask(self, principal: Principal) -> None:
        """Follow the scopes of a principal from now on."""
        self._follow(principal.policies)

    def _follow(self, policies: Sequence[ScopePolicy]) -> None:
        now = self._clock()
        for policy in policies:
            self._asked_at[policy.scope_id] = now
            self._asked_at.move_to_end(policy.scope_id)
        while len(self._asked_at) > MAX_SCOPES:
            self._balances.pop(self._asked_at.popitem(last=False)[0], None)

    def took(self, principal: Principal, request: QuotaRequest, completion_tokens: int) -> None:
        """The store has reserved for a request."""
        claim = Claim(request, principal.policies, completion_tokens, is_stored=True)
        self._claims[request.request_id] = claim
        self._local = None

    def extended(self, request_id: UUID, tokens: int) -> None:
        """The store has reserved more."""
        if (claim := self._claims.get(request_id)) is not None:
            claim.completion_tokens += tokens
            self._local = None

    def ended(self, request_id: UUID, generated: int) -> None:
        """A request has ended, and is settled or waits for it."""
        if (claim := self._claims.get(request_id)) is None or not claim.is_open:
            return
        if self.is_away:
            local = self._with_claim(claim)
            tokens = claim.request.prompt_tokens + generated
            local.close(request_id, tokens, claim.cost_micro(generated), self._now())
        claim.is_open, claim.completion_tokens = False, generated

    def dropped(self, request_id: UUID) -> None:
        """A request has never run, and is charged to nobody."""
        if (claim := self._claims.get(request_id)) is None:
            return
        if self.is_away:
            self._with_claim(claim).release(request_id, self._now())
        del self._claims[request_id]

    # -- without the store

    def begin(self) -> None:
        """Decide here from now on.

        A database that crashes loses its latest reservations, so it will be told of all of them.
        """
        if not self.is_away:
            self.is_away = True
            for claim in self._claims.values():
                claim.is_stored = False

    def reserve(self, principal: Principal, request: QuotaRequest) -> QuotaAnswer:
        """As ``Store.reserve``, but never queued. Raises ``StoreUnavailable`` where only the share
        of this worker is used up, or nothing is known of a scope."""
        local = self._with(principal.policies)
        for policy in principal.policies:
            if self._is_shut(policy):
                raise _unknown()
        lasting = msgspec.structs.replace(request, lease=_ENDLESS)
        answer = local.reserve(lasting, self._now())
        if answer.state == "running":
            claim = Claim(request, principal.policies, answer.completion_tokens, is_stored=False)
            self._claims[request.request_id] = claim
        elif answer.wait_us is None and not self._is_refused_by_all(principal.policies, request):
            raise _unknown()
        return answer

    def extend(self, request_id: UUID, tokens: int) -> int:
        """How many of ``tokens`` more a request may generate."""
        if (claim := self._claims.get(request_id)) is None:
            return 0
        local = self._with_claim(claim)
        granted = local.extend(request_id, tokens, 0, _ENDLESS, self._now()) or 0
        claim.completion_tokens += granted
        claim.unreported += granted
        return granted

    # -- the store is asked

    def unreported(self) -> Sequence[Claim]:
        """The running requests that the store does not know, or not all of it."""
        return [c for c in self._claims.values() if c.is_open and not c.is_reported]

    def reported(self, claim: Claim, tokens: int) -> None:
        """The store has been told of a request, and of so many tokens that it was given here."""
        claim.is_stored = True
        claim.unreported -= tokens

    async def refresh(self, store: Store) -> None:
        """Read what the scopes have left. If the store knows all that was served without it, it
        decides again. Raises ``StoreUnavailable``."""
        self._forget()
        known = {i: c.completion_tokens - c.unreported for i, c in self._stored()}
        closed = [(i, self._is_pending(i)) for i, c in self._claims.items() if not c.is_open]
        is_complete = not self.unreported() and not any(is_pending for _, is_pending in closed)
        if self._asked_at:
            self._learn_workers(await store.shared.list_workers())
            scope_ids = list(self._asked_at)
            balances: list[Balance] = []
            for first in range(0, len(scope_ids), BATCH):
                balances += await store.balances(scope_ids[first : first + BATCH])
            self._learn(balances, known)
        for request_id, is_pending in closed:
            if not is_pending:
                self._claims.pop(request_id, None)
        self._local = None
        self.is_away = self.is_away and not is_complete

    def _stored(self) -> Iterator[tuple[UUID, Claim]]:
        return ((i, c) for i, c in self._claims.items() if c.is_open and c.is_stored)

    def _forget(self) -> None:
        """Stop following scopes for which nobody has asked lately, unless they are needed now."""
        if self.is_away:
            return
        for claim in self._claims.values():
            self._follow(claim.policies)
        now = self._clock()
        while self._asked_at:
            scope_id, asked_at = next(iter(self._asked_at.items()))
            if now - asked_at < self._keep_s:
                return
            del self._asked_at[scope_id]
            self._balances.pop(scope_id, None)

    def _learn_workers(self, ids: Sequence[str]) -> None:
        now = self._clock()
        self._workers |= dict.fromkeys([*ids, self._worker_id], now)
        old = [i for i, seen_at in self._workers.items() if now - seen_at > WORKER_LEASE_S]
        for worker_id in old:
            del self._workers[worker_id]

    def _learn(self, balances: Sequence[Balance], known: dict[UUID, int]) -> None:
        """known: completion tokens of requests whose reservations were in the store before the
        balances were read."""
        self._balances = {balance.scope_id: balance for balance in balances}
        if balances:
            self._ahead_s = balances[-1].at.timestamp() - self._clock()
        self._num_known_open = {}
        for claim in self._claims.values():
            if claim.is_open:
                claim.known = None
        for request_id, completion_tokens in known.items():
            if (found := self._claims.get(request_id)) is None:
                continue
            # What ended meanwhile is charged either way.
            found.known = min(completion_tokens, found.completion_tokens)
            if found.is_open:
                for policy in found.policies:
                    count = self._num_known_open.get(policy.scope_id, 0)
                    self._num_known_open[policy.scope_id] = count + 1

    # -- shares

    def _now(self) -> datetime:
        if self._ahead_s is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._clock() + self._ahead_s, UTC)

    def _with(self, policies: Sequence[ScopePolicy]) -> LocalQuota:
        """The quota that decides here, with these scopes."""
        if self._local is None:
            self._local, self._since, self._since_at = LocalQuota(), {}, self._now()
            for claim in self._claims.values():
                self._count(claim)
        for policy in policies:
            if policy.scope_id not in self._local:
                self._local.load(policy.scope_id, self._share_of(policy))
        return self._local

    def _count(self, claim: Claim) -> None:
        request = claim.request
        tokens, cost_micro = claim.completion_tokens, claim.cost_micro(claim.completion_tokens)
        if claim.known is None:
            tokens += request.prompt_tokens
        else:
            tokens -= claim.known
            cost_micro -= claim.cost_micro(claim.known)
        for policy in claim.policies:
            since = self._since.setdefault(policy.scope_id, _Since())
            since.requests += claim.known is None
            since.tokens += tokens
            since.cost_micro += cost_micro
            since.num_open += claim.is_open

    def _with_claim(self, claim: Claim) -> LocalQuota:
        """As ``_with``; a request that the store has admitted has a reservation here, too."""
        local = self._with(claim.policies)
        local.reservations.setdefault(
            claim.request.request_id,
            Reservation(
                request=claim.request,
                scope_ids=tuple(policy.scope_id for policy in claim.policies),
                is_running=True,
                month=month_of(self._now()),
                completion_tokens=claim.completion_tokens,
                created_at=self._now(),
                expires_at=self._now() + _ENDLESS,
            ),
        )
        return local

    @property
    def _num_workers(self) -> int:
        return len({*self._workers, self._worker_id})

    def _share(self, amount: int) -> int:
        """This worker's part of an amount; the parts of all workers make up the whole."""
        ids = sorted({*self._workers, self._worker_id})
        return (amount + len(ids) - 1 - ids.index(self._worker_id)) // len(ids)

    def _share_of(self, policy: ScopePolicy) -> ScopeState:
        limits, since = policy.limits, self._since.get(policy.scope_id, _Since())
        balance = self._balances.get(policy.scope_id)
        left = self._left(policy)
        months = [None if part is None else self._share(max(0, part)) for part in left]
        if balance is None:
            most = months[0]
            allowance = self._allowance_tokens
            months[0] = allowance if most is None else min(allowance, most)
        requests, requests_used = self._rate(limits.requests_per_minute, balance, "requests")
        tokens, tokens_used = self._rate(limits.tokens_per_minute, balance, "tokens")
        slots = self._slots(policy, balance)
        shared = Limits(
            requests_per_minute=requests,
            tokens_per_minute=tokens,
            max_concurrent=None if slots is None else max(1, slots),
            monthly_tokens=_whole_month(limits.monthly_tokens, months[0], self._share),
            monthly_cost_micro=_whole_month(limits.monthly_cost_micro, months[1], self._share),
        )
        return ScopeState(
            kind=policy.scope_kind,
            limits=shared,
            requests_used=buckets.charged(requests_used, since.requests),
            tokens_used=buckets.charged(tokens_used, since.tokens),
            refilled_at=self._since_at,
            num_running=since.num_open + (0 if slots is None else max(1, slots) - slots),
            month=month_of(self._since_at),
            month_tokens=max(0, (shared.monthly_tokens or 0) - (months[0] or 0) + since.tokens),
            month_cost_micro=max(
                0, (shared.monthly_cost_micro or 0) - (months[1] or 0) + since.cost_micro
            ),
        )

    def _left(self, policy: ScopePolicy) -> tuple[int | None, int | None]:
        """Tokens and cost that a scope had left of the month when it was read."""
        limits, balance = policy.limits, self._balances.get(policy.scope_id)
        tokens, cost_micro = limits.monthly_tokens, limits.monthly_cost_micro
        if balance is None or month_of(balance.at) != month_of(self._since_at):
            return tokens, cost_micro
        return (
            None if tokens is None else tokens - balance.month_tokens,
            None if cost_micro is None else cost_micro - balance.month_cost_micro,
        )

    def _rate(
        self, per_minute: int | None, balance: Balance | None, name: str
    ) -> tuple[int | None, int]:
        """This worker's share of a rate, and how much of it was used; a share of nothing is 1,
        which ``_is_shut`` keeps."""
        if per_minute is None:
            return None, 0
        used = 0
        if balance is not None:
            used = balance.requests_used if name == "requests" else balance.tokens_used
            elapsed_us = (self._since_at - balance.at) // _MICROSECOND
            used = buckets.refilled(used, per_minute, elapsed_us)
        share, left = max(1, self._share(per_minute)), per_minute * buckets.UNIT - used
        own = left // self._num_workers
        if left > 0:
            whole, rest = divmod(left, buckets.UNIT)
            own = self._share(whole) * buckets.UNIT + rest // self._num_workers
        return share, max(0, share * buckets.UNIT - own)

    def _slots(self, policy: ScopePolicy, balance: Balance | None) -> int | None:
        """How many requests this worker may run: those it ran when the scope was read, and its
        share of the slots that were free."""
        most = policy.limits.max_concurrent
        if most is None:
            return None
        own = self._num_known_open.get(policy.scope_id, 0)
        others = 0 if balance is None else balance.num_running - own
        if self._num_workers == 1:
            others = 0  # Leases of requests that have ended, or of a dead worker.
        return own + self._share(max(0, most - own - max(0, others)))

    def _is_shut(self, policy: ScopePolicy) -> bool:
        """Whether no request may pass this scope here."""
        rates = (policy.limits.requests_per_minute, policy.limits.tokens_per_minute)
        if any(rate is not None and not self._share(rate) for rate in rates):
            return True
        return policy.scope_id not in self._balances and not self._allowance_tokens

    def _is_refused_by_all(self, policies: Sequence[ScopePolicy], request: QuotaRequest) -> bool:
        """Whether the limits as a whole refuse a request, not only this worker's share of them."""
        is_known = all(policy.scope_id in self._balances for policy in policies)
        if is_known and self._num_workers == 1:
            return True
        prompt_tokens = request.prompt_tokens
        for policy in policies:
            limit = policy.limits.tokens_per_minute
            if limit is not None and limit <= prompt_tokens:
                return True
            if policy.scope_id not in self._balances:
                continue
            since = self._since.get(policy.scope_id, _Since())
            tokens, cost_micro = self._left(policy)
            fitting = room(
                1,
                prompt_tokens,
                request.price,
                tokens_left=None if tokens is None else tokens - since.tokens,
                cost_left_micro=None if cost_micro is None else cost_micro - since.cost_micro,
            )
            if fitting < 1:
                return True
        return False


def _whole_month(limit: int | None, left: int | None, share: Callable[[int], int]) -> int | None:
    """A worker's share of a month's limit: at least what it has left."""
    if left is None:
        return None
    return left if limit is None else max(left, share(limit))


def _unknown() -> StoreUnavailable:
    return StoreUnavailable(
        "the database is away, and this worker knows of nothing more that the limits leave"
    )
