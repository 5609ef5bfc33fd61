"""Logs of resumable streams: the items of each, for clients that come back for them.

``StreamLog`` holds the logs of the streams that run in this process; ``streams`` connects readers
at other processes to it, and ``archive`` keeps logs of streams that have ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from gateway.errors import RateLimited, StreamNotFound
from gateway.generation.events import Around, Frame, TextForm, TextSink
from gateway.streams.record import (
    MAX_STRETCH_BYTES,
    STREAM_OVERHEAD_BYTES,
    Cursor,
    Record,
    Share,
    Take,
    Waiting,
    whole,
)
from tenants.shared import StreamKind

SWEEP_S = 0.1
"""How late streams may be forgotten, so that several are forgotten at once."""


class StreamReader(Protocol):
    """Yields a stream's items from a position on, in batches. ``close`` it in a ``finally``."""

    @property
    def stream_id(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[Sequence[bytes]]: ...

    def divert(self, take: Take) -> None:
        """Offer ``take`` the items that come while this reader waits for the next ones. A reader
        whose items come from another process may yield them all instead."""

    async def beat(self) -> None:
        """Have a heartbeat sent to all readers, to be called after a long silence."""

    def stop(self) -> None:
        """End the stream's work because the client asked for it."""

    def close(self) -> None:
        """Stop reading. Idempotent. The stream continues."""


class Kept(NamedTuple):
    """The contents of a stream's log."""

    num_dropped: int
    """The number of items before those that are kept."""
    items: Sequence[bytes]
    """Each is a whole item, or a ``Text``."""
    around: Around | None
    """What makes items of the texts; None if there are no texts."""


class StreamLog:
    """An append-only list of items for each stream, in memory and bounded in bytes. A *position* is
    a number of items.

    A stream above ``max_stream_bytes`` loses its oldest items. A tenant above ``max_tenant_bytes``
    loses its oldest ended streams, except for those that have readers. If there are no others, it
    can open no more streams, and a stream that grows loses its oldest items. Tenants never take
    each other's memory.
    """

    def __init__(self, *, max_stream_bytes: int, max_tenant_bytes: int, retention_s: float) -> None:
        """``retention_s``: the time from a stream's end until it is forgotten."""
        self.max_stream_bytes = max_stream_bytes
        self.max_tenant_bytes = max_tenant_bytes
        self.stretch_bytes = min(MAX_STRETCH_BYTES, max_stream_bytes // 64)
        """By how much a stream's share of the bounds grows at a time."""
        self._retention_s = retention_s
        self._records: dict[str, Record] = {}
        self._shares: dict[UUID, Share] = {}
        self._ended: dict[str, float] = {}
        """When each ended stream will be forgotten, by the event loop's clock, soonest first."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all, because a timer keeps the ``contextvars`` of its creator in memory."""

    async def create(self, stream_id: str, tenant_id: UUID, kind: StreamKind) -> None:
        """Begin a log. Raises ``RateLimited`` if the tenant's running streams leave no memory for
        another."""
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
        """Append items. Does nothing if the stream has ended."""
        record = self._records.get(stream_id)
        if record is not None:
            record.add(items)

    def text_sink(self, stream_id: str, form: TextForm, frame: Frame) -> TextSink | None:
        """Appends an item for each text, as ``Record.text_sink`` does; None also if the stream is
        forgotten."""
        record = self._records.get(stream_id)
        return None if record is None else record.text_sink(form, frame)

    def appended_at(self, stream_id: str) -> float:
        """When the last item was appended, by the event loop's clock; infinity if the stream is
        forgotten."""
        record = self._records.get(stream_id)
        return math.inf if record is None else record.appended_at

    async def end(self, stream_id: str) -> None:
        """Accept no more items. From now on the stream is kept for a limited time."""
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
        """Count a reader. An ended stream that has one is not dropped to make room for others. Does
        nothing if the stream is unknown."""
        if (record := self._records.get(stream_id)) is not None:
            record.num_readers += 1
            record.share.idle.pop(stream_id, None)

    def detach(self, stream_id: str) -> None:
        """Undo one ``attach``."""
        if (record := self._records.get(stream_id)) is not None:
            record.num_readers -= 1
            if record.ended and not record.num_readers:
                record.share.idle[stream_id] = record

    def kept(self, stream_id: str) -> Kept | None:
        """All items that are kept; None if the stream is forgotten."""
        record = self._records.get(stream_id)
        if record is None:
            return None
        if record.form is None or isinstance(record.form, Around):
            return Kept(record.num_dropped, list(record.items), record.form)
        return Kept(record.num_dropped, whole(record.items, record.form, record.num_dropped), None)

    async def forget(self, stream_id: str, tenant_id: UUID) -> None:
        """Drop all items at once; a running stream accepts no more. Does nothing if the stream is
        unknown, or another tenant's."""
        record = self._records.get(stream_id)
        if record is not None and record.share.tenant_id == tenant_id:
            self._forget(stream_id)

    async def check(
        self, stream_id: str, tenant_id: UUID, *, kind: StreamKind | None = None, after: int = 0
    ) -> None:
        """Check that ``tenant_id`` can read from position ``after`` on.

        Raises:
            StreamNotFound: the stream is unknown, forgotten, another tenant's or of another kind,
                which the client cannot tell apart.
            Gone: the next item is no longer kept.
            InvalidRequestError: the stream has fewer items.
        """
        record = self._record(stream_id)
        if record.share.tenant_id != tenant_id or kind not in (None, record.kind):
            raise stream_not_found()
        if kind is not None:
            record.check(after)

    async def read(self, stream_id: str, cursor: Cursor) -> Sequence[bytes]:
        """Wait for the next items and return them, at least one; none if the stream has ended.

        Moves the cursor. Items that come while it waits are offered to the cursor's ``take`` first.
        Raises as ``check`` does, also if items are dropped before a slow reader has read them.
        """
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
        """Enforce the bounds for a record that has grown."""
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
