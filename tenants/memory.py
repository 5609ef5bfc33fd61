"""The store in memory: the twin of ``tenants.postgres``, for tests and runs without a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

import msgspec

from tenants.errors import KeyExists, KeyNotFound, TenantExists, TenantNotFound
from tenants.names import (
    check_key,
    check_priority,
    check_scopes,
    check_weight,
    normalize_name,
)
from tenants.store import Store
from tenants.types import (
    ApiKey,
    KeyRecord,
    Principal,
    Scope,
    Tenant,
    UsageEvent,
    UsageTotals,
)


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryStore(Store):
    """A store that forgets everything when the process ends."""

    def __init__(self, *, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._tenants: dict[UUID, Tenant] = {}
        self._keys: dict[str, KeyRecord] = {}
        self._ledger: dict[UUID, UsageEvent] = {}

    async def create_tenant(self, name: str, *, weight: float = 1.0, priority: int = 0) -> Tenant:
        tenant = Tenant(
            id=uuid4(),
            name=normalize_name("name", name),
            weight=check_weight(weight),
            priority=check_priority(priority),
            created_at=self._now(),
        )
        if any(other.name == tenant.name for other in self._tenants.values()):
            raise TenantExists(tenant.name)
        self._tenants[tenant.id] = tenant
        return tenant

    async def get_tenant(self, name: str) -> Tenant:
        normal = normalize_name("name", name)
        for tenant in self._tenants.values():
            if tenant.name == normal:
                return tenant
        raise TenantNotFound(normal)

    async def list_tenants(self) -> Sequence[Tenant]:
        return sorted(self._tenants.values(), key=lambda tenant: tenant.name)

    async def create_key(
        self,
        tenant_id: UUID,
        *,
        public_id: str,
        key_hash: bytes,
        name: str,
        scopes: Sequence[Scope],
        expires_at: datetime | None = None,
    ) -> ApiKey:
        check_key(public_id, key_hash, expires_at)
        key = ApiKey(
            id=uuid4(),
            tenant_id=tenant_id,
            public_id=public_id,
            name=normalize_name("name", name),
            scopes=check_scopes(scopes),
            created_at=self._now(),
            expires_at=expires_at,
        )
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            raise TenantNotFound(tenant_id)
        if public_id in self._keys:
            raise KeyExists(public_id)
        self._keys[public_id] = KeyRecord(Principal(tenant=tenant, key=key), key_hash)
        return key

    async def find_key(self, public_id: str) -> KeyRecord | None:
        return self._keys.get(public_id)

    async def list_keys(self, tenant_id: UUID) -> Sequence[ApiKey]:
        keys = (record.principal.key for record in self._keys.values())
        own = [key for key in keys if key.tenant_id == tenant_id]
        return sorted(own, key=lambda key: (key.created_at, key.public_id))

    async def revoke_key(self, public_id: str) -> ApiKey:
        record = self._keys.get(public_id)
        if record is None:
            raise KeyNotFound(public_id)
        key = record.principal.key
        if key.revoked_at is None:
            key = msgspec.structs.replace(key, revoked_at=self._now())
            principal = Principal(tenant=record.principal.tenant, key=key)
            self._keys[public_id] = KeyRecord(principal, record.key_hash)
        return key

    async def record_usage(self, event: UsageEvent) -> bool:
        normalize_name("model", event.model)
        keys = (record.principal.key for record in self._keys.values())
        if not any(key.id == event.key_id and key.tenant_id == event.tenant_id for key in keys):
            raise KeyNotFound(event.key_id)
        if event.request_id in self._ledger:
            return False
        self._ledger[event.request_id] = event
        return True

    async def usage_totals(self, tenant_id: UUID) -> UsageTotals:
        events = [event for event in self._ledger.values() if event.tenant_id == tenant_id]
        return UsageTotals(
            requests=len(events),
            prompt_tokens=sum(event.prompt_tokens for event in events),
            cached_tokens=sum(event.cached_tokens for event in events),
            completion_tokens=sum(event.completion_tokens for event in events),
        )

    async def ping(self) -> None:
        """Memory always answers."""

    async def close(self) -> None:
        """Nothing to release."""
