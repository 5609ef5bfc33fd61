"""Chat completions that a tenant has asked to be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

import msgspec

from tenants import queries
from tenants.connections import Connections, Row
from tenants.errors import ObjectNotFound

_SQL = queries.load()


class StoredChat(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    metadata: Mapping[str, str] = MappingProxyType({})
    body: bytes
    """The completion as JSON, without its metadata."""
    messages: bytes
    """What was asked, as a JSON array."""
    created_at: datetime


class Chats:
    """Uses the connections of a ``Store``, which closes them. Every method may raise
    ``StoreUnavailable``. Rows of other tenants are never found."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def put(self, tenant_id: UUID, chat: StoredChat, retention: timedelta) -> None:
        """Store a chat, unless there is one with its id. Raises ``ObjectNotFound``."""
        metadata = _json(chat.metadata)
        values = (
            chat.id,
            chat.model,
            metadata,
            chat.body,
            chat.messages,
            chat.created_at,
            retention,
        )
        await self._connections.fetch_in_turn(
            _SQL["put_chat"],
            (tenant_id, *values),
            tenant_id=tenant_id,
            violations={"chat_completion_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)},
        )

    async def find(self, tenant_id: UUID, chat_id: str) -> StoredChat | None:
        return _one(await self._fetch(tenant_id, "find_chat", _plain(chat_id)))

    async def update(
        self, tenant_id: UUID, chat_id: str, metadata: Mapping[str, str]
    ) -> StoredChat | None:
        """Replace the metadata; None if there is no such chat."""
        values = (_plain(chat_id), _json(metadata))
        return _one(await self._fetch(tenant_id, "update_chat", *values))

    async def delete(self, tenant_id: UUID, chat_id: str) -> bool:
        """Delete a chat; False if there is none."""
        return bool(await self._fetch(tenant_id, "delete_chat", _plain(chat_id)))

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
        """Chats by time and id: those of this model, with all this metadata, behind the one that
        ``after`` names. None are behind one that there is not."""
        given = (model, _json(metadata), after, is_descending, limit)
        values = [_plain(value) if isinstance(value, str) else value for value in given]
        return [_chat(row) for row in await self._fetch(tenant_id, "list_chats", *values)]

    async def trim(self, tenant_id: UUID, max_bytes: int) -> int:
        """Delete a tenant's oldest chats beyond ``max_bytes`` in all; returns how many."""
        return len(await self._fetch(tenant_id, "trim_chats", max_bytes))

    async def _fetch(self, tenant_id: UUID, name: str, *values: object) -> Sequence[Row]:
        return await self._connections.fetch_in_turn(
            _SQL[name], (tenant_id, *values), tenant_id=tenant_id
        )


def _one(rows: Sequence[Row]) -> StoredChat | None:
    return _chat(rows[0]) if rows else None


def _chat(row: Row) -> StoredChat:
    values = dict(row)
    return StoredChat(**values | {"metadata": msgspec.json.decode(values["metadata"])})


def _json(metadata: Mapping[str, str]) -> str:
    """PostgreSQL's ``jsonb`` rejects NUL."""
    plain = {_plain(key): _plain(value) for key, value in metadata.items()}
    return msgspec.json.encode(plain).decode()


def _plain(text: str) -> str:
    """Clients may send any text as an id. PostgreSQL rejects NUL, which no id of ours contains."""
    return text.replace("\0", "")
