"""Bodies of ``/admin/v1``. Times are Unix seconds; unknown fields are refused."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from gateway.schemas.shown import Shown, seconds
from tenants.limits import Limits
from tenants.shared import EngineRecord
from tenants.types import Scope, UsageEvent, UsageStatus, UsageSum
from tenants.webhooks import DeliveryState


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
    conversation_days: int | UnsetType | None = UNSET
    """null: as the server's settings say; 0: nothing is kept."""


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
    user_name: str | None = None
    """Who will use it: all keys of a user find the same conversations."""


class RotateKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace_seconds: int = 24 * 3600
    """How long the old key goes on working."""


class TenantObject(Shown, frozen=True, kw_only=True):
    id: str
    name: str
    weight: float
    priority: int
    created_at: int
    disabled_at: int | None
    conversation_days: int | None
    object: Literal["tenant"] = "tenant"


class TenantDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    deleted: bool = True
    object: Literal["tenant.deleted"] = "tenant.deleted"


class ProjectObject(Shown, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    is_default: bool
    created_at: int
    object: Literal["project"] = "project"


class KeyObject(Shown, frozen=True, kw_only=True):
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
    user_name: str | None
    key: str | UnsetType = UNSET
    """The text to hand to its user: in the answer that makes it, and never again."""
    object: Literal["api_key"] = "api_key"


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    """What the tenant's keys ask for as ``model``."""
    path: str
    """Its folder in PEFT's layout, below ``models.adapters_dir``."""
    model: str | None = None
    """The model that it changes; needed if several of the server's take adapters."""


class AdapterObject(Shown, frozen=True, kw_only=True):
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


class AdapterDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    deleted: bool = True
    object: Literal["adapter.deleted"] = "adapter.deleted"


class CreateWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    events: tuple[str, ...] = ()
    """The types of events to send; by default all."""
    tenant_id: str | None = None
    """Whose events to send; by default those of all tenants and of the engines."""


class UpdateWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays."""

    url: str | None = None
    events: tuple[str, ...] | None = None
    disabled: bool | None = None


class WebhookObject(Shown, frozen=True, kw_only=True):
    id: str
    tenant_id: str | None
    """null: the deployment's."""
    url: str
    events: tuple[str, ...]
    """Empty: all."""
    created_at: int
    disabled_at: int | None
    old_secret_until: int | None
    """Until then the secret before the last rotation signs too."""
    secret: str | UnsetType = UNSET
    """What signatures are checked with: in the answers that make it."""
    object: Literal["webhook"] = "webhook"


class WebhookTest(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str
    """The ``webhook-id`` that the receiver gets."""
    object: Literal["webhook.test"] = "webhook.test"


class DeliveryObject(Shown, frozen=True, kw_only=True):
    """An event that is sent to a webhook, or was in the last week."""

    event_id: str
    type: str
    state: DeliveryState
    num_attempts: int
    last_answer: str | None
    """The status of the last answer, or why there was none."""
    due_at: int
    """When a pending one is tried again."""
    created_at: int
    ended_at: int | None
    object: Literal["webhook.delivery"] = "webhook.delivery"


class AllowMcpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    """As responses name it in ``server_url``."""
    allow_private: bool = False
    """Whether it may be at an address that is not public."""


class McpServerObject(Shown, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    url: str
    allow_private: bool
    created_at: int
    object: Literal["mcp_server"] = "mcp_server"


class McpServerDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str
    deleted: bool = True
    object: Literal["mcp_server.deleted"] = "mcp_server.deleted"


class LimitsObject(msgspec.Struct, frozen=True, kw_only=True):
    scope_kind: str
    scope_id: str
    limits: Limits
    object: Literal["limits"] = "limits"


class BudgetObject(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str
    tenant_name: str
    scope_kind: str
    scope_id: str
    limits: Limits
    used: dict[str, int]
    """By the name of the limit, with what running requests hold."""
    object: Literal["budget"] = "budget"


class RefusalObject(Shown, frozen=True, kw_only=True):
    """How often requests of a key were refused with a code."""

    tenant_id: str
    tenant_name: str | None
    key_id: str
    key_name: str | None
    code: str
    times: int
    last_at: int
    object: Literal["refusal"] = "refusal"


class UsageObject(Shown, frozen=True, kw_only=True, omit_defaults=True):
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
    def of(cls, row: UsageSum, **given: Any) -> Self:
        total = row.prompt_tokens + row.completion_tokens
        return super().of(row, total_tokens=total, start_time=seconds(row.start), **given)


class UsageRowObject(Shown, frozen=True, kw_only=True):
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
    endpoint: str | None
    """The path that it came by; None if an older version wrote it."""
    object: Literal["usage.request"] = "usage.request"

    @classmethod
    def of(cls, row: UsageEvent, **given: Any) -> Self:
        ended_at = row.created_at.timestamp()
        return super().of(row, id=str(row.request_id), created_at=ended_at, **given)


class StreamObject(Shown, frozen=True, kw_only=True):
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


class AuditObject(Shown, frozen=True, kw_only=True):
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


class TenantLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant has in this worker at the moment."""

    tenant_id: str
    name: str
    num_running: int
    prompt_tokens: int
    generated_tokens: int


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The engines as a whole, and who uses them through this worker."""

    ready: bool
    """Whether one serves."""
    stats: dict[str, Any]
    """The sums over all."""
    engines: dict[str, Literal["ready", "drained", "away"]]
    """Each one, by name."""
    tenants: list[TenantLoad]
    object: Literal["engine"] = "engine"


class EngineObject(Shown, frozen=True, kw_only=True):
    """An engine of the registry."""

    id: str
    model: str
    state: Literal["loading", "ready", "drained", "lost"]
    address: str | None
    """Where gateways of other hosts reach it; null: it serves its own host only."""
    running: int
    waiting: int
    capacity: int
    """The most requests that it runs at once."""
    node: str | None
    """Where it runs."""
    version: str
    epoch: str
    """A later one for each start, as a number in digits."""
    started_at: int | None
    object: Literal["fleet.engine"] = "fleet.engine"

    @classmethod
    def of(cls, row: EngineRecord, **given: Any) -> Self:
        counts = {"running": row.num_running, "waiting": row.num_waiting}
        return super().of(row, state=row.condition, epoch=str(row.epoch), **counts, **given)


class ListObject(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Any]
    has_more: bool = False
    next: str | None = None
    """What to send as ``after`` for the rows that follow."""
    object: Literal["list"] = "list"
