"""The store in PostgreSQL, through asyncpg. Every statement is in ``queries.sql``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec

from tenants import queries
from tenants.batches import Batcher, send_each
from tenants.connections import NO_VIOLATIONS, Connections, Row, Violations
from tenants.errors import (
    AdapterExists,
    AdapterNotFound,
    AdminKeyExists,
    InvalidValue,
    KeyExists,
    KeyNotFound,
    ProjectExists,
    ProjectNotFound,
    ScopeNotFound,
    TenantExists,
    TenantNotFound,
    TenantsError,
)
from tenants.keys import is_public_id
from tenants.limits import (
    Balance,
    Limits,
    MonthLeft,
    QuotaAnswer,
    QuotaRequest,
    ScopeKind,
    ScopePolicy,
)
from tenants.names import (
    check_aliases,
    check_bucket,
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
from tenants.postgres_shared import PostgresShared
from tenants.postgres_upkeep import PostgresUpkeep
from tenants.rows import (
    adapter_of,
    answer_of,
    audit_entry_of,
    event_values,
    key_of,
    month_left_of,
    policy_of,
    project_of,
    record_of,
    request_values,
    tenant_of,
)
from tenants.store import NO_TIME, Store
from tenants.types import (
    Adapter,
    ApiKey,
    AuditEntry,
    KeyRecord,
    Project,
    RunningRequest,
    Scope,
    Tenant,
    UsageBucket,
    UsageEvent,
    UsageFilter,
    UsageGroup,
    UsageSum,
)

MAX_AUDIT_ID = 2**63 - 1
MAX_BATCH = 64
"""The most items of a batch. Larger ones are slower, because the planner joins them as if they were
small."""

MAX_PATIENCE_S = 0.1
"""The most patience that is used. More would add few requests to a batch, and a caller whose
estimate was wrong must not wait for long."""

UPKEEP_TIMEOUT_S = 60.0
"""For statements that no request waits for."""

_SQL = queries.load()


class _More(NamedTuple):
    """The arguments of ``extend``."""

    request_id: UUID
    tenant_id: UUID
    tokens: int
    generated: int
    lease: timedelta


class PostgresStore(Store):
    """A store over a pool of connections. Made by ``connect``."""

    def __init__(
        self,
        connections: Connections,
        upkeep: PostgresUpkeep,
        now: Callable[[], datetime | None],
    ) -> None:
        self._connections = connections
        self._upkeep = upkeep
        self._now = now
        self.shared = PostgresShared(connections, upkeep)
        # With two batches of each kind, connections are left for key lookups even if the ledger is
        # slow.
        self._reservations = Batcher(self._reserve_many, identity=_request_id, max_items=MAX_BATCH)
        self._extensions = Batcher(
            self._extend_many, identity=lambda more: more.request_id, max_items=MAX_BATCH
        )
        self._settlements = Batcher(self._settle_many, identity=_request_id, max_items=MAX_BATCH)

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        min_size: int = 1,
        max_size: int = 8,
        connect_timeout_s: float = 5.0,
        command_timeout_s: float = 5.0,
        is_pooled: bool = False,
        now: Callable[[], datetime | None] = lambda: None,
    ) -> PostgresStore:
        """Open the pool. Raises ``InvalidValue`` (the DSN), ``StoreUnavailable``.

        ``command_timeout_s`` bounds each statement on both sides: the client stops waiting, and the
        server stops working on it. ``is_pooled``: the DSN leads to a pooler in transaction mode.
        ``now`` is the clock of limits and leases; None is the server's own, the only one that all
        workers and hosts share.
        """
        connections = await Connections.open(
            dsn,
            min_size=min_size,
            max_size=max_size,
            connect_timeout_s=connect_timeout_s,
            command_timeout_s=command_timeout_s,
            is_pooled=is_pooled,
        )
        upkeep = await Connections.open(
            dsn,
            min_size=0,
            max_size=1,
            connect_timeout_s=connect_timeout_s,
            command_timeout_s=UPKEEP_TIMEOUT_S,
            is_pooled=is_pooled,
        )
        return cls(connections, PostgresUpkeep(upkeep), now)

    async def create_tenant(self, name: str, *, weight: float = 1.0, priority: int = 0) -> Tenant:
        name = normalize_name("name", name)
        tenant_id = uuid4()
        row = await self._one(
            "create_tenant",
            *(tenant_id, name, check_weight(weight), check_priority(priority)),
            tenant_id=tenant_id,
            violations={"tenant_name_key": TenantExists(name)},
        )
        return tenant_of(row)

    async def get_tenant(self, tenant: str | UUID) -> Tenant:
        missing = TenantNotFound(tenant)
        if isinstance(tenant, UUID):
            return tenant_of(await self._one("get_tenant_by_id", tenant, missing=missing))
        name = normalize_name("name", tenant)
        return tenant_of(await self._one("get_tenant", name, missing=missing))

    async def list_tenants(
        self, *, search: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Sequence[Tenant]:
        return [tenant_of(row) for row in await self._all("list_tenants", search, after, limit)]

    async def update_tenant(
        self,
        tenant_id: UUID,
        *,
        name: str | None = None,
        weight: float | None = None,
        priority: int | None = None,
        disabled: bool | None = None,
    ) -> Tenant:
        name = None if name is None else normalize_name("name", name)
        weight = None if weight is None else check_weight(weight)
        priority = None if priority is None else check_priority(priority)
        row = await self._one(
            "update_tenant",
            *(tenant_id, name, weight, priority, disabled),
            tenant_id=tenant_id,
            violations={"tenant_name_key": TenantExists(name or "")},
            missing=TenantNotFound(tenant_id),
        )
        return tenant_of(row)

    async def create_project(self, tenant_id: UUID, name: str) -> Project:
        name = normalize_name("name", name)
        row = await self._one(
            "create_project",
            *(uuid4(), tenant_id, name),
            tenant_id=tenant_id,
            violations={
                "project_tenant_id_name_key": ProjectExists(name),
                "project_tenant_id_fkey": TenantNotFound(tenant_id),
            },
        )
        return project_of(row)

    async def list_projects(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Project]:
        values = (tenant_id, search, after, limit)
        rows = await self._all("list_projects", *values, tenant_id=tenant_id)
        return [project_of(row) for row in rows]

    async def rename_project(self, tenant_id: UUID, project_id: UUID, name: str) -> Project:
        name = normalize_name("name", name)
        row = await self._one(
            "rename_project",
            *(tenant_id, project_id, name),
            tenant_id=tenant_id,
            violations={"project_tenant_id_name_key": ProjectExists(name)},
            missing=ProjectNotFound(project_id),
        )
        return project_of(row)

    async def create_key(
        self,
        tenant_id: UUID,
        *,
        public_id: str,
        key_hash: bytes,
        name: str,
        scopes: Sequence[Scope],
        expires_at: datetime | None = None,
        project_id: UUID | None = None,
        allowed_models: Sequence[str] = (),
        model_aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> ApiKey:
        check_key(public_id, key_hash, expires_at)
        row = await self._one(
            "create_key",
            *(uuid4(), tenant_id, project_id, public_id, key_hash),
            normalize_name("name", name),
            check_scopes(scopes),
            check_models(allowed_models),
            msgspec.json.encode(check_aliases(model_aliases)).decode(),
            expires_at,
            tenant_id=tenant_id,
            violations={
                "api_key_public_id_key": KeyExists(public_id),
                "api_key_tenant_id_fkey": TenantNotFound(tenant_id),
                "api_key_project_id_fkey": ProjectNotFound(project_id),
            },
        )
        return key_of(row)

    async def rotate_key(
        self, public_id: str, *, new_public_id: str, key_hash: bytes, grace: timedelta
    ) -> ApiKey:
        check_key(new_public_id, key_hash, None)
        missing = KeyNotFound(public_id)
        if not is_public_id(public_id):
            raise missing
        row = await self._one(
            "rotate_key",
            *(public_id, uuid4(), new_public_id, key_hash, check_grace(grace)),
            violations={"api_key_public_id_key": KeyExists(new_public_id)},
            missing=missing,
        )
        return key_of(row)

    async def create_first_admin_key(
        self, tenant_name: str, *, public_id: str, key_hash: bytes, name: str
    ) -> None:
        check_key(public_id, key_hash, None)
        row = await self._one(
            "create_first_admin_key",
            *(uuid4(), normalize_name("tenant", tenant_name), uuid4(), public_id, key_hash),
            normalize_name("name", name),
        )
        if not row["made"]:
            raise AdminKeyExists

    async def find_key(self, public_id: str) -> KeyRecord | None:
        if not is_public_id(public_id):
            return None
        rows = await self._all("find_key", public_id)
        return record_of(rows[0]) if rows else None

    async def list_keys(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: tuple[datetime, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[ApiKey]:
        values = (tenant_id, search, *(after or (None, None)), limit)
        rows = await self._all("list_keys", *values, tenant_id=tenant_id)
        return [key_of(row) for row in rows]

    async def names(self, ids: Collection[UUID]) -> Mapping[UUID, str]:
        return {row["id"]: row["name"] for row in await self._all("names", list(ids))}

    async def revoke_key(self, public_id: str) -> ApiKey:
        missing = KeyNotFound(public_id)
        if not is_public_id(public_id):
            raise missing
        return key_of(await self._one("revoke_key", public_id, missing=missing))

    async def create_adapter(
        self,
        tenant_id: UUID,
        *,
        adapter_id: UUID,
        name: str,
        parent: str,
        path: str,
        base_model: str | None,
        rank: int,
        digest: str,
    ) -> Adapter:
        name = normalize_name("name", name)
        row = await self._one(
            "create_adapter",
            *(adapter_id, tenant_id, name, parent, path, base_model, rank, digest),
            tenant_id=tenant_id,
            violations={
                "adapter_tenant_id_name_key": AdapterExists(name),
                "adapter_tenant_id_fkey": TenantNotFound(tenant_id),
            },
        )
        return adapter_of(row)

    async def list_adapters(self, tenant_id: UUID) -> Sequence[Adapter]:
        rows = await self._all("list_adapters", tenant_id, tenant_id=tenant_id)
        return [adapter_of(row) for row in rows]

    async def delete_adapter(self, tenant_id: UUID, adapter_id: UUID) -> Adapter:
        row = await self._one(
            "delete_adapter",
            *(tenant_id, adapter_id),
            tenant_id=tenant_id,
            missing=AdapterNotFound(adapter_id),
        )
        return adapter_of(row)

    async def touch_keys(self, last_used: Mapping[UUID, datetime]) -> None:
        await self._upkeep.touch_keys(last_used)

    async def record_usage(self, event: UsageEvent) -> bool:
        model = normalize_name("model", event.model)
        end_user = event.end_user
        if end_user is not None:
            end_user = normalize_name("end_user", end_user)
        event = msgspec.structs.replace(event, model=model, end_user=end_user)
        return await self._settlements.submit(event)

    async def _settle_many(self, events: Sequence[UsageEvent]) -> Sequence[bool | Exception]:
        try:
            return await self._settle(events)
        except (InvalidValue, KeyNotFound) as error:
            if len(events) == 1:
                return [error]
        # One of them is refused: each is sent alone, to find out which.
        return [answer for event in events for answer in await self._settle_many([event])]

    async def _settle(self, events: Sequence[UsageEvent]) -> Sequence[bool]:
        violations = {}
        if len(events) == 1:
            violations["usage_event_key_id_fkey"] = KeyNotFound(events[0].key_id)
        columns = zip(*map(event_values, events), strict=True)
        row = await self._one("record_usage", *columns, self._now(), violations=violations)
        written = frozenset(row["written"])
        return [event.request_id in written for event in events]

    async def put_limits(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: UUID, limits: Limits
    ) -> None:
        values = msgspec.structs.astuple(limits)
        row = await self._one(
            "put_limits",
            *(tenant_id, scope_kind, scope_id, *values, self._now()),
            tenant_id=tenant_id,
        )
        if not row["found"]:
            raise ScopeNotFound(scope_kind, scope_id)

    async def list_limits(self, tenant_id: UUID) -> Sequence[ScopePolicy]:
        rows = await self._all("list_limits", tenant_id, tenant_id=tenant_id)
        return [policy_of(row) for row in rows]

    async def reserve(self, request: QuotaRequest) -> QuotaAnswer:
        return await self._reservations.submit(request)

    async def _reserve_one(self, request: QuotaRequest) -> QuotaAnswer:
        row = await self._one(
            "reserve",
            *(*request_values(request), self._now()),
            violations={"reservation_key_id_fkey": KeyNotFound(request.key_id)},
        )
        return answer_of(row)

    async def _reserve_many(
        self, requests: Sequence[QuotaRequest]
    ) -> Sequence[QuotaAnswer | Exception]:
        if len(requests) > 1:
            columns = zip(*map(request_values, requests), strict=True)
            try:
                rows = await self._all("reserve_many", *columns, self._now())
            except InvalidValue:
                pass  # One of them is refused: each is sent alone, to find out which.
            else:
                return [answer_of(row) for row in rows]
        return await send_each(self._reserve_one, requests)

    async def month_left(self, tenant_id: UUID, scope_ids: Sequence[UUID]) -> Sequence[MonthLeft]:
        values = (tenant_id, list(scope_ids), self._now())
        return [
            month_left_of(row)
            for row in await self._all("month_left", *values, tenant_id=tenant_id)
        ]

    async def balances(self, scope_ids: Sequence[UUID]) -> Sequence[Balance]:
        rows = await self._all("balances", list(scope_ids), self._now())
        return [Balance(**row) for row in rows]

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
        more = _More(request_id, tenant_id, tokens, generated, lease)
        return await self._extensions.submit(more, patience_s=min(patience_s, MAX_PATIENCE_S))

    async def _extend_one(self, more: _More) -> int | None:
        row = await self._one("extend", *more, self._now())
        granted: int | None = row["granted"]
        return granted

    async def _extend_many(self, asked: Sequence[_More]) -> Sequence[int | Exception | None]:
        leases = {more.lease for more in asked}
        if len(asked) == 1 or len(leases) > 1:
            return await send_each(self._extend_one, asked)
        *columns, _ = zip(*asked, strict=True)
        rows = await self._all("extend_many", *columns, *leases, self._now())
        return [row["granted"] for row in rows]

    async def release(self, tenant_id: UUID, request_id: UUID) -> bool:
        found: bool = (await self._one("release", request_id, tenant_id, self._now()))["found"]
        return found

    async def renew(
        self, owner: UUID, generated: Mapping[UUID, int], lease: timedelta
    ) -> set[UUID]:
        counts = (list(generated), list(generated.values()))
        rows = await self._all("renew", owner, *counts, lease, self._now())
        return {row["request_id"] for row in rows}

    async def reap(self, *, patience: timedelta = NO_TIME) -> UUID | None:
        request_id: UUID | None = (await self._one("reap", patience, self._now()))["request_id"]
        return request_id

    async def clock(self) -> datetime:
        now: datetime = (await self._one("clock", self._now()))["now"]
        return now

    async def follow_clock(self, lease: timedelta) -> None:
        await self._one("follow_clock", lease, self._now())

    async def sum_usage(
        self,
        tenant_id: UUID | None,
        start: datetime,
        end: datetime,
        *,
        group_by: Sequence[UsageGroup] = (),
        bucket: UsageBucket = "total",
        search: str | None = None,
        after: UsageSum | None = None,
        limit: int = 10_000,
    ) -> Sequence[UsageSum]:
        check_range(start, end)
        what = (start, end, check_groups(group_by), check_bucket(bucket))
        page = (*msgspec.structs.astuple(after or UsageSum())[:5], after is None, limit)
        if tenant_id is None:
            rows = await self._all("sum_all_usage", *what, search, *page)
        else:
            rows = await self._all("sum_usage", tenant_id, *what, *page, tenant_id=tenant_id)
        return [UsageSum(**row) for row in rows]

    async def list_usage(
        self, wanted: UsageFilter, *, after: tuple[datetime, UUID] | None = None, limit: int = 1000
    ) -> Sequence[UsageEvent]:
        check_range(wanted.start, wanted.end)
        span = (wanted.start, wanted.end, *(after or (wanted.end, UUID(int=0))))
        filters = (wanted.key_id, wanted.model, wanted.status, wanted.end_user)
        if (tenant_id := wanted.tenant_id) is None:
            rows = await self._all("list_all_usage", *span, *filters, limit)
        else:
            values = (tenant_id, *span, *filters, limit)
            rows = await self._all("list_usage", *values, tenant_id=tenant_id)
        return [UsageEvent(**row) for row in rows]

    async def list_running(self, tenant_id: UUID | None = None) -> Sequence[RunningRequest]:
        if tenant_id is None:
            rows = await self._all("list_all_running")
        else:
            rows = await self._all("list_running", tenant_id, tenant_id=tenant_id)
        return [RunningRequest(**row) for row in rows]

    async def kill_request(self, tenant_id: UUID, request_id: UUID) -> None:
        await self._one("kill_request", tenant_id, request_id, tenant_id=tenant_id)

    async def list_audit(
        self,
        tenant_id: UUID | None = None,
        *,
        search: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        newest = MAX_AUDIT_ID if after is None else max(0, min(after, MAX_AUDIT_ID))
        which = (search, newest, limit)
        if tenant_id is None:
            rows = await self._all("list_all_audit", *which)
        else:
            rows = await self._all("list_audit", tenant_id, *which, tenant_id=tenant_id)
        return [audit_entry_of(row) for row in rows]

    async def maintain(self, *, usage_retention_months: int | None = None) -> None:
        await self._upkeep.maintain(usage_retention_months=usage_retention_months)

    async def roll_up(self) -> None:
        await self._upkeep.roll_up()

    async def ping(self) -> None:
        await self._one("ping")

    async def close(self) -> None:
        """Wait for statements under way, then close all connections. Idempotent."""
        await self._upkeep.close()
        await self._connections.close()

    async def _all(
        self,
        name: str,
        *values: object,
        tenant_id: UUID | None = None,
        violations: Violations = NO_VIOLATIONS,
    ) -> Sequence[Row]:
        return await self._connections.fetch(
            _SQL[name], values, tenant_id=tenant_id, violations=violations
        )

    async def _one(
        self,
        name: str,
        *values: object,
        tenant_id: UUID | None = None,
        violations: Violations = NO_VIOLATIONS,
        missing: TenantsError | None = None,
    ) -> Row:
        rows = await self._all(name, *values, tenant_id=tenant_id, violations=violations)
        if not rows and missing is not None:
            raise missing
        assert len(rows) == 1
        return rows[0]


def _request_id(item: QuotaRequest | UsageEvent) -> UUID:
    return item.request_id
