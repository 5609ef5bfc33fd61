from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Gone, InvalidRequestError, StreamNotFound
from gateway.generation.events import Around, Text
from gateway.streams.archive import LARGE_BYTES, StreamArchive
from gateway.streams.log import Kept
from tenants.shared import ArchivedStream
from tests.gateway.peering import make_archive
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio

AROUND = Around(b"<", b">")


async def filled(items: list[bytes], *, num_dropped: int = 0) -> tuple[StreamArchive, UUID]:
    store = MemoryStore()
    tenant = await store.create_tenant("acme")
    archive = make_archive(store.shared)
    await archive.put("s", tenant.id, "sse", Kept(num_dropped, items, AROUND), retention_s=60)
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


@pytest.mark.parametrize("is_large", [False, True])
async def test_large_logs_do_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    in_loop = []
    for name in ("compress", "decompress"):
        whole = getattr(zlib, name)

        def note(*args: Any, whole: Callable[..., bytes] = whole) -> bytes:
            in_loop.append(threading.current_thread() is threading.main_thread())
            return whole(*args)

        monkeypatch.setattr(zlib, name, note)
    archive, tenant_id = await filled([os.urandom(LARGE_BYTES + 1 if is_large else 100)])
    await archive.open("s", tenant_id, kind="sse", after=0)
    assert in_loop == [not is_large] * 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([b"whole", Text(b"a"), Text("é".encode()), Text(b""), b""])))
async def test_texts_are_whole_items_again(items: list[bytes]) -> None:
    archive, tenant_id = await filled(items)
    reader = await archive.open("s", tenant_id, kind="sse", after=0)
    found = [item async for some in reader for item in some]
    assert found == [b"<%b>" % item if type(item) is Text else item for item in items]
    assert {type(item) for item in found} <= {bytes}


async def test_an_archive_of_whole_items_alone_is_a_list_of_them() -> None:
    """As it was before texts were kept by themselves: one kept by a server of before is read."""
    store = MemoryStore()
    tenant = await store.create_tenant("acme")
    packed = zlib.compress(msgspec.msgpack.encode([b"a", b"b"]))
    stream = ArchivedStream(id="s", tenant_id=tenant.id, kind="sse", num_dropped=0, items=packed)
    await store.shared.put_stream(stream, timedelta(seconds=60))
    reader = await make_archive(store.shared).open("s", tenant.id, kind="sse", after=1)
    assert list(await anext(reader)) == [b"b"]


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


async def test_a_tenant_has_so_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    mine, other = await store.create_tenant("acme"), await store.create_tenant("other")
    trim_streams, num_trims = store.shared.trim_streams, 0

    async def counted(tenant_id: UUID, max_bytes: int) -> int:
        nonlocal num_trims
        num_trims += 1
        return await trim_streams(tenant_id, max_bytes)

    monkeypatch.setattr(store.shared, "trim_streams", counted)
    archive = make_archive(store.shared, max_bytes=20_000)
    await archive.put("s", other.id, "sse", Kept(0, [b"x"], None), retention_s=60)
    for number in range(50):
        kept = Kept(0, [os.urandom(1000)], None)
        await archive.put(f"s{number}", mine.id, "sse", kept, retention_s=60)
    found = [n for n in range(50) if await store.shared.find_stream(mine.id, f"s{n}") is not None]
    assert found == list(range(found[0], 50))
    assert 18 <= len(found) <= 21
    assert 20 <= num_trims <= 25, "about each time that a sixteenth of the room was written"
    await archive.check("s", other.id)
