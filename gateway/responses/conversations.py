"""Conversations: items of Responses that a tenant keeps, and that responses go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec

from gateway.config import Config
from gateway.errors import ConversationNotFound, InvalidRequestError, PermissionDenied, quoted
from gateway.responses.items import MAX_ITEMS, bare, decode_items, name_items, plain_items
from gateway.schemas.responses import Item, ItemReference, MessageItem
from tenants.conversations import Bounds, Conversation, Conversations, StoredItem
from tenants.types import ApiKey, Tenant

MAX_ADDED = 20
"""Items of one request, as at OpenAI."""
MAX_BYTES = 16 * 1024 * 1024
"""Of one conversation, or a line of responses: a response reads all that it continues."""


class History(msgspec.Struct, frozen=True):
    """What a new response continues."""

    response_id: str | None = None
    """The last of the responses, unless it is a conversation."""
    items: Sequence[Item] = ()
    num_bytes: int = 0
    """Of the items as they were read from the store."""


class ConversationItems:
    """Reads and writes the items of conversations."""

    def __init__(self, config: Config, store: Conversations) -> None:
        self.store = store
        self._days = config.tenants.conversation_days
        self._room = Bounds(MAX_ITEMS, MAX_BYTES, config.tenants.max_conversation_bytes)

    def are_kept(self, tenant: Tenant) -> bool:
        """Whether a tenant may keep conversations."""
        days = tenant.conversation_days
        return (self._days if days is None else days) != 0

    def check_kept(self, tenant: Tenant) -> None:
        """Raise ``PermissionDenied`` unless the tenant may keep conversations."""
        if not self.are_kept(tenant):
            raise PermissionDenied(
                "Conversations of your tenant are not kept: its conversation_days is 0, or the "
                "server's tenants.conversation_days. Send what was said before with each request.",
                code="conversations_forbidden",
            )

    async def create(self, key: ApiKey, metadata: bytes, items: Sequence[Item]) -> Conversation:
        """Raises ``InvalidRequestError`` where there is no room, ``TenantsError``."""
        name, tenant_id = f"conv_{uuid4().hex}", key.tenant_id
        made = await self.store.create(
            tenant_id, name, metadata, max_bytes=self._room.max_tenant_bytes, key_id=key.id
        )
        if made is None:
            raise _full()
        try:
            await self.add(tenant_id, name, items)
        except BaseException:
            await self.store.delete(tenant_id, name)
            raise
        return made

    async def find(self, tenant_id: UUID, conversation_id: str) -> Conversation:
        """Raises ``ConversationNotFound``, ``TenantsError``."""
        found = await self.store.find(tenant_id, conversation_id)
        if found is None:
            raise not_found(conversation_id)
        return found

    async def all_items(self, tenant_id: UUID, conversation_id: str) -> History:
        """The items of the line that goes on: ``current_line``. Raises as ``find`` does."""
        await self.find(tenant_id, conversation_id)
        bodies = await self.store.items(tenant_id, conversation_id, limit=MAX_ITEMS)
        items = current_line(plain_items([msgspec.Raw(body) for body in bodies]))
        return History(None, items, sum(map(len, bodies)))

    async def add(self, tenant_id: UUID, conversation_id: str, items: Sequence[Any]) -> None:
        """Add items, which have ids. Raises as ``find`` does, and ``InvalidRequestError`` where
        there is no room."""
        if not items:
            return
        rows = [StoredItem(item["id"], msgspec.json.encode(item)) for item in map(bare, items)]
        if not await self.store.add(tenant_id, conversation_id, rows, self._room):
            await self.find(tenant_id, conversation_id)
            raise _full()


def new_items(given: Sequence[msgspec.Raw]) -> list[Item]:
    """Decode the items of a request, and name them. Raises ``InvalidRequestError``, whose ``param``
    begins with ``items``."""
    if len(given) > MAX_ADDED:
        raise InvalidRequestError(f"At most {MAX_ADDED} items at once.", param="items")
    items: list[Item] = []
    for index, item in enumerate(decode_items(given, "items")):
        if isinstance(item, ItemReference):
            raise InvalidRequestError("Send the item itself.", param=f"items[{index}]")
        items.append(msgspec.structs.replace(item, id=None))
    return name_items(items, uuid4().hex)


def current_line(items: Sequence[Item]) -> list[Item]:
    """The last item and all that it follows: each is behind its ``parent_id``, or behind the item
    before it if it has none. An answer that was asked for again stands beside the earlier one."""
    places = {item.id: place for place, item in enumerate(items)}
    line: list[Item] = []
    place = len(items) - 1
    while place >= 0:
        item = items[place]
        line.append(item)
        parent = item.parent_id if isinstance(item, MessageItem) else None
        # A parent that was deleted, or that does not stand before its child, is as none.
        place = min(places.get(parent, place - 1), place - 1) if parent != "" else -1
    return line[::-1]


def not_found(conversation_id: str) -> ConversationNotFound:
    return ConversationNotFound(f"There is no conversation {quoted(conversation_id)}.")


def _full() -> InvalidRequestError:
    return InvalidRequestError(
        f"There is no room: a conversation has at most {MAX_ITEMS} items and {MAX_BYTES} bytes, "
        "and the server's tenants.max_conversation_bytes bounds all of yours; delete some.",
        code="conversation_full",
    )
