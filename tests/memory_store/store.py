"""The store in memory, for tests that need no database. It behaves as ``tenants.store`` does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Unpack, cast
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET, UnsetType

from tenants.errors import (
    ObjectExists,
    ObjectNotFound,
)
from tenants.limits import (
    SCOPE_KINDS,
    Balance,
    BudgetUse,
    Limits,
    MonthLeft,
    QuotaAnswer,
    QuotaRequest,
    ScopeKind,
    ScopePolicy,
)
from tenants.local_quota import Reservation
from tenants.names import (
    check_aliases,
    check_bucket,
    check_days,
    check_grace,
    check_groups,
    check_key,
    check_models,
    check_priority,
    check_range,
    check_scopes,
    check_weight,
    normalize_name,
)
from tenants.store import NO_TIME, Store
from tenants.types import (
    ApiKey,
    AuditEntry,
    KeyOptions,
    KeyRecord,
    Principal,
    Project,
    Refused,
    RunningRequest,
    Tenant,
    UsageBucket,
    UsageEvent,
    UsageFilter,
    UsageGroup,
    UsageSum,
)
from tests.memory_store.adapters import MemoryAdapters
from tests.memory_store.audit import MemoryAudit
from tests.memory_store.batch_queue import NoBatches
from tests.memory_store.chats import MemoryChats
from tests.memory_store.conversations import MemoryConversations
from tests.memory_store.files import MemoryFiles
from tests.memory_store.lists import contains, page_of, place_of, summed
from tests.memory_store.mcp_servers import MemoryMcpServers
from tests.memory_store.quota import MemoryQuota
from tests.memory_store.shared import MemoryShared
from tests.memory_store.webhooks import MemoryWebhooks


def _now() -> datetime:
    return datetime.now(UTC)


class _StoredKey(NamedTuple):
    key: ApiKey
    key_hash: bytes


class MemoryStore(MemoryAdapters, MemoryMcpServers, Store):
    """A store whose contents end with the process."""

    _now: Callable[[], datetime]
    shared: MemoryShared
    conversations: MemoryConversations

    def __init__(self, *, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._tenants: dict[UUID, Tenant] = {}
        self._projects: dict[UUID, Project] = {}
        self._keys: dict[str, _StoredKey] = {}
        self._adapters = {}
        self._ledger: dict[UUID, UsageEvent] = {}
        self._quota = MemoryQuota()
        self.conversations = MemoryConversations(now, self._tenants, self._of_one_user)
        self.webhooks = MemoryWebhooks(now, self._tenants)
        self.files = MemoryFiles(now)
        self.batch_queue = NoBatches()
        self.chats = MemoryChats(now, self._tenants)
        self.shared = MemoryShared(
            now, self._tenants, self.conversations.delete_old, self.chats.delete_expired
        )
        self._audit = MemoryAudit(now)
        self._mcp_servers = {}
        self._deleted: set[UUID] = set()
        self._refusals: list[tuple[datetime, Refused]] = []

    def _of_one_user(self, key_id: UUID) -> set[UUID]:
        """The keys that find each other's conversations."""
        found, keys = {key_id}, [stored.key for stored in self._keys.values()]
        while True:
            known = [key for key in keys if key.id in found]
            users = {key.user_name for key in known} - {None}
            more = {key.replaces_key_id for key in known} - {None}
            more |= {
                key.id
                for key in keys
                if key.user_name in users and key.tenant_id == known[0].tenant_id
            }
            if more <= found:
                return found
            found |= cast("set[UUID]", more)

    async def create_tenant(self, name: str, *, weight: float = 1.0, priority: int = 0) -> Tenant:
        tenant = Tenant(
            id=uuid4(),
            name=normalize_name("name", name),
            weight=check_weight(weight),
            priority=check_priority(priority),
            created_at=self._now(),
        )
        self._check_free(tenant.name)
        self._tenants[tenant.id] = tenant
        self._audit.note("tenant", None, tenant)
        self._add_project(tenant.id, "default", is_default=True)
        return tenant

    def _check_free(self, name: str, tenant_id: UUID | None = None) -> None:
        for other in self._tenants.values():
            if other.name == name and other.id != tenant_id:
                raise ObjectExists("tenant", name)

    async def get_tenant(self, tenant: str | UUID) -> Tenant:
        wanted = tenant if isinstance(tenant, UUID) else normalize_name("name", tenant)
        for found in self._tenants.values():
            if wanted in (found.id, found.name) and found.id not in self._deleted:
                return found
        raise ObjectNotFound("tenant", tenant)

    async def list_tenants(
        self, *, search: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Sequence[Tenant]:
        there = (one for one in self._tenants.values() if one.id not in self._deleted)
        found = [tenant for tenant in there if contains(tenant.name, search)]
        return page_of(found, lambda tenant: tenant.name, after, limit)

    async def update_tenant(
        self,
        tenant_id: UUID,
        *,
        name: str | None = None,
        weight: float | None = None,
        priority: int | None = None,
        disabled: bool | None = None,
        conversation_days: int | UnsetType | None = UNSET,
    ) -> Tenant:
        changes: dict[str, object] = {}
        if name is not None:
            changes["name"] = normalize_name("name", name)
        if weight is not None:
            changes["weight"] = check_weight(weight)
        if priority is not None:
            changes["priority"] = check_priority(priority)
        if conversation_days is not UNSET:
            changes["conversation_days"] = check_days(conversation_days)
        tenant = self._tenants.get(tenant_id)
        if tenant is None or tenant_id in self._deleted:
            raise ObjectNotFound("tenant", tenant_id)
        if disabled is not None:
            changes["disabled_at"] = (tenant.disabled_at or self._now()) if disabled else None
        changed = msgspec.structs.replace(tenant, **changes)
        self._check_free(changed.name, tenant_id)
        self._tenants[tenant_id] = changed
        self._audit.note("tenant", tenant, changed)
        return changed

    async def delete_tenant(self, tenant_id: UUID) -> None:
        await self.update_tenant(tenant_id, name=f"deleted {tenant_id}", disabled=True)
        self._deleted.add(tenant_id)
        for key in await self.list_keys(tenant_id):
            await self.revoke_key(key.public_id)
            self._change_key(key.public_id, name="deleted", user_name=None)
        self.conversations.forget(tenant_id)
        self._refusals = [kept for kept in self._refusals if kept[1].tenant_id != tenant_id]

    async def create_project(self, tenant_id: UUID, name: str) -> Project:
        name = normalize_name("name", name)
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        if any(project.name == name for project in await self.list_projects(tenant_id)):
            raise ObjectExists("project", name)
        return self._add_project(tenant_id, name)

    def _add_project(self, tenant_id: UUID, name: str, *, is_default: bool = False) -> Project:
        project = Project(
            id=uuid4(),
            tenant_id=tenant_id,
            name=name,
            is_default=is_default,
            created_at=self._now(),
        )
        self._projects[project.id] = project
        self._audit.note("project", None, project)
        return project

    async def list_projects(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Project]:
        own = [project for project in self._projects.values() if project.tenant_id == tenant_id]
        found = [project for project in own if contains(project.name, search)]
        return page_of(found, lambda project: project.name, after, limit)

    async def rename_project(self, tenant_id: UUID, project_id: UUID, name: str) -> Project:
        name = normalize_name("name", name)
        own = {project.id: project for project in await self.list_projects(tenant_id)}
        if project_id not in own:
            raise ObjectNotFound("project", project_id)
        if any(other.name == name and other.id != project_id for other in own.values()):
            raise ObjectExists("project", name)
        project = msgspec.structs.replace(own[project_id], name=name)
        self._projects[project_id] = project
        self._audit.note("project", own[project_id], project)
        return project

    async def create_key(
        self,
        tenant_id: UUID,
        *,
        public_id: str,
        key_hash: bytes,
        **options: Unpack[KeyOptions],
    ) -> ApiKey:
        expires_at, user_name = options.get("expires_at"), options.get("user_name")
        check_key(public_id, key_hash, expires_at)
        key = ApiKey(
            id=uuid4(),
            tenant_id=tenant_id,
            project_id=tenant_id,  # until it is known that the tenant exists
            public_id=public_id,
            name=normalize_name("name", options["name"]),
            scopes=check_scopes(options["scopes"]),
            created_at=self._now(),
            expires_at=expires_at,
            allowed_models=check_models(options.get("allowed_models", ())),
            model_aliases=check_aliases(options.get("model_aliases", {})),
            user_name=None if user_name is None else normalize_name("user_name", user_name),
        )
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        project = self._project(tenant_id, options.get("project_id"))
        return self._add_key(msgspec.structs.replace(key, project_id=project.id), key_hash)

    def _project(self, tenant_id: UUID, project_id: UUID | None) -> Project:
        for project in self._projects.values():
            wanted = project.is_default if project_id is None else project.id == project_id
            if wanted and project.tenant_id == tenant_id:
                return project
        raise ObjectNotFound("project", project_id)

    def _add_key(self, key: ApiKey, key_hash: bytes) -> ApiKey:
        if key.public_id in self._keys:
            raise ObjectExists("key", key.public_id)
        self._keys[key.public_id] = _StoredKey(key, key_hash)
        self._audit.note("key", None, key)
        return key

    async def create_first_admin_key(
        self, tenant_name: str, *, public_id: str, key_hash: bytes, name: str
    ) -> None:
        check_key(public_id, key_hash, None)
        if any("owner" in stored.key.scopes for stored in self._keys.values()):
            raise ObjectExists("admin key")
        try:
            tenant = await self.get_tenant(tenant_name)
        except ObjectNotFound:
            tenant = await self.create_tenant(tenant_name)
        await self.create_key(
            tenant.id, public_id=public_id, key_hash=key_hash, name=name, scopes=["owner"]
        )

    async def rotate_key(
        self, public_id: str, *, new_public_id: str, key_hash: bytes, grace: timedelta
    ) -> ApiKey:
        check_key(new_public_id, key_hash, None)
        now = self._now()
        end = now + check_grace(grace)
        old = self._keys.get(public_id)
        if old is None or old.key.revoked_at is not None:
            raise ObjectNotFound("key", public_id)
        if old.key.revoke_at is not None and old.key.revoke_at <= now:
            raise ObjectNotFound("key", public_id)
        new = msgspec.structs.replace(
            old.key,
            id=uuid4(),
            public_id=new_public_id,
            created_at=now,
            revoke_at=None,
            last_used_at=None,
            replaces_key_id=old.key.id,
        )
        self._add_key(new, key_hash)
        self._change_key(public_id, revoke_at=min(old.key.revoke_at or end, end))
        return new

    def _change_key(self, public_id: str, **changes: object) -> ApiKey:
        stored = self._keys[public_id]
        key = msgspec.structs.replace(stored.key, **changes)
        self._keys[public_id] = _StoredKey(key, stored.key_hash)
        self._audit.note("key", stored.key, key)
        return key

    async def find_key(self, public_id: str) -> KeyRecord | None:
        stored = self._keys.get(public_id)
        if stored is None:
            return None
        key = stored.key
        principal = Principal(
            tenant=self._tenants[key.tenant_id],
            key=key,
            policies=self._quota.policies((key.id, key.project_id, key.tenant_id)),
            adapters=tuple(await self.list_adapters(key.tenant_id)),
        )
        return KeyRecord(principal, stored.key_hash)

    async def list_keys(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: tuple[datetime, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[ApiKey]:
        own = [stored.key for stored in self._keys.values() if stored.key.tenant_id == tenant_id]
        found = [key for key in own if contains(f"{key.name} {key.public_id}", search)]
        return page_of(found, lambda key: (key.created_at, key.public_id), after, limit)

    async def names(self, ids: Collection[UUID]) -> Mapping[UUID, str]:
        names = {tenant.id: tenant.name for tenant in self._tenants.values()}
        names |= {project.id: project.name for project in self._projects.values()}
        for stored in self._keys.values():
            names[stored.key.id] = f"{stored.key.name} ({stored.key.public_id})"
        return {one: names[one] for one in ids if one in names}

    async def revoke_key(self, public_id: str) -> ApiKey:
        stored = self._keys.get(public_id)
        if stored is None:
            raise ObjectNotFound("key", public_id)
        return self._change_key(public_id, revoked_at=stored.key.revoked_at or self._now())

    async def touch_keys(self, last_used: Mapping[UUID, datetime]) -> None:
        for public_id, stored in self._keys.items():
            used_at = last_used.get(stored.key.id)
            if used_at is not None:
                latest = max(used_at, stored.key.last_used_at or used_at)
                self._change_key(public_id, last_used_at=latest)

    async def record_usage(self, event: UsageEvent) -> bool:
        normalize_name("model", event.model)
        if event.end_user is not None:
            normalize_name("end_user", event.end_user)
        key = self._key(event.tenant_id, event.key_id)
        is_new = event.request_id not in self._ledger
        tokens = event.prompt_tokens + event.completion_tokens if is_new else 0
        cost_micro = event.cost_micro if is_new else 0
        held = self._quota.close(event.request_id, tokens, cost_micro, self._now())
        if is_new:
            self._ledger[event.request_id] = event
            if not held:
                scope_ids = (key.id, key.project_id, key.tenant_id)
                self._quota.charge(scope_ids, tokens, cost_micro, self._now())
        return is_new

    def _key(self, tenant_id: UUID, key_id: UUID) -> ApiKey:
        for stored in self._keys.values():
            if stored.key.id == key_id and stored.key.tenant_id == tenant_id:
                return stored.key
        raise ObjectNotFound("key", key_id)

    async def put_limits(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: UUID, limits: Limits
    ) -> None:
        if scope_id not in self._scopes(tenant_id, scope_kind):
            raise ObjectNotFound("scope", f"{scope_kind} {scope_id}")
        before = self._policy_state(tenant_id, scope_id)
        self._quota.put(scope_kind, scope_id, limits, self._now())
        after = self._policy_state(tenant_id, scope_id)
        verb = "create" if before is None else "update"
        if before != after:
            self._audit.record(f"limits.{verb}", tenant_id, str(scope_id), before, after)

    async def list_limits(self, tenant_id: UUID) -> Sequence[ScopePolicy]:
        scope_ids = (
            scope_id for kind in SCOPE_KINDS for scope_id in sorted(self._scopes(tenant_id, kind))
        )
        return list(self._quota.policies(scope_ids))

    def _scopes(self, tenant_id: UUID, kind: ScopeKind) -> list[UUID]:
        if kind == "tenant":
            return [tenant_id] if tenant_id in self._tenants else []
        if kind == "project":
            own = self._projects.values()
            return [project.id for project in own if project.tenant_id == tenant_id]
        keys = (stored.key for stored in self._keys.values())
        return [key.id for key in keys if key.tenant_id == tenant_id]

    async def reserve(self, request: QuotaRequest) -> QuotaAnswer:
        self._key(request.tenant_id, request.key_id)
        return self._quota.reserve(request, self._now())

    async def list_budgets(self, tenant_id: UUID | None, *, limit: int) -> Sequence[BudgetUse]:
        owners = {tenant.id: tenant.id for tenant in self._tenants.values()}
        owners |= {project.id: project.tenant_id for project in self._projects.values()}
        owners |= {stored.key.id: stored.key.tenant_id for stored in self._keys.values()}
        found = [
            BudgetUse(
                tenant_id=owners[policy.scope_id],
                tenant_name=self._tenants[owners[policy.scope_id]].name,
                policy=policy,
                used=used,
            )
            for policy in self._quota.policies(owners)
            if tenant_id in (None, owners[policy.scope_id])
            and (used := self._quota.used(policy.scope_id, self._now()))
        ]
        found.sort(key=lambda one: (-one.share, one.tenant_name, one.policy.scope_kind))
        return found[:limit]

    async def month_left(self, tenant_id: UUID, scope_ids: Sequence[UUID]) -> Sequence[MonthLeft]:
        own = {scope_id for kind in SCOPE_KINDS for scope_id in self._scopes(tenant_id, kind)}
        return self._quota.month_left(own.intersection(scope_ids), self._now())

    async def balances(self, scope_ids: Sequence[UUID]) -> Sequence[Balance]:
        return self._quota.balances(set(scope_ids), self._now())

    async def extend(
        self,
        tenant_id: UUID,
        request_id: UUID,
        *,
        tokens: int,
        generated: int,
        lease: timedelta,
        patience_s: float = 0.0,
    ) -> int | None:
        if self._held(tenant_id, request_id) is None:
            return None
        return self._quota.extend(request_id, tokens, generated, lease, self._now())

    async def release(self, tenant_id: UUID, request_id: UUID) -> bool:
        if self._held(tenant_id, request_id) is None:
            return False
        return self._quota.release(request_id, self._now())

    def _held(self, tenant_id: UUID, request_id: UUID) -> Reservation | None:
        held = self._quota.reservations.get(request_id)
        return held if held is not None and held.request.tenant_id == tenant_id else None

    async def renew(
        self, owner: UUID, generated: Mapping[UUID, int], lease: timedelta
    ) -> set[UUID]:
        renewed = set()
        for request_id, num_generated in generated.items():
            held = self._quota.reservations.get(request_id)
            if held is None or held.request.owner != owner:
                continue
            held.expires_at = max(held.expires_at, self._now() + lease)
            held.generated_tokens = max(held.generated_tokens, num_generated)
            renewed.add(request_id)
        return renewed

    async def reap(self, *, patience: timedelta = NO_TIME) -> UUID | None:
        held = self._quota.expired(self._now(), patience)
        if held is None:
            return None
        request = held.request
        if held.is_running:
            await self.record_usage(
                UsageEvent(
                    request_id=request.request_id,
                    tenant_id=request.tenant_id,
                    key_id=request.key_id,
                    model=request.model,
                    status="error",
                    prompt_tokens=request.prompt_tokens,
                    cached_tokens=0,
                    completion_tokens=held.generated_tokens,
                    created_at=self._now(),
                    cost_micro=request.price.cost(request.prompt_tokens, 0, held.generated_tokens),
                    endpoint=request.endpoint,
                )
            )
        else:
            self._quota.release(request.request_id, self._now())
        return request.request_id

    async def clock(self) -> datetime:
        return self._now()

    async def follow_clock(self, lease: timedelta) -> None:
        self._quota.follow_clock(lease, self._now())
        self.shared.follow_clock(lease)

    async def sum_usage(
        self,
        tenant_id: UUID | None,
        span: tuple[datetime, datetime],
        *,
        group_by: Sequence[UsageGroup] = (),
        bucket: UsageBucket = "total",
        search: str | None = None,
        after: UsageSum | None = None,
        by_tokens: bool = False,
        limit: int = 10_000,
    ) -> Sequence[UsageSum]:
        check_range(*span)
        groups, bucket = check_groups(group_by), check_bucket(bucket)
        events = [
            event
            for event in self._ledger.values()
            if tenant_id in (None, event.tenant_id)
            and (tenant_id or contains(self._tenants[event.tenant_id].name, search))
        ]
        projects = {stored.key.id: stored.key.project_id for stored in self._keys.values()}
        sums = summed(events, projects, *span, groups, bucket)
        if by_tokens:
            sums = sorted(sums, key=place_of)
            sums.sort(key=lambda row: row.prompt_tokens + row.completion_tokens, reverse=True)
            return sums[:limit]
        return page_of(sums, place_of, None if after is None else place_of(after), limit)

    async def list_usage(
        self, wanted: UsageFilter, *, after: tuple[datetime, UUID] | None = None, limit: int = 1000
    ) -> Sequence[UsageEvent]:
        check_range(wanted.start, wanted.end)
        given = {name: getattr(wanted, name) for name in wanted.__struct_fields__[2:]}
        found = [
            event
            for event in self._ledger.values()
            if wanted.start <= event.created_at < wanted.end
            and all(value in (None, getattr(event, name)) for name, value in given.items())
            and (after is None or (event.created_at, event.request_id) < after)
        ]
        found.sort(key=lambda event: (event.created_at, event.request_id), reverse=True)
        return found[:limit]

    async def list_running(self, tenant_id: UUID | None = None) -> Sequence[RunningRequest]:
        running = [
            RunningRequest(
                request_id=held.request.request_id,
                tenant_id=held.request.tenant_id,
                tenant_name=self._tenants[held.request.tenant_id].name,
                key_id=held.request.key_id,
                key_name=(key := self._key(held.request.tenant_id, held.request.key_id)).name,
                public_id=key.public_id,
                model=held.request.model,
                state="running" if held.is_running else "queued",
                owner=held.request.owner,
                prompt_tokens=held.request.prompt_tokens,
                generated_tokens=held.generated_tokens,
                created_at=held.created_at,
            )
            for held in self._quota.reservations.values()
            if tenant_id in (None, held.request.tenant_id)
        ]
        return sorted(running, key=lambda request: (request.created_at, request.request_id))

    async def kill_request(self, tenant_id: UUID, request_id: UUID) -> None:
        self._audit.record("stream.kill", tenant_id, str(request_id))

    async def note_refusals(self, refused: Sequence[Refused]) -> None:
        for one in refused:
            if one.tenant_id in self._tenants and one.tenant_id not in self._deleted:
                self._refusals.append((self._now(), one))

    async def list_refusals(
        self, tenant_id: UUID | None = None, *, since: datetime, limit: int
    ) -> Sequence[Refused]:
        found: dict[tuple[UUID, UUID, str], Refused] = {}
        for at, one in self._refusals:
            if tenant_id in (None, one.tenant_id) and at > since - timedelta(hours=1):
                before = found.get(one[:3], one._replace(times=0))
                found[one[:3]] = one._replace(times=before.times + one.times, last_at=at)
        return sorted(found.values(), key=lambda one: (-one.times, *map(str, one[:3])))[:limit]

    async def list_audit(
        self,
        tenant_id: UUID | None = None,
        *,
        search: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        return self._audit.list(tenant_id, search=search, after=after, limit=limit)

    def _policy_state(self, tenant_id: UUID, scope_id: UUID) -> dict[str, Any] | None:
        for policy in self._quota.policies((scope_id,)):
            limits: dict[str, Any] = msgspec.to_builtins(policy.limits)
            scope = {"scope_id": str(scope_id), "scope_kind": policy.scope_kind}
            return {**scope, "tenant_id": str(tenant_id), **limits}
        return None

    async def maintain(self, *, usage_retention_months: int | None = None) -> None:
        """Memory has no partitions, and shows no request of its own."""

    async def roll_up(self) -> None:
        """Memory adds up the ledger whenever it is asked."""

    async def ping(self) -> None:
        """Memory always answers."""

    async def close(self) -> None:
        """Nothing to release."""
