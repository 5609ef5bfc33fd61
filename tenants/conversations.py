"""Conversations: items that a tenant keeps in an order, until it deletes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import msgspec

from tenants import queries
from tenants.connections import Connections, Row
from tenants.errors import ObjectExists, ObjectNotFound, TenantsError

_SQL = queries.load()
_NONE: Mapping[str, TenantsError] = MappingProxyType({})


class Bounds(NamedTuple):
    """How much there may be."""

    max_items: int
    """In one conversation."""
    max_bytes: int
    """Of one conversation."""
    max_tenant_bytes: int
    """Of all conversations of a tenant."""


class Conversation(NamedTuple):
    id: str
    metadata: bytes
    """As JSON."""
    created_at: datetime
    used_at: datetime
    """When an item was added last."""


class StoredItem(NamedTuple):
    id: str
    """Unique in its conversation."""
    body: bytes
    """As JSON, with its id."""


class Conversations:
    """Uses the connections of a ``Store``, which closes them. Every method may raise
    ``StoreUnavailable``. Rows of other tenants are never found."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def create(
        self,
        tenant_id: UUID,
        conversation_id: str,
        metadata: bytes,
        *,
        max_bytes: int,
        key_id: UUID | None = None,
    ) -> Conversation | None:
        """A new conversation, which the key finds in its list; None if the tenant's would have more
        than ``max_bytes`` in all. Raises ``ObjectNotFound`` for a tenant that there is not."""
        fkey: Mapping[str, TenantsError] = {
            "conversation_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)
        }
        values = (conversation_id, metadata, max_bytes, key_id)
        return _one(await self._fetch(tenant_id, "put_conversation", *values, violations=fkey))

    async def find(self, tenant_id: UUID, conversation_id: str) -> Conversation | None:
        return _one(await self._fetch(tenant_id, "find_conversation", conversation_id))

    async def list(
        self,
        tenant_id: UUID,
        key_id: UUID,
        *,
        search: str | None = None,
        after: str | None = None,
        limit: int,
    ) -> Sequence[Conversation]:
        """Those that a key, or one that it replaces, has made, last used first: the ones with this
        text in the title or in a message, behind the conversation ``after``. A search looks at 2000
        conversations."""
        text = None if search is None else json_text(_plain(search))
        behind = None if after is None else _plain(after)
        rows = await self._connections.fetch_in_turn(
            _SQL["list_conversations"],
            (tenant_id, key_id, text, behind, limit),
            tenant_id=tenant_id,
        )
        return [Conversation(**row) for row in rows]

    async def update(
        self, tenant_id: UUID, conversation_id: str, metadata: bytes
    ) -> Conversation | None:
        """Replace the metadata; None if there is no such conversation."""
        values = (conversation_id, metadata)
        return _one(await self._fetch(tenant_id, "update_conversation", *values))

    async def delete(self, tenant_id: UUID, conversation_id: str) -> bool:
        """Delete a conversation with its items; False if there is none."""
        return bool(await self._fetch(tenant_id, "delete_conversation", conversation_id))

    async def add(
        self,
        tenant_id: UUID,
        conversation_id: str,
        items: Sequence[StoredItem],
        room: Bounds,
    ) -> bool:
        """Add items at the end, all or none; there is at least one. False if there is no such
        conversation, or no room. Raises ``ObjectExists`` for an id that is there already."""
        ids, bodies = [item.id for item in items], [item.body for item in items]
        exists: Mapping[str, TenantsError] = {"conversation_item_id_key": ObjectExists("item")}
        values = (conversation_id, ids, bodies, *room)
        return bool(
            await self._fetch(tenant_id, "add_conversation_items", *values, violations=exists)
        )

    async def items(
        self,
        tenant_id: UUID,
        conversation_id: str,
        *,
        limit: int,
        after: str | None = None,
        is_descending: bool = False,
    ) -> Sequence[bytes]:
        """The items in their order, or in the opposite one; ``after``: the id of the one before the
        page. None are found behind an item that there is not."""
        behind = None if after is None else _plain(after)
        values = (conversation_id, behind, is_descending, limit)
        rows = await self._fetch(tenant_id, "list_conversation_items", *values)
        return [row["body"] for row in rows]

    async def find_item(self, tenant_id: UUID, conversation_id: str, item_id: str) -> bytes | None:
        values = (conversation_id, _plain(item_id))
        rows = await self._fetch(tenant_id, "find_conversation_item", *values)
        body: bytes | None = rows[0]["body"] if rows else None
        return body

    async def delete_item(
        self, tenant_id: UUID, conversation_id: str, item_id: str
    ) -> Conversation | None:
        """Delete an item and return its conversation; None if there is no such item."""
        values = (conversation_id, _plain(item_id))
        return _one(await self._fetch(tenant_id, "delete_conversation_item", *values))

    async def _fetch(
        self,
        tenant_id: UUID,
        name: str,
        conversation_id: str,
        *values: object,
        violations: Mapping[str, TenantsError] = _NONE,
    ) -> Sequence[Row]:
        return await self._connections.fetch_in_turn(
            _SQL[name],
            (tenant_id, _plain(conversation_id), *values),
            tenant_id=tenant_id,
            violations=violations,
        )


def json_text(text: str) -> str:
    """A text as it stands in JSON, without its quotes."""
    return msgspec.json.encode(text)[1:-1].decode()


def _one(rows: Sequence[Row]) -> Conversation | None:
    return Conversation(**rows[0]) if rows else None


def _plain(name: str) -> str:
    """Clients may send any text as an id. PostgreSQL rejects NUL, which no id of ours contains."""
    return name.replace("\0", "")
