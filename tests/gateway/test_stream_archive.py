from __future__ import annotations

import os
from uuid import UUID, uuid4

import pytest

from gateway.errors import Gone, InvalidRequestError, StreamNotFound
from gateway.stream_archive import LARGE_BYTES, StreamArchive
from tenants.memory import MemoryStore
from tests.gateway.peering import make_archive

pytestmark = pytest.mark.asyncio


async def filled(items: list[bytes], *, num_dropped: int = 0) -> tuple[StreamArchive, UUID]:
    store = MemoryStore()
    tenant = await store.create_tenant("acme")
    archive = make_archive(store.shared)
    await archive.put("s", tenant.id, "sse", num_dropped=num_dropped, items=items, retention_s=60)
    return archive, tenant.id


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
async def test_streams_are_read_from_anywhere_on(size: int) -> None:
    items = [os.urandom(size // 10) for _ in range(1000)]
    archive, tenant_id = await filled(items)
    for after in (0, 1, 256, 999, 1000):
        reader = await archive.open("s", tenant_id, kind="sse", after=after)
        found = [item async for some in reader for item in some]
        assert found == items[after:]
        await reader.beat()
        reader.stop()
        reader.close()


async def test_what_cannot_be_read() -> None:
    archive, tenant_id = await filled([b"a", b"b"], num_dropped=5)
    with pytest.raises(Gone):
        await archive.open("s", tenant_id, kind="sse", after=4)
    with pytest.raises(InvalidRequestError):
        await archive.open("s", tenant_id, kind="sse", after=8)
    reader = await archive.open("s", tenant_id, kind="sse", after=6)
    assert list(await anext(reader)) == [b"b"]
    for stream_id, tenant, kind in (
        ("t", tenant_id, "sse"),
        ("s", uuid4(), "sse"),
        ("s", tenant_id, "ws"),
    ):
        with pytest.raises(StreamNotFound):
            await archive.open(stream_id, tenant, kind=kind, after=0)  # type: ignore[arg-type]
    await archive.delete("s", tenant_id)
    with pytest.raises(StreamNotFound):
        await archive.check("s", tenant_id)


async def test_a_tenant_has_so_much_room() -> None:
    store = MemoryStore()
    mine, other = await store.create_tenant("acme"), await store.create_tenant("other")
    archive = make_archive(store.shared, max_bytes=20_000)
    await archive.put("s", other.id, "sse", num_dropped=0, items=[b"x"], retention_s=60)
    for number in range(50):
        items = [os.urandom(1000)]
        await archive.put(f"s{number}", mine.id, "sse", num_dropped=0, items=items, retention_s=60)
    kept = [n for n in range(50) if await store.shared.find_stream(mine.id, f"s{n}") is not None]
    assert kept == list(range(kept[0], 50))
    assert 18 <= len(kept) <= 21
    await archive.check("s", other.id)
