"""The records of multi-tenancy: tenants, projects, keys, adapters, principals, usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Required, TypedDict, get_args
from uuid import UUID

import msgspec

from tenants.errors import InvalidValue
from tenants.limits import ScopePolicy

Scope = Literal["chat", "responses", "usage", "billing", "view", "admin", "owner"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
UsageStatus = Literal["stop", "length", "tool_calls", "cancelled", "disconnected", "error"]
USAGE_STATUSES: tuple[UsageStatus, ...] = get_args(UsageStatus)

MAX_COST_MICRO = 10**15
MAX_TOKENS = 2**31 - 1
"""Most tokens of one request; sums are 64 bits wide."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A customer, who owns keys, and has a share of the engine and a prefix cache of its own."""

    id: UUID
    name: str
    weight: float = 1.0
    """Share of the engine under contention, relative to the other tenants'."""
    priority: int = 0
    """Priority class; lower goes first."""
    created_at: datetime
    disabled_at: datetime | None = None
    """When the tenant was disabled: since then all its keys are refused."""
    conversation_days: int | None = None
    """For how many days after its last use a conversation is kept; 0: not at all. None: as the
    server's settings say."""


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a tenant that keys belong to, and that limits and usage can be kept for."""

    id: UUID
    tenant_id: UUID
    name: str
    is_default: bool = False
    """The project of keys that name none; every tenant has one from the start."""
    created_at: datetime


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret, which is shown only once."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    public_id: str
    """The 12 characters that name the key in logs."""
    name: str
    scopes: tuple[Scope, ...]
    allowed_models: tuple[str, ...] = ()
    """Served models the key may use, after its aliases; empty: all."""
    model_aliases: dict[str, str] = {}
    """Names the key's clients may ask for, and the served models they mean."""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoke_at: datetime | None = None
    """When its grace period after a rotation ends: from then on it counts as revoked."""
    last_used_at: datetime | None = None
    """Accurate to about a minute: uses are written in batches."""
    replaces_key_id: UUID | None = None
    user_name: str | None = None
    """Who uses it: all keys of a user find the same conversations."""


class KeyOptions(TypedDict, total=False):
    """What a new key may do, and whose it is, as ``ApiKey`` says."""

    name: Required[str]
    scopes: Required[Sequence[Scope]]
    expires_at: datetime | None
    project_id: UUID | None
    """Without it, the tenant's default project."""
    allowed_models: Sequence[str]
    model_aliases: Mapping[str, str]
    user_name: str | None


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's own variant of the served model (LoRA); its keys use it by its name."""

    id: UUID
    tenant_id: UUID
    name: str
    parent: str
    """The served model that it changes."""
    path: str
    """Its folder, below the folder of all adapters."""
    base_model: str | None = None
    """The model it was made for, as its files name it."""
    rank: int
    digest: str
    """Digest of its files when they were checked."""
    created_at: datetime


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server whose tools a tenant's responses may use."""

    id: UUID
    tenant_id: UUID
    url: str
    allow_private: bool = False
    """Whether it may be at an address that is not public, such as in a network of the operator."""
    created_at: datetime


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends a request: the result of authentication."""

    tenant: Tenant
    key: ApiKey
    policies: tuple[ScopePolicy, ...] = ()
    """Limits of its key, project and tenant, in this order; scopes without any are left out."""
    adapters: tuple[Adapter, ...] = ()
    """Its tenant's adapters, by name."""

    @property
    def priority(self) -> int:
        """The most specific scope's priority class; the tenant's own if none has one."""
        given = (policy.limits.priority for policy in self.policies)
        return next((value for value in given if value is not None), self.tenant.priority)

    @property
    def weight(self) -> float:
        """The most specific scope's share; the tenant's own if none has one."""
        given = (policy.limits.weight for policy in self.policies)
        return next((value for value in given if value is not None), self.tenant.weight)

    @property
    def max_cached_blocks(self) -> dict[str, int]:
        """The ceiling of each scope that has one, by the scope's id in hex."""
        return {
            policy.scope_id.hex: policy.limits.max_cached_blocks
            for policy in self.policies
            if policy.limits.max_cached_blocks is not None
        }


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What a store knows about a key, to authenticate it. ``repr`` hides the hash."""

    principal: Principal
    key_hash: bytes = field(repr=False)


class Refused(NamedTuple):
    """How often requests of a key were refused with a code."""

    tenant_id: UUID
    key_id: UUID
    code: str
    times: int
    last_at: datetime | None = None


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger: the usage of one request, written once."""

    request_id: UUID
    tenant_id: UUID
    key_id: UUID
    model: str
    status: UsageStatus
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    created_at: datetime
    end_user: str | None = None
    """The end user that the tenant named: the request's ``user``."""
    cost_micro: int = 0
    """Millionths of the currency of the prices."""
    endpoint: str | None = None
    """The path that the request came by, as the gateway's route table has it."""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            if not 0 <= getattr(self, name) <= MAX_TOKENS:
                raise InvalidValue(name, f"must be within 0..{MAX_TOKENS}")
        if not 0 <= self.cost_micro <= MAX_COST_MICRO:
            raise InvalidValue("cost_micro", f"must be within 0..{MAX_COST_MICRO}")
        if self.cached_tokens > self.prompt_tokens:
            raise InvalidValue("cached_tokens", "cannot exceed prompt_tokens")
        if self.status not in USAGE_STATUSES:
            raise InvalidValue("status", f"must be one of {', '.join(USAGE_STATUSES)}")
        if self.created_at.tzinfo is None:
            raise InvalidValue("created_at", "needs a time zone")


UsageGroup = Literal["tenant", "project", "key", "model"]
USAGE_GROUPS: tuple[UsageGroup, ...] = get_args(UsageGroup)
UsageBucket = Literal["hour", "day", "total"]
USAGE_BUCKETS: tuple[UsageBucket, ...] = get_args(UsageBucket)


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the ledger, grouped as asked; fields not grouped by are None."""

    start: datetime | None = None
    """Start of the hour or day; None when the sum is over the whole time span."""
    tenant_id: UUID | None = None
    project_id: UUID | None = None
    key_id: UUID | None = None
    model: str | None = None
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_micro: int = 0


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of the ledger: those of ``start <= created_at < end``, and of what is not None."""

    start: datetime
    end: datetime
    tenant_id: UUID | None = None
    key_id: UUID | None = None
    model: str | None = None
    status: UsageStatus | None = None
    end_user: str | None = None
    endpoint: str | None = None


class RunningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation of any worker, as it is in the database."""

    request_id: UUID
    tenant_id: UUID
    tenant_name: str
    key_id: UUID
    key_name: str
    public_id: str
    """That of the key."""
    model: str
    state: Literal["queued", "running"]
    owner: UUID
    prompt_tokens: int
    generated_tokens: int
    """As of the last renewal of the lease."""
    created_at: datetime


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a tenant, project, key, limit or adapter: by whom, and the row before and
    after."""

    id: int
    """Ascending in time."""
    tenant_id: UUID
    at: datetime
    actor: str
    action: str
    """``tenant.create``, ``key.revoke``, ``limits.update``, ``stream.kill``, …"""
    object_id: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
