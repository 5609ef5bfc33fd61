"""Adapters of tenants: one contract, two stores."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenants.changes import Change, ChangeListener
from tenants.errors import InvalidValue, ObjectExists, ObjectNotFound
from tenants.store import Store
from tenants.types import Adapter
from tests.tenants.samples import make_key

pytestmark = pytest.mark.asyncio


async def make(store: Store, tenant_id: UUID, name: str = "support", **fields: Any) -> Adapter:
    values: dict[str, Any] = {"parent": "m", "path": f"acme/{name}", "base_model": "some/base"}
    return await store.create_adapter(
        tenant_id, adapter_id=uuid4(), name=name, rank=16, digest="abc", **values | fields
    )


async def test_an_adapter_is_found_as_it_was_made(store: Store) -> None:
    tenant = await store.create_tenant("acme")
    made = await make(store, tenant.id)
    assert (made.name, made.path, made.base_model) == ("support", "acme/support", "some/base")
    assert made.parent == "m"
    assert (made.rank, made.digest, made.tenant_id) == (16, "abc", tenant.id)
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    other = await make(store, tenant.id, "Sales", base_model=None)
    assert await store.list_adapters(tenant.id) == [other, made]
    assert await store.list_adapters(uuid4()) == []


async def test_names_are_a_tenants_own(store: Store) -> None:
    one, two = await store.create_tenant("one"), await store.create_tenant("two")
    mine = await make(store, one.id)
    with pytest.raises(ObjectExists, match="'support' already"):
        await make(store, one.id)
    theirs = await make(store, two.id)
    assert await store.list_adapters(one.id) == [mine]
    assert await store.list_adapters(two.id) == [theirs]
    with pytest.raises(ObjectNotFound, match="tenant"):
        await make(store, uuid4())
    for name in ("", " x", "a\nb"):
        with pytest.raises(InvalidValue, match="name"):
            await make(store, one.id, name)


async def test_one_of_many_creations_at_once_wins(store: Store) -> None:
    tenant = await store.create_tenant("acme")
    results = await asyncio.gather(
        *(make(store, tenant.id) for _ in range(6)), return_exceptions=True
    )
    assert sum(isinstance(result, ObjectExists) for result in results) == 5


async def test_only_its_tenant_can_delete_it(store: Store) -> None:
    one, two = await store.create_tenant("one"), await store.create_tenant("two")
    adapter = await make(store, one.id)
    with pytest.raises(ObjectNotFound, match=str(adapter.id)):
        await store.delete_adapter(two.id, adapter.id)
    assert await store.delete_adapter(one.id, adapter.id) == adapter
    with pytest.raises(ObjectNotFound, match="adapter"):
        await store.delete_adapter(one.id, adapter.id)
    assert await store.list_adapters(one.id) == []
    assert (await make(store, one.id)).id != adapter.id


async def test_they_come_with_the_key(store: Store) -> None:
    _, who = await make_key(store, "one")
    _, other = await make_key(store, "two")
    assert who.adapters == ()
    made = [await make(store, who.tenant.id, name) for name in ("b", "a", "C")]
    await make(store, other.tenant.id, "theirs")
    found = await store.find_key(who.key.public_id)
    assert found is not None
    assert found.principal.adapters == (made[2], made[1], made[0])


async def test_making_and_deleting_is_in_the_audit_log(store: Store) -> None:
    tenant = await store.create_tenant("acme")
    adapter = await make(store, tenant.id)
    await store.delete_adapter(tenant.id, adapter.id)
    deleted, created, *_ = await store.list_audit(tenant.id)
    assert (created.action, deleted.action) == ("adapter.create", "adapter.delete")
    assert created.object_id == deleted.object_id == str(adapter.id)
    assert (created.before, deleted.after) == (None, None)
    assert created.after == deleted.before
    assert created.after is not None
    assert set(created.after) == set(Adapter.__struct_fields__)
    assert created.after["path"] == "acme/support"


@pytest.mark.pg
async def test_every_worker_is_told(pg_dsn: str, pg_store: Store) -> None:
    heard: list[Change] = []
    tenant = await pg_store.create_tenant("acme")
    listener = ChangeListener(pg_dsn, heard.append, check_interval_s=0.02)
    listening = asyncio.create_task(listener.run())

    async def hears(*expected: Change) -> None:
        async with asyncio.timeout(30):
            while heard != list(expected):  # noqa: ASYNC110 (it is told from outside)
                await asyncio.sleep(0.005)
        heard.clear()

    try:
        await hears(Change())
        adapter = await make(pg_store, tenant.id)
        await hears(Change(tenant_id=tenant.id))
        await pg_store.delete_adapter(tenant.id, adapter.id)
        await hears(Change(tenant_id=tenant.id), Change(adapter_id=adapter.id))
    finally:
        listening.cancel()
        await asyncio.wait([listening])
