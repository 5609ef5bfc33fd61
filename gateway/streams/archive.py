"""Logs of ended streams in the store, where every worker can read them.

The log of a running stream stays with its worker; it is written here once, whole and compressed.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from gateway.generation.events import Text
from gateway.streams.log import Kept, stream_not_found
from gateway.streams.record import MAX_READ_ITEMS, Take, check_position
from gateway.streams.trim_schedule import TrimSchedule
from tenants.shared import ArchivedStream, SharedState, StreamKind

LARGE_BYTES = 64 * 1024
"""Logs of at least this size are packed and unpacked in a thread: that takes a millisecond or
more."""


class _Texts(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive items that differ only in their text."""

    head: bytes
    tail: bytes
    texts: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[bytes | _Texts])
"""Whole items, and runs of items that are stored as texts."""


class StreamArchive:
    """Archived logs in the store, bounded in time by retention and in size for each tenant."""

    def __init__(self, shared: SharedState, *, max_tenant_bytes: int) -> None:
        self._shared = shared
        self._max_tenant_bytes = max_tenant_bytes
        self._trims = TrimSchedule()

    async def put(
        self,
        stream_id: str,
        tenant_id: UUID,
        kind: StreamKind,
        kept: Kept,
        *,
        retention_s: float,
    ) -> None:
        """Archive a stream's log for ``retention_s``. Raises ``TenantsError``."""
        packed = await _pack(kept)
        stream = ArchivedStream(
            id=stream_id,
            tenant_id=tenant_id,
            kind=kind,
            num_dropped=kept.num_dropped,
            items=packed,
        )
        await self._shared.put_stream(stream, timedelta(seconds=retention_s))
        if self._trims.is_due(tenant_id, len(packed), self._max_tenant_bytes):
            await self._shared.trim_streams(tenant_id, self._max_tenant_bytes)

    async def check(self, stream_id: str, tenant_id: UUID) -> None:
        """Raise ``StreamNotFound`` unless this is an archived stream of the tenant."""
        await self._find(stream_id, tenant_id)

    async def open(
        self, stream_id: str, tenant_id: UUID, *, kind: StreamKind, after: int
    ) -> ArchivedReader:
        """Read an archived stream from position ``after`` on. Raises as ``StreamLog.check`` does,
        and ``TenantsError``."""
        found = await self._find(stream_id, tenant_id)
        if found.kind != kind:
            raise stream_not_found()
        items = await _unpack(found.items)
        check_position(after, num_dropped=found.num_dropped, num_items=len(items))
        return ArchivedReader(stream_id, items, after - found.num_dropped)

    async def delete(self, stream_id: str, tenant_id: UUID) -> None:
        """Delete an archived stream, if it is there. Raises ``TenantsError``."""
        await self._shared.delete_stream(tenant_id, stream_id)

    async def _find(self, stream_id: str, tenant_id: UUID) -> ArchivedStream:
        found = await self._shared.find_stream(tenant_id, stream_id)
        if found is None:
            raise stream_not_found()
        return found


class ArchivedReader:
    """Yields the items of a stream that has ended, in batches."""

    def __init__(self, stream_id: str, items: Sequence[bytes], start: int) -> None:
        self.stream_id = stream_id
        self._items = items
        self._next = start

    def __aiter__(self) -> ArchivedReader:
        return self

    async def __anext__(self) -> Sequence[bytes]:
        some = self._items[self._next : self._next + MAX_READ_ITEMS]
        if not some:
            raise StopAsyncIteration
        self._next += len(some)
        return some

    def divert(self, take: Take) -> None:
        """Does nothing: nothing will be added."""

    async def beat(self) -> None:
        """Does nothing: the stream has ended."""

    def stop(self) -> None:
        """Does nothing: the stream has ended."""

    def close(self) -> None:
        """Does nothing: nothing is held."""


async def _pack(kept: Kept) -> bytes:
    def pack() -> bytes:
        return zlib.compress(_encode(list(_entries(kept))), 1)

    is_large = sum(map(len, kept.items)) > LARGE_BYTES
    return await asyncio.to_thread(pack) if is_large else pack()


def _entries(kept: Kept) -> Iterator[bytes | _Texts]:
    for kind, items in itertools.groupby(kept.items, type):
        if kind is Text:
            assert kept.around is not None
            # msgspec does not encode subclasses of bytes. To split at line breaks makes copies of
            # the right type: within JSON strings there are none.
            yield _Texts(*kept.around, b"\n".join(items).split(b"\n"))
        else:
            yield from items


async def _unpack(packed: bytes) -> list[bytes]:
    def unpack() -> list[bytes]:
        items: list[bytes] = []
        for entry in _decoder.decode(zlib.decompress(packed)):
            if isinstance(entry, bytes):
                items.append(entry)
            else:
                items += [entry.head + text + entry.tail for text in entry.texts]
        return items

    # Events of one stream are similar: they compress to about a tenth, or less.
    is_large = len(packed) > LARGE_BYTES / 10
    return await asyncio.to_thread(unpack) if is_large else unpack()
