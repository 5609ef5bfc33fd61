"""Bodies of ``/admin/v1``. Times are Unix seconds; unknown fields are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenants.limits import Limits
from tenants.types import (
    Adapter,
    ApiKey,
    AuditEntry,
    Project,
    Scope,
    Tenant,
    UsageEvent,
    UsageStatus,
    UsageSum,
)


class CreateTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0
    priority: int = 0


class UpdateTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays."""

    name: str | None = None
    weight: float | None = None
    priority: int | None = None
    disabled: bool | None = None


class NamedProject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class CreateKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = "default"
    scopes: tuple[Scope, ...] = ("chat",)
    project_id: str | None = None
    """None for the tenant's default project."""
    allowed_models: tuple[str, ...] = ()
    model_aliases: dict[str, str] = {}
    expires_at: int | None = None


class RotateKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace_seconds: int = 24 * 3600
    """How long the old key goes on working."""


class TenantObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    weight: float
    priority: int
    created_at: int
    disabled_at: int | None
    object: Literal["tenant"] = "tenant"

    @classmethod
    def of(cls, tenant: Tenant) -> TenantObject:
        return cls(
            id=str(tenant.id),
            name=tenant.name,
            weight=tenant.weight,
            priority=tenant.priority,
            created_at=int(tenant.created_at.timestamp()),
            disabled_at=seconds(tenant.disabled_at),
        )


class ProjectObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    is_default: bool
    created_at: int
    object: Literal["project"] = "project"

    @classmethod
    def of(cls, project: Project) -> ProjectObject:
        return cls(
            id=str(project.id),
            tenant_id=str(project.tenant_id),
            name=project.name,
            is_default=project.is_default,
            created_at=int(project.created_at.timestamp()),
        )


class KeyObject(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret, but for the one answer that makes it."""

    id: str
    public_id: str
    tenant_id: str
    project_id: str
    name: str
    scopes: tuple[Scope, ...]
    allowed_models: tuple[str, ...]
    model_aliases: dict[str, str]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    revoke_at: int | None
    last_used_at: int | None
    replaces_key_id: str | None
    key: str | UnsetType = UNSET
    """The text to hand to its user: in the answer that makes it, and never again."""
    object: Literal["api_key"] = "api_key"

    @classmethod
    def of(cls, key: ApiKey, text: str | UnsetType = UNSET) -> KeyObject:
        return cls(
            id=str(key.id),
            public_id=key.public_id,
            tenant_id=str(key.tenant_id),
            project_id=str(key.project_id),
            name=key.name,
            scopes=key.scopes,
            allowed_models=key.allowed_models,
            model_aliases=key.model_aliases,
            created_at=int(key.created_at.timestamp()),
            expires_at=seconds(key.expires_at),
            revoked_at=seconds(key.revoked_at),
            revoke_at=seconds(key.revoke_at),
            last_used_at=seconds(key.last_used_at),
            replaces_key_id=None if key.replaces_key_id is None else str(key.replaces_key_id),
            key=text,
        )


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    """What the tenant's keys ask for as ``model``."""
    path: str
    """Its folder in PEFT's layout, below ``models.adapters_dir``."""


class AdapterObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    parent: str
    """The served model that it changes."""
    path: str
    base_model: str | None
    """What it was made for, as its files name it."""
    rank: int
    digest: str
    created_at: int
    object: Literal["adapter"] = "adapter"

    @classmethod
    def of(cls, adapter: Adapter) -> AdapterObject:
        return cls(
            id=str(adapter.id),
            tenant_id=str(adapter.tenant_id),
            name=adapter.name,
            parent=adapter.parent,
            path=adapter.path,
            base_model=adapter.base_model,
            rank=adapter.rank,
            digest=adapter.digest,
            created_at=int(adapter.created_at.timestamp()),
        )


class AdapterDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    deleted: bool = True
    object: Literal["adapter.deleted"] = "adapter.deleted"


class LimitsObject(msgspec.Struct, frozen=True, kw_only=True):
    scope_kind: str
    scope_id: str
    limits: Limits
    object: Literal["limits"] = "limits"


class UsageObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sum; groups that were not asked for are left out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    requests: int
    cost_micro: int
    start_time: int | None = None
    tenant_id: str | None = None
    tenant_name: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None

    @classmethod
    def of(cls, usage: UsageSum, tenant_name: str | None) -> UsageObject:
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            requests=usage.requests,
            cost_micro=usage.cost_micro,
            start_time=seconds(usage.start),
            tenant_id=_text(usage.tenant_id),
            tenant_name=tenant_name,
            project_id=_text(usage.project_id),
            key_id=_text(usage.key_id),
            model=usage.model,
        )


class UsageRowObject(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the ledger."""

    id: str
    tenant_id: str
    key_id: str
    model: str
    status: UsageStatus
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micro: int
    created_at: float
    """When it ended."""
    end_user: str | None
    object: Literal["usage.request"] = "usage.request"

    @classmethod
    def of(cls, event: UsageEvent) -> UsageRowObject:
        return cls(
            id=str(event.request_id),
            tenant_id=str(event.tenant_id),
            key_id=str(event.key_id),
            model=event.model,
            status=event.status,
            prompt_tokens=event.prompt_tokens,
            cached_tokens=event.cached_tokens,
            completion_tokens=event.completion_tokens,
            cost_micro=event.cost_micro,
            created_at=event.created_at.timestamp(),
            end_user=event.end_user,
        )


class StreamObject(msgspec.Struct, frozen=True, kw_only=True):
    """A request that runs, or waits for its turn."""

    id: str
    """The request's id, by which it can be ended."""
    tenant_id: str
    tenant_name: str
    key_id: str
    model: str
    state: Literal["queued", "running"]
    prompt_tokens: int
    generated_tokens: int
    """Exact for requests of the worker that answers, else as of up to ten seconds ago."""
    created_at: int
    is_here: bool
    """Whether the worker that answers runs it."""
    object: Literal["stream"] = "stream"


class AuditObject(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: str
    tenant_name: str | None
    at: int
    actor: str
    action: str
    object_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    object: Literal["audit_entry"] = "audit_entry"

    @classmethod
    def of(cls, entry: AuditEntry, tenant_name: str | None) -> AuditObject:
        return cls(
            id=entry.id,
            tenant_id=str(entry.tenant_id),
            tenant_name=tenant_name,
            at=int(entry.at.timestamp()),
            actor=entry.actor,
            action=entry.action,
            object_id=entry.object_id,
            before=entry.before,
            after=entry.after,
        )


class TenantLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant has in this worker at the moment."""

    tenant_id: str
    name: str
    num_running: int
    prompt_tokens: int
    generated_tokens: int


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as a whole, and who uses it through this worker."""

    ready: bool
    stats: dict[str, Any]
    tenants: list[TenantLoad]
    object: Literal["engine"] = "engine"


class ListObject(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Any]
    has_more: bool = False
    next: str | None = None
    """What to send as ``after`` for the rows that follow."""
    object: Literal["list"] = "list"


def seconds(moment: datetime | None) -> int | None:
    """Unix time; None stays None."""
    return None if moment is None else int(moment.timestamp())


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
