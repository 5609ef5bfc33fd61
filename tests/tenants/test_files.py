"""Files: the contract, on both twins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenants.errors import ObjectNotFound
from tenants.files import Files
from tenants.store import Store
from tests.postgres import execute

pytestmark = pytest.mark.asyncio


@pytest.fixture
def files(store: Store) -> Files:
    return store.files


async def put(files: Files, tenant_id: UUID, name: str, *pieces: bytes) -> None:
    assert await files.begin(tenant_id, name)
    for piece in pieces or (name.encode(),):
        assert await files.append(tenant_id, name, piece, max_bytes=10**6)
    await files.complete(tenant_id, name, f"{name}.jsonl", "batch", None)


async def read(files: Files, tenant_id: UUID, name: str) -> bytes:
    return b"".join([piece async for piece in files.content(tenant_id, name)])


async def test_a_file_from_its_first_piece_to_its_end(store: Store, files: Files) -> None:
    tenant_id = (await store.create_tenant("acme")).id
    assert await files.begin(tenant_id, "a")
    assert await files.append(tenant_id, "a", b"one", max_bytes=100)
    assert await files.append(tenant_id, "a", b"\0two", max_bytes=100)
    assert await files.find(tenant_id, "a") is None, "it is not complete"
    assert not await files.list(tenant_id, limit=9)
    assert not await files.delete(tenant_id, "a")
    made = await files.complete(tenant_id, "a", "名.jsonl", "batch", timedelta(hours=1))
    assert (made.filename, made.purpose, made.size) == ("名.jsonl", "batch", 7)
    assert made.expires_at is not None
    assert await files.find(tenant_id, "a") == made
    assert await read(files, tenant_id, "a") == b"one\0two"
    await files.abandon(tenant_id, "a")
    with pytest.raises(ObjectNotFound):
        await files.append(tenant_id, "a", b"more", max_bytes=100)
    with pytest.raises(ObjectNotFound):
        await files.complete(tenant_id, "a", "b", "batch", None)
    assert await files.find(tenant_id, "a") == made, "it changes no more"
    assert await files.delete(tenant_id, "a")
    assert not await files.delete(tenant_id, "a")
    assert await read(files, tenant_id, "a") == b""
    assert await files.used(tenant_id) == 0


async def test_lists_are_in_order_and_in_pages(store: Store, files: Files) -> None:
    tenant_id = (await store.create_tenant("acme")).id
    for name in "acbd":
        await put(files, tenant_id, name)
    await files.begin(tenant_id, "e")
    await files.complete(tenant_id, "e", "e", "user_data", None)

    async def names(**page: Any) -> str:
        found = await files.list(tenant_id, **{"limit": 10, **page})
        return "".join(file.id for file in found)

    assert await names() == "edcba"
    assert await names(limit=2, after="d") == "cb"
    assert await names(is_descending=False, after="b", limit=2) == "cd"
    assert await names(purpose="batch", limit=2) == "dc"
    assert await names(purpose="x\n") == ""


async def test_all_files_of_a_tenant_have_a_limit_together(store: Store, files: Files) -> None:
    """Also of those that are uploaded at once, and of incomplete ones."""
    tenant_id, other = [(await store.create_tenant(name)).id for name in ("acme", "globex")]
    names = [str(number) for number in range(8)]
    for name in names:
        await files.begin(tenant_id, name)
    await put(files, other, "0", b"x" * 90)
    taken = await asyncio.gather(
        *(files.append(tenant_id, name, b"x" * 30, max_bytes=100) for name in names)
    )
    assert sum(taken) == 3
    assert await files.used(tenant_id) == 90
    for name in names:
        await files.abandon(tenant_id, name)
    assert await files.used(tenant_id) == 0
    assert await files.begin(tenant_id, "8", max_files=1)
    assert not await files.begin(tenant_id, "9", max_files=1)


async def test_another_tenants_are_never_found(store: Store, files: Files) -> None:
    mine, other = [(await store.create_tenant(name)).id for name in ("acme", "globex")]
    await put(files, mine, "a", b"secret")
    assert await files.find(other, "a") is None
    assert await read(files, other, "a") == b""
    assert not await files.delete(other, "a")
    assert not await files.list(other, limit=9)
    assert await files.begin(other, "a"), "ids are each tenant's own"
    with pytest.raises(ObjectNotFound):
        await files.append(other, "b", b"x", max_bytes=100)


@pytest.mark.pg
async def test_expired_and_unfinished_files_go_with_their_bytes(
    pg_store: Store, pg_dsn: str
) -> None:
    tenant_id, files = (await pg_store.create_tenant("acme")).id, pg_store.files
    for name in ("kept", "over"):
        await put(files, tenant_id, name, b"1", b"2")
    await files.begin(tenant_id, "left")
    await files.append(tenant_id, "left", b"3", max_bytes=100)
    await execute(
        pg_dsn, "UPDATE file SET expires_at = now() - interval '1 s' WHERE id IN ('over', 'left')"
    )
    assert await files.find(tenant_id, "over") is None
    assert [file.id for file in await files.list(tenant_id, limit=9)] == ["kept"]
    assert await pg_store.shared.delete_expired() == 2
    assert await files.used(tenant_id) == 2
    assert await read(files, tenant_id, "over") == b""
    assert await read(files, tenant_id, "kept") == b"12"
