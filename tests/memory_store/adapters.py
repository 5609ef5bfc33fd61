"""The part of ``MemoryStore`` that has the adapters of tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenants.directory import Directory
from tenants.errors import ObjectExists, ObjectNotFound
from tenants.names import normalize_name
from tenants.types import Adapter
from tests.memory_store.audit import MemoryAudit


class MemoryAdapters(Directory):
    _tenants: Mapping[UUID, Any]
    _adapters: dict[UUID, Adapter]
    _audit: MemoryAudit
    _now: Callable[[], datetime]

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
        adapter = Adapter(
            id=adapter_id,
            tenant_id=tenant_id,
            name=normalize_name("name", name),
            parent=parent,
            path=path,
            base_model=base_model,
            rank=rank,
            digest=digest,
            created_at=self._now(),
        )
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        if any(other.name == adapter.name for other in await self.list_adapters(tenant_id)):
            raise ObjectExists("adapter", adapter.name)
        self._adapters[adapter.id] = adapter
        self._audit.note("adapter", None, adapter)
        return adapter

    async def list_adapters(self, tenant_id: UUID) -> Sequence[Adapter]:
        own = (one for one in self._adapters.values() if one.tenant_id == tenant_id)
        return sorted(own, key=lambda adapter: adapter.name)

    async def delete_adapter(self, tenant_id: UUID, adapter_id: UUID) -> Adapter:
        adapter = self._adapters.get(adapter_id)
        if adapter is None or adapter.tenant_id != tenant_id:
            raise ObjectNotFound("adapter", adapter_id)
        del self._adapters[adapter_id]
        self._audit.note("adapter", adapter, None)
        return adapter
