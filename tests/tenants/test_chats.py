"""Stored chat completions: one contract, two stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tenants.chats import StoredChat
from tenants.errors import ObjectNotFound
from tenants.store import Store

pytestmark = pytest.mark.asyncio

DAY = timedelta(days=1)
START = datetime(2026, 11, 29, tzinfo=UTC)


def make_chat(number: int, **fields: Any) -> StoredChat:
    usual: dict[str, Any] = {
        "model": "m",
        "metadata": {"number": str(number), "odd": str(number % 2)},
        "body": b"{}" * 50,
        "messages": b"[]",
        "created_at": START + timedelta(seconds=number // 2),
    }
    return StoredChat(**{"id": f"chatcmpl-{number}"} | usual | fields)


async def names(store: Store, tenant: Any, **wanted: Any) -> list[int]:
    found = await store.chats.list(tenant.id, **{"limit": 100} | wanted)
    return [int(one.id.removeprefix("chatcmpl-")) for one in found]


async def test_chats_are_listed_by_what_they_are_and_in_pages(store: Store) -> None:
    tenant, other = await store.create_tenant("one"), await store.create_tenant("two")
    for number in (3, 0, 1, 2, 4):
        await store.chats.put(tenant.id, make_chat(number), DAY)
    await store.chats.put(other.id, make_chat(9, model="n"), DAY)
    assert await names(store, tenant) == [0, 1, 2, 3, 4]
    assert await names(store, tenant, is_descending=True) == [4, 3, 2, 1, 0]
    assert await names(store, tenant, metadata={"odd": "0"}) == [0, 2, 4]
    assert await names(store, tenant, metadata={"odd": "0", "number": "2"}) == [2]
    assert await names(store, tenant, metadata={"odd": "x\0"}) == []
    assert await names(store, tenant, after="chatcmpl-1", limit=2) == [2, 3]
    assert await names(store, tenant, after="chatcmpl-1", is_descending=True) == [0]
    assert await names(store, tenant, after="chatcmpl-9") == []
    assert await names(store, tenant, model="n") == []
    assert await names(store, other, model="n") == [9]


async def test_a_chat_is_a_tenants_own(store: Store) -> None:
    tenant, other = await store.create_tenant("one"), await store.create_tenant("two")
    await store.chats.put(tenant.id, make_chat(1), DAY)
    assert await store.chats.find(tenant.id, "chatcmpl-1") == make_chat(1)
    assert await store.chats.find(other.id, "chatcmpl-1") is None
    assert await store.chats.update(other.id, "chatcmpl-1", {}) is None
    assert not await store.chats.delete(other.id, "chatcmpl-1")
    changed = await store.chats.update(tenant.id, "chatcmpl-1", {"a": "b"})
    assert changed == msgspec.structs.replace(make_chat(1), metadata={"a": "b"})
    assert await store.chats.delete(tenant.id, "chatcmpl-1\0")
    assert not await store.chats.delete(tenant.id, "chatcmpl-1")
    with pytest.raises(ObjectNotFound, match="tenant"):
        await store.chats.put(uuid4(), make_chat(1), DAY)


async def test_the_oldest_go_first_and_each_after_its_time(store: Store) -> None:
    tenant = await store.create_tenant("one")
    for number in (0, 2, 4):
        await store.chats.put(tenant.id, make_chat(number), DAY)
    await store.chats.put(tenant.id, make_chat(6), timedelta(seconds=-1))
    assert await names(store, tenant) == [0, 2, 4]
    assert await store.shared.delete_expired() == 1
    assert await store.chats.trim(tenant.id, 204) == 1
    assert await names(store, tenant) == [2, 4]
