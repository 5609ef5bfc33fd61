"""The rules of limits in Python, as the SQL functions of ``migrations`` have them. They decide
while the database is away (``standby``)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tenants import buckets
from tenants.limits import (
    LimitName,
    Limits,
    Price,
    QuotaAnswer,
    QuotaRequest,
    ScopeKind,
    Window,
    room,
)

QUEUE_WAIT_US = 1_000_000
"""The wait in microseconds that is reported if no slot is free; when one will be is unknown."""


@dataclass(slots=True)
class ScopeState:
    """The limits of a scope, and what it has used of them."""

    kind: ScopeKind
    limits: Limits
    requests_used: int = 0
    tokens_used: int = 0
    refilled_at: datetime | None = None
    num_running: int = 0
    num_queued: int = 0
    month: date = date.min
    month_tokens: int = 0
    month_cost_micro: int = 0

    def move_to(self, now: datetime) -> None:
        elapsed_us = 0 if self.refilled_at is None else (now - self.refilled_at) // _MICROSECOND
        if self.limits.requests_per_minute is not None:
            per_minute = self.limits.requests_per_minute
            self.requests_used = buckets.refilled(self.requests_used, per_minute, elapsed_us)
        else:
            self.requests_used = 0
        if self.limits.tokens_per_minute is not None:
            per_minute = self.limits.tokens_per_minute
            self.tokens_used = buckets.refilled(self.tokens_used, per_minute, elapsed_us)
        else:
            self.tokens_used = 0
        self.refilled_at = max(now, self.refilled_at or now)
        if self.month < month_of(now):
            self.month, self.month_tokens, self.month_cost_micro = month_of(now), 0, 0

    @property
    def tokens_left(self) -> int | None:
        limit = self.limits.monthly_tokens
        return None if limit is None else limit - self.month_tokens

    @property
    def cost_left_micro(self) -> int | None:
        limit = self.limits.monthly_cost_micro
        return None if limit is None else limit - self.month_cost_micro

    def room(self, wanted: int, prompt_tokens: int, price: Price) -> int:
        return room(
            wanted,
            prompt_tokens,
            price,
            tokens_left=self.tokens_left,
            cost_left_micro=self.cost_left_micro,
        )

    def charge(
        self, requests: int, tokens: int, cost_micro: int, month: date, now: datetime
    ) -> None:
        if self.limits.requests_per_minute is not None:
            self.requests_used = buckets.charged(self.requests_used, requests)
        if self.limits.tokens_per_minute is not None:
            self.tokens_used = buckets.charged(self.tokens_used, tokens)
        # Tokens that were reserved in an earlier month are not given back in this one.
        if tokens > 0 or month == month_of(now):
            self.month_tokens = max(0, self.month_tokens + tokens)
        if cost_micro > 0 or month == month_of(now):
            self.month_cost_micro = max(0, self.month_cost_micro + cost_micro)


@dataclass(slots=True)
class Reservation:
    """What a request has reserved in its scopes."""

    request: QuotaRequest
    scope_ids: tuple[UUID, ...]
    is_running: bool
    month: date
    completion_tokens: int
    created_at: datetime
    expires_at: datetime
    generated_tokens: int = 0

    @property
    def held_cost_micro(self) -> int:
        request = self.request
        return request.price.cost(request.prompt_tokens, 0, self.completion_tokens)


class _Refusal(NamedTuple):
    name: LimitName
    kind: ScopeKind
    wait_us: int | None


_MICROSECOND = timedelta(microseconds=1)


def month_of(now: datetime) -> date:
    """The first day of the month, in UTC."""
    return now.astimezone(UTC).date().replace(day=1)


class LocalQuota:
    """What scopes have used, and the reservations in them. No method awaits, so each is a
    transaction."""

    def __init__(self) -> None:
        self._scopes: dict[UUID, ScopeState] = {}
        self.reservations: dict[UUID, Reservation] = {}

    def reserve(self, request: QuotaRequest, now: datetime) -> QuotaAnswer:
        """As ``quota_reserve``."""
        wanted = (request.key_id, request.project_id, request.tenant_id)
        scope_ids = tuple(scope_id for scope_id in wanted if scope_id in self._scopes)
        scopes = [self._scopes[scope_id] for scope_id in scope_ids]
        for scope in scopes:
            scope.move_to(now)
        old = self.reservations.get(request.request_id)
        if old is not None and old.is_running:
            return self._answer("running", scopes, completion_tokens=old.completion_tokens)
        granted, refusal = self._granted(request, scopes)
        refusal = refusal or self._rate_refusal(request, scopes, granted)
        may_queue = old is not None and (refusal is None or refusal.wait_us is not None)
        if refusal is None:
            refusal, may_queue = self._slot_refusal(request, scope_ids, old, now)
        if refusal is not None and not may_queue:
            if old is not None:
                self.release(request.request_id, now)
            return self._answer("refused", scopes, refusal)
        reservation = Reservation(
            request=request,
            scope_ids=scope_ids,
            is_running=refusal is None,
            month=month_of(now),
            completion_tokens=granted if refusal is None else 0,
            created_at=now if old is None else old.created_at,
            expires_at=now + request.lease,
        )
        self.reservations[request.request_id] = reservation
        for scope in scopes:
            scope.num_queued += reservation.is_running is False
            scope.num_queued -= old is not None
            if reservation.is_running:
                scope.num_running += 1
                tokens = request.prompt_tokens + granted
                scope.charge(1, tokens, reservation.held_cost_micro, reservation.month, now)
        if refusal is not None:
            return self._answer("queued", scopes, refusal)
        return self._answer("running", scopes, completion_tokens=granted)

    def extend(
        self, request_id: UUID, tokens: int, generated: int, lease: timedelta, now: datetime
    ) -> int | None:
        """As ``quota_extend``."""
        held = self.reservations.get(request_id)
        if held is None or not held.is_running:
            return None
        scopes = [self._scopes[scope_id] for scope_id in held.scope_ids]
        for scope in scopes:
            scope.move_to(now)
        granted = tokens
        for scope in scopes:
            granted = min(granted, scope.room(granted, 0, held.request.price))
        granted = max(0, granted)
        before = held.held_cost_micro
        held.completion_tokens += granted
        for scope in scopes:
            scope.charge(0, granted, held.held_cost_micro - before, held.month, now)
        held.generated_tokens = max(held.generated_tokens, generated)
        held.expires_at = max(held.expires_at, now + lease)
        return granted

    def close(self, request_id: UUID, tokens: int, cost_micro: int, now: datetime) -> bool:
        """End a reservation, giving back what it holds beyond what was used; False without one."""
        held = self.reservations.pop(request_id, None)
        if held is None:
            return False
        if held.is_running:
            tokens -= held.request.prompt_tokens + held.completion_tokens
            cost_micro -= held.held_cost_micro
        for scope_id in held.scope_ids:
            scope = self._scopes[scope_id]
            scope.move_to(now)
            scope.num_running -= held.is_running
            scope.num_queued -= not held.is_running
            scope.charge(0, tokens, cost_micro, held.month, now)
        return True

    def release(self, request_id: UUID, now: datetime) -> bool:
        """As ``quota_release``."""
        return self.close(request_id, 0, 0, now)

    def __contains__(self, scope_id: UUID) -> bool:
        return scope_id in self._scopes

    def load(self, scope_id: UUID, state: ScopeState) -> None:
        """Take over a scope as it is elsewhere."""
        self._scopes[scope_id] = state

    def _granted(
        self, request: QuotaRequest, scopes: list[ScopeState]
    ) -> tuple[int, _Refusal | None]:
        """The size of the slice, or a refusal that waiting cannot change."""
        granted = request.completion_tokens
        for scope in scopes:
            limit = scope.limits.tokens_per_minute
            if limit is not None and limit <= request.prompt_tokens:
                return 0, _Refusal("tokens", scope.kind, None)
            if limit is not None:
                granted = min(granted, limit - request.prompt_tokens)
            if scope.tokens_left is not None and scope.tokens_left <= request.prompt_tokens:
                return 0, _Refusal("monthly_tokens", scope.kind, None)
            granted = scope.room(granted, request.prompt_tokens, request.price)
            if granted < 1:
                return 0, _Refusal("monthly_cost", scope.kind, None)
        return granted, None

    def _rate_refusal(
        self, request: QuotaRequest, scopes: list[ScopeState], granted: int
    ) -> _Refusal | None:
        waits: list[_Refusal] = []
        for scope in scopes:
            limits = scope.limits
            if limits.requests_per_minute is not None:
                wait = buckets.wait_us(scope.requests_used, 1, limits.requests_per_minute)
                waits.append(_Refusal("requests", scope.kind, wait))
            if limits.tokens_per_minute is not None:
                tokens = request.prompt_tokens + granted
                wait = buckets.wait_us(scope.tokens_used, tokens, limits.tokens_per_minute)
                waits.append(_Refusal("tokens", scope.kind, wait))
        longest = max(waits, key=lambda refusal: refusal.wait_us or 0, default=None)
        return longest if longest is not None and longest.wait_us else None

    def _slot_refusal(
        self,
        request: QuotaRequest,
        scope_ids: tuple[UUID, ...],
        old: Reservation | None,
        now: datetime,
    ) -> tuple[_Refusal | None, bool]:
        """The scope that has no free slot, if any, and whether the request may wait for one."""
        refusal, may_queue = None, True
        for scope_id in scope_ids:
            scope = self._scopes[scope_id]
            if scope.limits.max_concurrent is None:
                continue
            late = [
                held
                for held in self.reservations.values()
                if held.expires_at <= now and scope_id in held.scope_ids
            ]
            num_running = scope.num_running - sum(held.is_running for held in late)
            num_queued = scope.num_queued - sum(not held.is_running for held in late)
            is_full = num_running >= scope.limits.max_concurrent
            if is_full or self._is_preceded(request, old, now):
                refusal = _Refusal("concurrent", scope.kind, QUEUE_WAIT_US)
                has_room = num_queued < (scope.limits.max_queued or 0)
                may_queue = may_queue and (old is not None or has_room)
        return refusal, may_queue

    def _is_preceded(self, request: QuotaRequest, old: Reservation | None, now: datetime) -> bool:
        own = (now if old is None else old.created_at, request.request_id)
        return any(
            (other.created_at, other.request.request_id) < own
            for other in self.reservations.values()
            if not other.is_running
            and other.request.key_id == request.key_id
            and other.expires_at > now
        )

    def _answer(
        self,
        state: str,
        scopes: list[ScopeState],
        refusal: _Refusal | None = None,
        *,
        completion_tokens: int = 0,
    ) -> QuotaAnswer:
        requests = [
            _window(scope.requests_used, scope.limits.requests_per_minute)
            for scope in scopes
            if scope.limits.requests_per_minute is not None
        ]
        tokens = [
            _window(scope.tokens_used, scope.limits.tokens_per_minute)
            for scope in scopes
            if scope.limits.tokens_per_minute is not None
        ]
        return QuotaAnswer(
            state=state,  # type: ignore[arg-type]
            completion_tokens=completion_tokens,
            refused_by=None if refusal is None else refusal.name,
            scope_kind=None if refusal is None else refusal.kind,
            wait_us=None if refusal is None else refusal.wait_us,
            requests=min(requests, key=lambda window: window.remaining, default=None),
            tokens=min(tokens, key=lambda window: window.remaining, default=None),
        )


def _window(used: int, per_minute: int) -> Window:
    return Window(
        limit=per_minute,
        remaining=buckets.remaining(used, per_minute),
        reset_us=buckets.reset_us(used, per_minute),
    )
