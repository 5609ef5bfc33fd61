"""What a resumable stream has said, kept for whoever comes back for it.

``StreamLog`` is the port. ``MemoryStreamLog`` is the log of one gateway process, where its streams
run; ``streams`` leads whoever asks another process there, and ``stream_archive`` keeps the log when
the stream has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from gateway.errors import RateLimited, StreamNotFound
from gateway.stream_record import (
    MAX_STRETCH_BYTES,
    STREAM_OVERHEAD_BYTES,
    Cursor,
    MadeItems,
    NumberedItems,
    Record,
    Share,
    Take,
    Waiting,
    whole,
)
from gateway.text_events import Around, Numbered, TextForm, TextSink
from tenants.shared import StreamKind

SWEEP_S = 0.1
"""Streams whose time is over are forgotten together, at most so much later."""


class StreamReader(Protocol):
    """Yields a stream's items from a position on, in batches. ``close`` it, in a ``finally``."""

    @property
    def stream_id(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[Sequence[bytes]]: ...

    def divert(self, take: Take) -> None:
        """``take`` is offered first what comes while the next items are waited for; a reader whose
        items come from elsewhere may yield them all the same."""

    async def beat(self) -> None:
        """Nothing was said for long: make all readers hear that the stream still runs."""

    def stop(self) -> None:
        """End the stream's work, as a client's wish."""

    def close(self) -> None:
        """Idempotent. The stream goes on."""


class StreamLog(Protocol):
    """An append-only list of items for each stream. A *position* is a number of items."""

    async def create(self, stream_id: str, tenant_id: UUID, kind: StreamKind) -> None:
        """Raises ``RateLimited`` when the tenant's running streams leave no room for another."""

    def append(self, stream_id: str, items: Sequence[bytes]) -> None:
        """Does nothing once the stream has ended."""

    def text_sink(self, stream_id: str, form: TextForm) -> TextSink | None:
        """Appends an item of this form for each text; the same form for all of the stream's life.
        None once the stream is forgotten."""

    def said_at(self, stream_id: str) -> float:
        """The event loop's time when an item was added last; infinity once it is forgotten."""

    async def end(self, stream_id: str) -> None:
        """No more items; from now on the stream is kept for a limited time."""

    def attach(self, stream_id: str) -> None:
        """Somebody reads it: until as many ``detach``, it does not make room for others when it has
        ended. One unknown is left so."""

    def detach(self, stream_id: str) -> None:
        """Undo one ``attach``."""

    async def forget(self, stream_id: str, tenant_id: UUID) -> None:
        """Drop all items at once; a stream that runs takes no more. One unknown is left so."""

    def kept(self, stream_id: str) -> Kept | None:
        """None once it is forgotten."""

    async def check(
        self, stream_id: str, tenant_id: UUID, *, kind: StreamKind | None = None, after: int = 0
    ) -> None:
        """Whether ``tenant_id`` may read on after position ``after``.

        Raises:
            StreamNotFound: unknown, forgotten, another tenant's or another kind's: all the same.
            Gone: the next item is no longer kept.
            InvalidRequestError: the stream has fewer items.
        """

    async def read(self, stream_id: str, cursor: Cursor) -> Sequence[bytes]:
        """The next items, at least one; none once the stream has ended. Moves the cursor.

        Waits for them; what comes meanwhile is offered to the cursor's ``take`` first. Raises as
        ``check`` does, also when items are dropped while a slow reader has yet to read them.
        """


class Kept(NamedTuple):
    """Of a stream's log."""

    num_dropped: int
    """Items, before those that are kept."""
    items: Sequence[bytes]
    """Each whole, or a ``Text``."""
    around: Around | None
    """What makes items of the texts; None: there are none."""


class MemoryStreamLog:
    """A ``StreamLog`` in this process's memory, bounded in bytes.

    A stream above ``max_stream_bytes`` loses its oldest items. A tenant above ``max_tenant_bytes``
    loses its oldest ended streams, but none that somebody reads; when there are no others, it may
    open no more, and the one that grows loses its oldest items. Tenants never take each other's
    room.
    """

    def __init__(self, *, max_stream_bytes: int, max_tenant_bytes: int, retention_s: float) -> None:
        """``retention_s``: time from a stream's end until it is forgotten."""
        self.max_stream_bytes = max_stream_bytes
        self.max_tenant_bytes = max_tenant_bytes
        self.stretch_bytes = min(MAX_STRETCH_BYTES, max_stream_bytes // 64)
        """How much room a stream takes at a time."""
        self._retention_s = retention_s
        self._records: dict[str, Record] = {}
        self._shares: dict[UUID, Share] = {}
        self._ended: dict[str, float] = {}
        """Until when each is kept, the oldest end first."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all: a timer keeps the context of whoever made it."""

    def size_of(self, tenant_id: UUID) -> int:
        """In bytes."""
        share = self._shares.get(tenant_id)
        return 0 if share is None else share.num_bytes

    async def create(self, stream_id: str, tenant_id: UUID, kind: StreamKind) -> None:
        assert stream_id not in self._records
        share = self._shares.get(tenant_id) or Share(tenant_id)
        self._forget_ended(share, room_for=STREAM_OVERHEAD_BYTES)
        if share.num_bytes + STREAM_OVERHEAD_BYTES > self.max_tenant_bytes:
            raise RateLimited(
                "Your running resumable streams fill the room there is for them; open this one "
                "without, or try again when one has ended.",
                code="too_many_streams",
            )
        self._shares[tenant_id] = share
        self._records[stream_id] = Record(self, share, kind)

    def append(self, stream_id: str, items: Sequence[bytes]) -> None:
        record = self._records.get(stream_id)
        if record is not None:
            record.add(items)

    def text_sink(self, stream_id: str, form: TextForm) -> TextSink | None:
        record = self._records.get(stream_id)
        if record is None:
            return None
        if isinstance(form, Around):
            record.set_form(form)
            return record
        if isinstance(form, Numbered):
            return NumberedItems(record, form)
        return MadeItems(record, form)

    def said_at(self, stream_id: str) -> float:
        record = self._records.get(stream_id)
        return math.inf if record is None else record.said_at

    async def end(self, stream_id: str) -> None:
        record = self._records.get(stream_id)
        if record is None or record.ended:
            return
        record.end()
        if not record.num_readers:
            record.share.idle[stream_id] = record
        loop = asyncio.get_running_loop()
        self._ended[stream_id] = loop.time() + self._retention_s
        if self._timer is None:
            self._timer = loop.call_later(self._retention_s, self._forget_old)

    def attach(self, stream_id: str) -> None:
        if (record := self._records.get(stream_id)) is not None:
            record.num_readers += 1
            record.share.idle.pop(stream_id, None)

    def detach(self, stream_id: str) -> None:
        if (record := self._records.get(stream_id)) is not None:
            record.num_readers -= 1
            if record.ended and not record.num_readers:
                record.share.idle[stream_id] = record

    def kept(self, stream_id: str) -> Kept | None:
        record = self._records.get(stream_id)
        if record is None:
            return None
        if isinstance(record.form, Numbered):
            return Kept(
                record.num_dropped, whole(record.items, record.form, record.num_dropped), None
            )
        return Kept(record.num_dropped, list(record.items), record.form)

    async def forget(self, stream_id: str, tenant_id: UUID) -> None:
        record = self._records.get(stream_id)
        if record is not None and record.share.tenant_id == tenant_id:
            self._forget(stream_id)

    async def check(
        self, stream_id: str, tenant_id: UUID, *, kind: StreamKind | None = None, after: int = 0
    ) -> None:
        record = self._record(stream_id)
        if record.share.tenant_id != tenant_id or kind not in (None, record.kind):
            raise stream_not_found()
        if kind is not None:
            record.check(after)

    async def read(self, stream_id: str, cursor: Cursor) -> Sequence[bytes]:
        while True:
            record = self._record(stream_id)
            record.check(cursor.after)
            start = cursor.after - record.num_dropped
            if start < len(record.items) or record.ended:
                items = record.read(start)
                cursor.after += len(items)
                return items
            waiting = Waiting(cursor)
            record.wait(waiting)
            try:
                await waiting.future
            finally:
                record.leave(waiting)

    def _record(self, stream_id: str) -> Record:
        record = self._records.get(stream_id)
        if record is None:
            raise stream_not_found()
        return record

    def make_room(self, record: Record) -> None:
        """For a record that has grown."""
        self._forget_ended(record.share)
        record.drop()

    def _forget_ended(self, share: Share, *, room_for: int = 0) -> None:
        while share.idle and share.num_bytes + room_for > self.max_tenant_bytes:
            self._forget(next(iter(share.idle)))

    def _forget_old(self) -> None:
        loop = asyncio.get_running_loop()
        while self._ended:
            stream_id, due_s = next(iter(self._ended.items()))
            if due_s > loop.time():
                break
            self._forget(stream_id)
        self._timer = None
        if self._ended:
            self._timer = loop.call_at(max(due_s, loop.time() + SWEEP_S), self._forget_old)

    def _forget(self, stream_id: str) -> None:
        record = self._records.pop(stream_id)
        share = record.share
        share.idle.pop(stream_id, None)
        self._ended.pop(stream_id, None)
        record.end()
        record.release(record.size)
        share.num_streams -= 1
        if not share.num_streams:
            assert share.num_bytes == 0
            del self._shares[share.tenant_id]


def stream_not_found() -> StreamNotFound:
    return StreamNotFound("There is no such stream, or it is no longer kept.")
