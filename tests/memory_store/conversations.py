"""``Conversations`` in memory. It behaves as ``tenants.conversations`` does."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from tenants.conversations import (
    Bounds,
    Conversation,
    Conversations,
    StoredItem,
    json_text,
)
from tenants.errors import ObjectExists, ObjectNotFound
from tenants.types import Tenant


class MemoryConversations(Conversations):
    """For the gateways of one process."""

    def __init__(
        self,
        now: Callable[[], datetime],
        tenants: Mapping[UUID, Tenant],
        of_one_user: Callable[[UUID], Container[UUID | None]],
    ) -> None:
        """of_one_user: the keys whose conversations a key finds."""
        self._now = now
        self._tenants = tenants
        self._of_one_user = of_one_user
        self._keys: dict[tuple[UUID, str], UUID | None] = {}
        self._kept: dict[tuple[UUID, str], Conversation] = {}
        self._items: dict[tuple[UUID, str], dict[str, bytes]] = {}

    async def create(
        self,
        tenant_id: UUID,
        conversation_id: str,
        metadata: bytes,
        *,
        max_bytes: int,
        key_id: UUID | None = None,
    ) -> Conversation | None:
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        if self._size(tenant_id) + 512 + len(metadata) > max_bytes:
            return None
        made = Conversation(conversation_id, metadata, self._now(), self._now())
        self._keys[tenant_id, conversation_id] = key_id
        self._kept[tenant_id, conversation_id] = made
        self._items[tenant_id, conversation_id] = {}
        return made

    async def find(self, tenant_id: UUID, conversation_id: str) -> Conversation | None:
        return self._kept.get((tenant_id, conversation_id))

    async def list(
        self,
        tenant_id: UUID,
        key_id: UUID,
        *,
        search: str | None = None,
        after: str | None = None,
        limit: int,
    ) -> Sequence[Conversation]:
        keys = self._of_one_user(key_id)
        mine = [
            found
            for name, found in self._kept.items()
            if name[0] == tenant_id
            and self._keys[name] in keys
            and self._contains(name, "" if search is None else json_text(search))
        ]
        mine.sort(key=lambda one: (one.used_at, one.id), reverse=True)
        if after is not None:
            names = [one.id for one in mine]
            mine = mine[names.index(after) + 1 :] if after in names else []
        return mine[:limit]

    def _contains(self, name: tuple[UUID, str], text: str) -> bool:
        title = re.search(r'"title":"(.*?[^\\])"', self._kept[name].metadata.decode())
        texts = [
            re.search(r'"text":"(.*?)\}\],"type":"message"', body.decode())
            for body in self._items[name].values()
        ]
        found = [match[1].lower() for match in (title, *texts) if match is not None]
        return not text or any(text.lower() in one for one in found)

    async def update(
        self, tenant_id: UUID, conversation_id: str, metadata: bytes
    ) -> Conversation | None:
        found = self._kept.get((tenant_id, conversation_id))
        if found is None:
            return None
        changed = self._kept[tenant_id, conversation_id] = found._replace(metadata=metadata)
        return changed

    async def delete(self, tenant_id: UUID, conversation_id: str) -> bool:
        self._items.pop((tenant_id, conversation_id), None)
        return self._kept.pop((tenant_id, conversation_id), None) is not None

    def forget(self, tenant_id: UUID) -> None:
        """As ``Store.delete_tenant`` does with them."""
        for name in [name for name in self._kept if name[0] == tenant_id]:
            del self._kept[name], self._items[name]

    def delete_old(self, default_days: int | None) -> int:
        """As ``SharedState.delete_expired`` does with them."""
        gone = []
        for name, kept in self._kept.items():
            own = self._tenants[name[0]].conversation_days
            days = default_days if own is None else own
            if days is not None and kept.used_at <= self._now() - timedelta(days=days):
                gone.append(name)
        for name in gone:
            del self._kept[name], self._items[name]
        return len(gone)

    async def add(
        self,
        tenant_id: UUID,
        conversation_id: str,
        items: Sequence[StoredItem],
        room: Bounds,
    ) -> bool:
        kept = self._items.get((tenant_id, conversation_id))
        size = sum(len(item.body) + 64 for item in items)
        if kept is None or len(kept) + len(items) > room.max_items:
            return False
        if self._size(tenant_id, conversation_id) + size > room.max_bytes:
            return False
        if self._size(tenant_id) + size > room.max_tenant_bytes:
            return False
        ids = [*kept, *(item.id for item in items)]
        if len(set(ids)) < len(ids):
            raise ObjectExists("item")
        kept.update(items)
        named = tenant_id, conversation_id
        self._kept[named] = self._kept[named]._replace(used_at=self._now())
        return True

    async def items(
        self,
        tenant_id: UUID,
        conversation_id: str,
        *,
        limit: int,
        after: str | None = None,
        is_descending: bool = False,
    ) -> Sequence[bytes]:
        kept = [*self._items.get((tenant_id, conversation_id), {}).items()]
        if is_descending:
            kept.reverse()
        if after is not None:
            ids = [name for name, _ in kept]
            kept = kept[ids.index(after) + 1 :] if after in ids else []
        return [body for _, body in kept[:limit]]

    async def find_item(self, tenant_id: UUID, conversation_id: str, item_id: str) -> bytes | None:
        return self._items.get((tenant_id, conversation_id), {}).get(item_id)

    async def delete_item(
        self, tenant_id: UUID, conversation_id: str, item_id: str
    ) -> Conversation | None:
        kept = self._items.get((tenant_id, conversation_id), {})
        if kept.pop(item_id, None) is None:
            return None
        return self._kept[tenant_id, conversation_id]

    def _size(self, tenant_id: UUID, name: str | None = None) -> int:
        """Of a conversation or of all of a tenant's, as the database counts it."""
        mine = [key for key in self._kept if key[0] == tenant_id and name in (None, key[1])]
        return sum(
            512
            + len(self._kept[key].metadata)
            + sum(len(b) + 64 for b in self._items[key].values())
            for key in mine
        )
