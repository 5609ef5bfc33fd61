"""The limits of the store in memory: ``LocalQuota``, and what only a store is asked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from tenants.limits import BUDGETS, Balance, Limits, MonthLeft, ScopeKind, ScopePolicy
from tenants.local_quota import LocalQuota, Reservation, ScopeState, month_of

_MICROSECOND = timedelta(microseconds=1)
_MINUTE = timedelta(minutes=1)


def _next_month(month: date) -> date:
    return (month + timedelta(days=31)).replace(day=1)


class MemoryQuota(LocalQuota):
    def put(self, kind: ScopeKind, scope_id: UUID, limits: Limits, now: datetime) -> None:
        """Set a scope's limits; what it has used so far is refilled at the old rates."""
        state = self._scopes.setdefault(scope_id, ScopeState(kind, limits))
        state.move_to(now)
        state.limits = limits

    def policies(self, scope_ids: Iterable[UUID]) -> tuple[ScopePolicy, ...]:
        """The policies of those scopes that have one, in the order given."""
        return tuple(
            ScopePolicy(
                scope_kind=self._scopes[scope_id].kind,
                scope_id=scope_id,
                limits=self._scopes[scope_id].limits,
            )
            for scope_id in scope_ids
            if scope_id in self._scopes
        )

    def used(self, scope_id: UUID, now: datetime) -> dict[str, int]:
        """What a scope has used of each of its limits."""
        state = self._scopes[scope_id]
        state.move_to(now)
        used = (
            -(-state.requests_used // 60_000_000),
            -(-state.tokens_used // 60_000_000),
            state.num_running,
            state.month_tokens,
            state.month_cost_micro,
        )
        return {
            name: max(0, value)
            for name, value in zip(BUDGETS, used, strict=True)
            if getattr(state.limits, name) is not None
        }

    def charge(
        self, scope_ids: Iterable[UUID], tokens: int, cost_micro: int, now: datetime
    ) -> None:
        """Charge a request that was never reserved, or whose reservation was lost."""
        for scope_id in scope_ids:
            if scope_id in self._scopes:
                self._scopes[scope_id].move_to(now)
                self._scopes[scope_id].charge(1, tokens, cost_micro, month_of(now), now)

    def expired(self, now: datetime, patience: timedelta) -> Reservation | None:
        """The reservation whose lease ran out first; a running one at least ``patience`` ago."""
        late = [
            held
            for held in self.reservations.values()
            if held.expires_at <= now - (patience if held.is_running else timedelta())
        ]
        return min(late, key=lambda held: held.expires_at, default=None)

    def follow_clock(self, lease: timedelta, now: datetime) -> None:
        """As ``quota_follow_clock``."""
        for held in self.reservations.values():
            if held.expires_at > now + lease + _MINUTE:
                held.expires_at = now + lease
        for scope in self._scopes.values():
            if scope.refilled_at is not None and scope.refilled_at > now + _MINUTE:
                scope.refilled_at = now
            if scope.month > _next_month(month_of(now)):
                scope.month = month_of(now)

    def month_left(self, scope_ids: Iterable[UUID], now: datetime) -> list[MonthLeft]:
        """As the statement ``month_left``."""
        ends_at = datetime.combine(_next_month(month_of(now)), time(), UTC)
        scopes = [self._scopes[scope_id] for scope_id in scope_ids if scope_id in self._scopes]
        for scope in scopes:
            scope.move_to(now)
        return [
            MonthLeft(
                scope_kind=scope.kind,
                tokens=scope.tokens_left,
                cost_micro=scope.cost_left_micro,
                lasts_us=(ends_at - now) // _MICROSECOND,
            )
            for scope in sorted(scopes, key=lambda scope: scope.kind)
            if not scope.num_running
        ]

    def balances(self, scope_ids: Iterable[UUID], now: datetime) -> list[Balance]:
        """As the statement ``balances``."""
        found = {key: self._scopes[key] for key in sorted(scope_ids) if key in self._scopes}
        for scope in found.values():
            scope.move_to(now)
        return [
            Balance(
                scope_id=scope_id,
                at=now,
                requests_used=scope.requests_used,
                tokens_used=scope.tokens_used,
                num_running=scope.num_running,
                month_tokens=scope.month_tokens,
                month_cost_micro=scope.month_cost_micro,
            )
            for scope_id, scope in found.items()
        ]
