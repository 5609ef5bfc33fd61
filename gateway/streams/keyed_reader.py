"""A reader of a stream that ends when the reader's key is revoked, or the server shuts down. The
stream may be of another key, and of another worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from gateway.concurrency.live_set import LiveSet
from gateway.errors import ApiError
from gateway.streams.log import StreamReader
from gateway.streams.record import Take
from tenants.types import Principal


class KeyedReader:
    """Reads from another ``StreamReader`` until ``refuse``. It is in ``readers`` while it is
    open."""

    __slots__ = ("_cut", "_items", "_reader", "_readers", "_refusal", "principal", "stream_id")

    def __init__(self, reader: StreamReader, principal: Principal, readers: Readers) -> None:
        self.stream_id = reader.stream_id
        self.principal = principal
        self._reader = reader
        self._items = aiter(reader)
        self._readers = readers
        self._refusal: ApiError | None = None
        self._cut: asyncio.Timeout | None = None
        readers.add(self)

    def __aiter__(self) -> AsyncIterator[Sequence[bytes]]:
        return self

    async def __anext__(self) -> Sequence[bytes]:
        if self._refusal is not None:
            raise self._refusal
        try:
            async with asyncio.timeout(None) as self._cut:  # ``refuse`` lets it run out.
                return await anext(self._items)
        except TimeoutError:
            if self._refusal is None:
                raise
            raise self._refusal from None
        finally:
            self._cut = None

    def refuse(self, error: ApiError) -> None:
        """Raise ``error`` in place of further items: the key is no longer valid, or the server
        shuts down. Only the first call counts."""
        if self._refusal is not None:
            return
        self._refusal = error
        if self._cut is not None:
            self._cut.reschedule(0.0)

    def divert(self, take: Take) -> None:
        self._reader.divert(take)

    async def beat(self) -> None:
        await self._reader.beat()

    def stop(self) -> None:
        self._reader.stop()

    def close(self) -> None:
        """Stop reading. Idempotent. The stream continues."""
        self._readers.discard(self)
        self._refusal = None  # Once raised, it refers to this object by its traceback.
        self._reader.close()


class Readers(LiveSet[KeyedReader]):
    """The open keyed readers of a worker."""

    def __init__(self) -> None:
        super().__init__()
        self._refusal: ApiError | None = None

    def add(self, reader: KeyedReader) -> None:
        super().add(reader)
        if self._refusal is not None:
            reader.refuse(self._refusal)

    def refuse_all(self, error: ApiError) -> None:
        """End all that are open, and all that will be: the server shuts down."""
        self._refusal = error
        for reader in list(self):
            reader.refuse(error)
