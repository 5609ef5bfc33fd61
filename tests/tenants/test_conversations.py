"""Conversations: the contract, on both twins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenants.conversations import Bounds, Conversations, StoredItem
from tenants.errors import InvalidValue, ObjectExists, ObjectNotFound
from tenants.store import Store
from tenants.types import ApiKey

pytestmark = pytest.mark.asyncio

ROOM = Bounds(100, 10**6, 10**6)


@pytest.fixture
def conversations(store: Store) -> Conversations:
    return store.conversations


async def begun(store: Store, name: str = "acme", *items: str) -> UUID:
    """A tenant with a conversation ``conv`` of these items."""
    tenant_id = (await store.create_tenant(name)).id
    assert await store.conversations.create(tenant_id, "conv", b"{}", max_bytes=10**6)
    if items:
        assert await store.conversations.add(tenant_id, "conv", made(*items), ROOM)
    return tenant_id


def made(*names: str) -> list[StoredItem]:
    return [StoredItem(name, name.encode() * 10) for name in names]


async def test_items_stay_in_their_order(store: Store, conversations: Conversations) -> None:
    tenant_id = await begun(store, "acme", "a", "b", "c")
    assert await conversations.add(tenant_id, "conv", made("d"), ROOM)

    async def names(**page: Any) -> str:
        found = await conversations.items(tenant_id, "conv", **{"limit": 10, **page})
        return "".join(body.decode()[0] for body in found)

    assert await names() == "abcd"
    assert await names(limit=2) == "ab"
    assert await names(limit=2, after="b") == "cd"
    assert await names(is_descending=True) == "dcba"
    assert await names(is_descending=True, after="c", limit=1) == "b"
    assert await names(after="nothing") == ""
    assert await conversations.find_item(tenant_id, "conv", "b") == b"b" * 10
    changed = await conversations.delete_item(tenant_id, "conv", "b")
    assert changed is not None
    assert changed.id == "conv"
    assert await conversations.delete_item(tenant_id, "conv", "b") is None
    assert await names() == "acd"
    assert await conversations.add(tenant_id, "conv", made("b"), ROOM)
    assert await names() == "acdb"
    with pytest.raises(ObjectExists):
        await conversations.add(tenant_id, "conv", made("e", "a"), ROOM)
    assert await names() == "acdb"


async def test_a_conversation_is_found_until_it_is_deleted(
    store: Store, conversations: Conversations
) -> None:
    tenant_id = await begun(store, "acme", "a")
    found = await conversations.find(tenant_id, "conv")
    assert found is not None
    assert found.metadata == b"{}"
    changed = await conversations.update(tenant_id, "conv", b'{"a":"b"}')
    assert changed == found._replace(metadata=b'{"a":"b"}')
    assert await conversations.find(tenant_id, "conv") == changed
    assert await conversations.delete(tenant_id, "conv")
    assert not await conversations.delete(tenant_id, "conv")
    assert await conversations.find(tenant_id, "conv") is None
    assert await conversations.update(tenant_id, "conv", b"{}") is None
    assert not await conversations.add(tenant_id, "conv", made("a"), ROOM)
    assert await conversations.items(tenant_id, "conv", limit=10) == []
    assert await conversations.find(tenant_id, "\0") is None
    # One of the same id has nothing of it.
    assert await conversations.create(tenant_id, "conv", b"{}", max_bytes=10**6)
    assert await conversations.items(tenant_id, "conv", limit=10) == []


async def test_nothing_is_anothers(store: Store, conversations: Conversations) -> None:
    mine, other = await begun(store, "acme", "a"), (await store.create_tenant("other")).id
    assert await conversations.find(other, "conv") is None
    assert await conversations.update(other, "conv", b"x") is None
    assert not await conversations.delete(other, "conv")
    assert not await conversations.add(other, "conv", made("b"), ROOM)
    assert await conversations.items(other, "conv", limit=10) == []
    assert await conversations.find_item(other, "conv", "a") is None
    assert await conversations.delete_item(other, "conv", "a") is None
    assert len(await conversations.items(mine, "conv", limit=10)) == 1
    with pytest.raises(ObjectNotFound, match="tenant"):
        await conversations.create(uuid4(), "conv", b"{}", max_bytes=10**6)


async def test_there_is_a_bound(store: Store, conversations: Conversations) -> None:
    tenant_id = await begun(store, "acme", "a", "b")
    used = 512 + 2 + 2 * (64 + 10)
    few = Bounds(3, 10**6, used + 74)
    assert not await conversations.add(tenant_id, "conv", made("c", "d"), few)
    assert await conversations.add(tenant_id, "conv", made("c"), few)
    assert not await conversations.add(tenant_id, "conv", made("d"), Bounds(9, 10**6, used + 74))
    assert not await conversations.add(tenant_id, "conv", made("d"), Bounds(9, used + 74, 10**6))
    assert await conversations.create(tenant_id, "more", b"{}", max_bytes=used + 74 + 500) is None
    await conversations.delete_item(tenant_id, "conv", "a")
    assert await conversations.add(tenant_id, "conv", made("d"), few)
    await conversations.delete(tenant_id, "conv")
    assert await conversations.create(tenant_id, "more", b"{}", max_bytes=600)
    await conversations.update(tenant_id, "more", b" " * 90)
    both = 512 + 90 + 512 + 2
    assert await conversations.create(tenant_id, "last", b"{}", max_bytes=both - 1) is None
    assert await conversations.create(tenant_id, "last", b"{}", max_bytes=both)


async def test_what_comes_at_once_is_in_some_order(
    store: Store, conversations: Conversations
) -> None:
    tenant_id = await begun(store)
    names = [f"{number:02d}" for number in range(20)]
    pairs = [made(name, f"{name}b") for name in names]
    added = [conversations.add(tenant_id, "conv", pair, ROOM) for pair in pairs]
    assert all(await asyncio.gather(*added))
    found = await conversations.items(tenant_id, "conv", limit=100)
    assert sorted(found) == sorted(item.body for pair in pairs for item in pair)
    firsts, seconds = found[::2], found[1::2]
    assert [first[:2] for first in firsts] == [second[:2] for second in seconds]


async def test_a_key_lists_what_it_and_those_it_replaces_have_made(
    store: Store, conversations: Conversations
) -> None:
    tenant_id = (await store.create_tenant("acme")).id
    fields: dict[str, Any] = {"key_hash": bytes(range(32)), "name": "x", "scopes": ["chat"]}
    old = await store.create_key(tenant_id, public_id="A" * 12, **fields)
    other = await store.create_key(
        tenant_id, public_id="B" * 12, **fields | {"key_hash": bytes(32)}
    )
    for name, key_id in (("a", old.id), ("b", old.id), ("c", other.id), ("d", None)):
        title = f'{{"title":"Of \\"{name}\\" 100%"}}'.encode()
        await conversations.create(tenant_id, name, title, max_bytes=10**6, key_id=key_id)
    new = await store.rotate_key(
        "A" * 12, new_public_id="C" * 12, key_hash=bytes([1] * 32), grace=timedelta()
    )
    part = '{"type":"input_text","text":"Grüße \\"Ada\\""}'
    text = f'{{"role":"user","content":[{part}],"type":"message","id":"i"}}'.encode()
    assert await conversations.add(tenant_id, "a", [StoredItem("i", text)], ROOM)

    async def names(key_id: UUID, **fields: Any) -> str:
        found = await conversations.list(tenant_id, key_id, **{"limit": 9, **fields})
        return "".join(one.id for one in found)

    assert await names(new.id) == "ab"
    assert await names(old.id) == "ab"
    assert await names(other.id) == "c"
    assert await names(uuid4()) == ""
    assert await names(new.id, limit=1) == "a"
    assert await names(new.id, after="a") == "b"
    for search, found in {
        '"B"': "b",
        "100%": "ab",
        "grü": "a",
        'e "ADA"': "a",
        "input_text": "",
        "message": "",
        "title": "",
        "%": "ab",
        "c": "",
    }.items():
        assert await names(new.id, search=search) == found, search
    assert await names(other.id, search="grü") == ""
    stranger = (await store.create_tenant("globex")).id
    assert await conversations.list(stranger, new.id, limit=9) == []


async def test_they_are_kept_for_as_long_as_their_tenant_says(
    store: Store, conversations: Conversations
) -> None:
    kept, forbidden = await begun(store, "acme", "a"), await begun(store, "globex", "b")
    assert await store.shared.delete_expired() == 0
    assert await store.shared.delete_expired(1) == 0
    changed = await store.update_tenant(forbidden, conversation_days=0)
    assert changed.conversation_days == 0
    await store.update_tenant(kept, conversation_days=36_500)
    assert await store.shared.delete_expired(0) == 1
    assert await conversations.find(forbidden, "conv") is None
    assert await conversations.items(forbidden, "conv", limit=9) == []
    assert await conversations.find(kept, "conv") is not None
    await store.update_tenant(kept, name="still acme")
    assert (await store.get_tenant(kept)).conversation_days == 36_500
    await store.update_tenant(kept, conversation_days=None)
    assert await store.shared.delete_expired() == 0
    assert await store.shared.delete_expired(0) == 1
    for days in (-1, 36_501):
        with pytest.raises(InvalidValue, match="conversation_days"):
            await store.update_tenant(kept, conversation_days=days)


async def test_all_keys_of_a_user_find_the_same(store: Store) -> None:
    tenant_id = (await store.create_tenant("acme")).id
    others = (await store.create_tenant("globex")).id

    async def key(tenant: UUID, number: int, user: str | None = None) -> ApiKey:
        return await store.create_key(
            tenant,
            public_id=f"{number:012}",
            key_hash=bytes(32),
            name="k",
            scopes=["chat"],
            user_name=user,
        )

    ada, also_ada, bob, nobody = [
        await key(tenant_id, number, user)
        for number, user in enumerate(("Ada", "Ada", "Bob", None))
    ]
    namesake = await key(others, 9, "Ada")
    assert also_ada.user_name == "Ada"
    made_by: dict[str, tuple[UUID, ApiKey]] = {
        "ada": (tenant_id, ada),
        "bob": (tenant_id, bob),
        "nobody": (tenant_id, nobody),
        "namesake": (others, namesake),
    }
    for name, (tenant, owner) in made_by.items():
        await store.conversations.create(tenant, name, b"{}", max_bytes=10**6, key_id=owner.id)
    new = await store.rotate_key(
        ada.public_id, new_public_id=f"{7:012}", key_hash=bytes(32), grace=timedelta()
    )

    async def listed(owner: ApiKey) -> list[str]:
        found = await store.conversations.list(owner.tenant_id, owner.id, limit=9)
        return [one.id for one in found]

    assert await listed(also_ada) == await listed(new) == ["ada"]
    assert await listed(bob) == ["bob"]
    assert await listed(nobody) == ["nobody"]
    assert await listed(namesake) == ["namesake"]
