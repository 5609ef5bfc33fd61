"""``Chats`` in memory. It behaves as ``tenants.chats`` does."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

import msgspec

from tenants.chats import Chats, StoredChat
from tenants.errors import ObjectNotFound


class MemoryChats(Chats):
    """For the gateways of one process."""

    def __init__(self, now: Callable[[], datetime], tenants: Container[UUID]) -> None:
        self._now = now
        self._tenants = tenants
        self._kept: dict[tuple[UUID, str], tuple[StoredChat, datetime]] = {}

    async def put(self, tenant_id: UUID, chat: StoredChat, retention: timedelta) -> None:
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        self._kept.setdefault((tenant_id, chat.id), (chat, self._now() + retention))

    async def find(self, tenant_id: UUID, chat_id: str) -> StoredChat | None:
        chat, expires_at = self._kept.get((tenant_id, chat_id), (None, self._now()))
        return chat if expires_at > self._now() else None

    async def update(
        self, tenant_id: UUID, chat_id: str, metadata: Mapping[str, str]
    ) -> StoredChat | None:
        found = await self.find(tenant_id, chat_id)
        if found is None:
            return None
        changed = msgspec.structs.replace(found, metadata=metadata)
        self._kept[tenant_id, chat_id] = (changed, self._kept[tenant_id, chat_id][1])
        return changed

    async def delete(self, tenant_id: UUID, chat_id: str) -> bool:
        return self._kept.pop((tenant_id, chat_id.replace("\0", "")), None) is not None

    async def list(
        self,
        tenant_id: UUID,
        *,
        model: str | None = None,
        metadata: Mapping[str, str] = MappingProxyType({}),
        after: str | None = None,
        limit: int,
        is_descending: bool = False,
    ) -> Sequence[StoredChat]:
        own = [
            one
            for tenant, name in self._kept
            if (one := await self.find(tenant, name)) and tenant == tenant_id
        ]
        own.sort(key=lambda one: (one.created_at, one.id), reverse=is_descending)
        if after is not None:
            ids = [one.id for one in own]
            own = own[ids.index(after) + 1 :] if after in ids else []
        found = [
            one
            for one in own
            if model in (None, one.model) and metadata.items() <= one.metadata.items()
        ]
        return found[:limit]

    async def trim(self, tenant_id: UUID, max_bytes: int) -> int:
        total, gone = 0, 0
        for one in await self.list(tenant_id, limit=10**9, is_descending=True):
            total += len(one.body) + len(one.messages)
            if total > max_bytes:
                gone += await self.delete(tenant_id, one.id)
        return gone

    def delete_expired(self) -> int:
        gone = [key for key, (_, expires_at) in self._kept.items() if expires_at <= self._now()]
        for key in gone:
            del self._kept[key]
        return len(gone)
