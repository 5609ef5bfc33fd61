"""Turns rows of the database into the records of ``tenants.types`` and ``tenants.limits``, and
records into the arguments of statements."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from tenants.connections import Row
from tenants.limits import (
    BUDGETS,
    BudgetUse,
    Limits,
    MonthLeft,
    QuotaAnswer,
    QuotaRequest,
    ScopeKind,
    ScopePolicy,
    Window,
)
from tenants.types import (
    Adapter,
    ApiKey,
    AuditEntry,
    KeyRecord,
    Principal,
    Tenant,
    UsageEvent,
)

_MICROSECOND = timedelta(microseconds=1)


def key_of(row: Row) -> ApiKey:
    values = {name: row[name] for name in ApiKey.__struct_fields__}
    values["scopes"] = tuple(row["scopes"])
    values["allowed_models"] = tuple(row["allowed_models"])
    values["model_aliases"] = msgspec.json.decode(row["model_aliases"], type=dict[str, str])
    return ApiKey(**values)


def record_of(row: Row) -> KeyRecord:
    tenant = Tenant(
        id=row["tenant_id"],
        name=row["tenant_name"],
        weight=row["weight"],
        priority=row["priority"],
        created_at=row["tenant_created_at"],
        disabled_at=row["disabled_at"],
        conversation_days=row["conversation_days"],
    )
    policies = msgspec.json.decode(row["policies"] or "[]", type=list[_StoredPolicy])
    principal = Principal(
        tenant=tenant,
        key=key_of(row),
        policies=tuple(policy.known() for policy in policies),
        adapters=msgspec.json.decode(row["adapters"] or "[]", type=tuple[Adapter, ...]),
    )
    return KeyRecord(principal, row["key_hash"])


class _StoredPolicy(msgspec.Struct):
    scope_kind: ScopeKind
    scope_id: UUID
    limits: dict[str, Any]

    def known(self) -> ScopePolicy:
        """The limits that this version knows: keys with limits of a newer version keep working."""
        known = {name: self.limits.get(name) for name in Limits.__struct_fields__}
        return ScopePolicy(
            scope_kind=self.scope_kind,
            scope_id=self.scope_id,
            limits=msgspec.convert(known, Limits),
        )


def policy_of(row: Row) -> ScopePolicy:
    return ScopePolicy(
        scope_kind=row["scope_kind"],
        scope_id=row["scope_id"],
        limits=Limits(**{name: row[name] for name in Limits.__struct_fields__}),
    )


def budget_of(row: Row) -> BudgetUse:
    columns = (
        "used_requests",
        "used_tokens",
        "used_slots",
        "used_month_tokens",
        "used_month_cost_micro",
    )
    return BudgetUse(
        tenant_id=row["tenant_id"],
        tenant_name=row["tenant_name"],
        policy=policy_of(row),
        used={
            name: max(0, row[column])
            for name, column in zip(BUDGETS, columns, strict=True)
            if row[name] is not None
        },
    )


def audit_entry_of(row: Row) -> AuditEntry:
    states = {
        name: None if row[name] is None else msgspec.json.decode(row[name])
        for name in ("before", "after")
    }
    return AuditEntry(**{**row, **states})


def answer_of(row: Row) -> QuotaAnswer:
    return QuotaAnswer(
        state=row["state"],
        completion_tokens=row["completion_tokens"] or 0,
        refused_by=row["refused_by"],
        scope_kind=row["scope_kind"],
        wait_us=row["wait_us"],
        requests=_window(row, "requests"),
        tokens=_window(row, "tokens"),
    )


def month_left_of(row: Row) -> MonthLeft:
    return MonthLeft(
        scope_kind=row["scope_kind"],
        tokens=row["tokens"],
        cost_micro=row["cost_micro"],
        lasts_us=row["lasts"] // _MICROSECOND,
    )


def _window(row: Row, name: str) -> Window | None:
    if row[f"limit_{name}"] is None:
        return None
    return Window(
        limit=row[f"limit_{name}"],
        remaining=row[f"remaining_{name}"],
        reset_us=row[f"reset_{name}_us"],
    )


def event_values(event: UsageEvent) -> tuple[object, ...]:
    """The arguments of ``quota_settle`` for one request: its fields, in their order."""
    return msgspec.structs.astuple(event)


request_values: Callable[[QuotaRequest], tuple[object, ...]] = attrgetter(
    *("request_id", "tenant_id", "project_id", "key_id", "model", "prompt_tokens"),
    *("completion_tokens", "price.prompt", "price.completion", "owner", "lease", "endpoint"),
)
"""The arguments of ``quota_reserve``."""
