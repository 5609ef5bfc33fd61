"""What a resumable stream has said, kept for whoever comes back for it.

``StreamLog`` is the port. ``MemoryStreamLog`` is the log of one gateway process, where its streams
run; ``streams`` leads whoever asks another process there, and ``stream_archive`` keeps the log when
the stream has ended.

Most of what a stream says are events of text alone (``text_events``). Of those the log keeps the
text, which it shares with all other streams that said the same, and makes an event of it when
somebody reads: a stream of 400 events takes 3 KB in place of 120.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from gateway.errors import Gone, InvalidRequestError, RateLimited, StreamNotFound
from gateway.text_events import Around, Text, TextForm, TextSink
from tenants.shared import StreamKind

ITEM_OVERHEAD_BYTES = 48
"""Of Python's, for each item; it counts towards the bounds."""
STREAM_OVERHEAD_BYTES = 1024
"""The same for each stream."""
MAX_READ_ITEMS = 256
"""So many items are read at once, so that one read is no long step of the event loop."""


Take = Callable[[bytes, float], bool]
"""Given an item in the callback that adds it, and the event loop's time; what it takes (True) is
read. Must neither block nor raise."""


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


class Cursor:
    """How far somebody has read."""

    __slots__ = ("after", "take")

    def __init__(self, after: int, take: Take | None = None) -> None:
        self.after = after
        """The position."""
        self.take = take


class Kept(NamedTuple):
    """Of a stream's log."""

    num_dropped: int
    """Items, before those that are kept."""
    items: Sequence[bytes]
    """Each whole, or a ``Text``."""
    around: Around | None
    """What makes items of the texts; None: there are none."""


def whole(items: Sequence[bytes], around: Around | None) -> list[bytes]:
    """As they are sent."""
    if around is None:
        return list(items)
    return [around.event(item) if type(item) is Text else item for item in items]


class _Waiting:
    """A reader that has read all there is."""

    __slots__ = ("cursor", "future")

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, item: bytes, now: float) -> None:
        """This one has come."""
        if self.future.done():  # it will read, or gave up: either way it takes nothing more
            return
        take = self.cursor.take
        if take is not None and take(item, now):
            self.cursor.after += 1
        else:
            self.future.set_result(None)

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Share:
    """What a tenant's streams take together."""

    __slots__ = ("num_bytes", "num_streams", "tenant_id")

    def __init__(self, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.num_bytes = 0
        self.num_streams = 0


class _Record:
    """One stream's log; a ``TextSink``, once it knows what is ``around`` the texts."""

    __slots__ = (
        "_head",
        "_log",
        "_tail",
        "_text_bytes",
        "around",
        "ended",
        "items",
        "kind",
        "num_dropped",
        "said_at",
        "share",
        "size",
        "waiting",
    )

    def __init__(self, log: MemoryStreamLog, share: _Share, kind: StreamKind) -> None:
        self.share = share
        self.kind = kind
        self.items: list[bytes] = []
        """As ``Kept`` has them."""
        self.around: Around | None = None
        self.num_dropped = 0
        self.size = 0
        """What the items take as they are sent: what they take here is less."""
        self.ended = False
        """It takes nothing more."""
        self.said_at = asyncio.get_running_loop().time()
        self.waiting: list[_Waiting] = []
        self._log = log
        self._head = self._tail = b""
        self._text_bytes = 0
        share.num_streams += 1
        self.grow(STREAM_OVERHEAD_BYTES)

    def set_around(self, around: Around) -> None:
        assert self.around in (None, around)
        self.around = around
        self._head, self._tail = around
        self._text_bytes = len(around.head) + len(around.tail) + ITEM_OVERHEAD_BYTES

    def put(self, text: Text, now: float) -> bool:
        if self.ended:
            return True
        self.items.append(text)
        self.said_at = now
        # ``grow`` and ``hear``, written out: for each chunk of each stream, a call is a cost.
        share, log, num_bytes = self.share, self._log, self._text_bytes + len(text)
        self.size = size = self.size + num_bytes
        share.num_bytes = in_all = share.num_bytes + num_bytes
        if size > log.max_stream_bytes or in_all > log.max_tenant_bytes:
            log.make_room(self)
        if self.waiting:
            item = self._head + text + self._tail
            for waiting in self.waiting:
                if waiting.future.done():
                    continue
                cursor = waiting.cursor
                if (take := cursor.take) is not None and take(item, now):
                    cursor.after += 1
                else:
                    waiting.future.set_result(None)
        return True

    def add(self, items: Sequence[bytes]) -> None:
        """Items that are whole."""
        if self.ended:
            return
        now = asyncio.get_running_loop().time()
        for item in items:
            self.say(item, now)

    def say(self, item: bytes, now: float) -> None:
        self.items.append(item)
        self.said_at = now
        self.grow(len(item) + ITEM_OVERHEAD_BYTES)
        for waiting in self.waiting:
            waiting.hear(item, now)

    def read(self, start: int) -> Sequence[bytes]:
        """Some from there on."""
        return whole(self.items[start : start + MAX_READ_ITEMS], self.around)

    def grow(self, num_bytes: int) -> None:
        self.size += num_bytes
        self.share.num_bytes += num_bytes
        log = self._log
        if self.size > log.max_stream_bytes or self.share.num_bytes > log.max_tenant_bytes:
            log.make_room(self)

    def drop(self, num_bytes: int) -> None:
        """The oldest items, until so many bytes are free."""
        num_dropped, freed = 0, 0
        while freed < num_bytes and num_dropped < len(self.items):
            item = self.items[num_dropped]
            overhead = self._text_bytes if type(item) is Text else ITEM_OVERHEAD_BYTES
            freed += len(item) + overhead
            num_dropped += 1
        del self.items[:num_dropped]
        self.num_dropped += num_dropped
        self.release(freed)

    def release(self, num_bytes: int) -> None:
        self.size -= num_bytes
        self.share.num_bytes -= num_bytes

    def wake(self) -> None:
        for waiting in self.waiting:
            waiting.wake()

    def check(self, after: int) -> None:
        check_position(after, num_dropped=self.num_dropped, num_items=len(self.items))


class _MadeItems:
    """A ``TextSink`` where items are not all alike."""

    __slots__ = ("_make", "_record")

    def __init__(self, record: _Record, make: Callable[[Text], bytes | None]) -> None:
        self._record = record
        self._make = make

    def put(self, text: Text, now: float) -> bool:
        if self._record.ended:
            return True
        item = self._make(text)
        if item is None:
            return False
        self._record.say(item, now)
        return True


def check_position(after: int, *, num_dropped: int, num_items: int) -> None:
    """Raises ``Gone`` or ``InvalidRequestError`` where no item can come next."""
    if after < num_dropped:
        raise Gone(
            f"Of this stream only what came after position {num_dropped} is still kept.",
            code="stream_position_gone",
        )
    if after > num_dropped + num_items:
        raise InvalidRequestError(
            f"The stream has only {num_dropped + num_items} items until now.",
            code="invalid_stream_position",
        )


class MemoryStreamLog:
    """A ``StreamLog`` in this process's memory, bounded in bytes.

    A stream above ``max_stream_bytes`` loses its oldest items. A tenant above ``max_tenant_bytes``
    loses its oldest ended streams; when all its streams run, it may open no more, and the one that
    grows loses its oldest items. Tenants never take each other's room.
    """

    def __init__(self, *, max_stream_bytes: int, max_tenant_bytes: int, retention_s: float) -> None:
        """``retention_s``: time from a stream's end until it is forgotten."""
        self.max_stream_bytes = max_stream_bytes
        self.max_tenant_bytes = max_tenant_bytes
        self._retention_s = retention_s
        self._records: dict[str, _Record] = {}
        self._shares: dict[UUID, _Share] = {}
        self._ended: dict[str, asyncio.TimerHandle] = {}  # oldest end first

    def size_of(self, tenant_id: UUID) -> int:
        """In bytes."""
        share = self._shares.get(tenant_id)
        return 0 if share is None else share.num_bytes

    async def create(self, stream_id: str, tenant_id: UUID, kind: StreamKind) -> None:
        assert stream_id not in self._records
        self._forget_ended(tenant_id, room_for=STREAM_OVERHEAD_BYTES)
        if self.size_of(tenant_id) + STREAM_OVERHEAD_BYTES > self.max_tenant_bytes:
            raise RateLimited(
                "Your running resumable streams fill the room there is for them; open this one "
                "without, or try again when one has ended.",
                code="too_many_streams",
            )
        share = self._shares.setdefault(tenant_id, _Share(tenant_id))
        self._records[stream_id] = _Record(self, share, kind)

    def append(self, stream_id: str, items: Sequence[bytes]) -> None:
        record = self._records.get(stream_id)
        if record is not None:
            record.add(items)

    def text_sink(self, stream_id: str, form: TextForm) -> TextSink | None:
        record = self._records.get(stream_id)
        if record is None:
            return None
        if not isinstance(form, Around):
            return _MadeItems(record, form)
        record.set_around(form)
        return record

    def said_at(self, stream_id: str) -> float:
        record = self._records.get(stream_id)
        return math.inf if record is None else record.said_at

    async def end(self, stream_id: str) -> None:
        record = self._records.get(stream_id)
        if record is None or record.ended:
            return
        record.ended = True
        record.wake()
        loop = asyncio.get_running_loop()
        self._ended[stream_id] = loop.call_later(self._retention_s, self._forget, stream_id)

    def kept(self, stream_id: str) -> Kept | None:
        record = self._records.get(stream_id)
        if record is None:
            return None
        return Kept(record.num_dropped, list(record.items), record.around)

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
            waiting = _Waiting(cursor)
            record.waiting.append(waiting)
            try:
                await waiting.future
            finally:
                record.waiting.remove(waiting)

    def _record(self, stream_id: str) -> _Record:
        record = self._records.get(stream_id)
        if record is None:
            raise stream_not_found()
        return record

    def make_room(self, record: _Record) -> None:
        """For a record that has grown."""
        self._forget_ended(record.share.tenant_id)
        record.drop(
            max(
                record.size - self.max_stream_bytes,
                record.share.num_bytes - self.max_tenant_bytes,
            )
        )

    def _forget_ended(self, tenant_id: UUID, *, room_for: int = 0) -> None:
        limit = self.max_tenant_bytes - room_for
        if self.size_of(tenant_id) <= limit:
            return
        for stream_id in list(self._ended):
            if self._records[stream_id].share.tenant_id == tenant_id:
                self._forget(stream_id)
                if self.size_of(tenant_id) <= limit:
                    return

    def _forget(self, stream_id: str) -> None:
        if (timer := self._ended.pop(stream_id, None)) is not None:
            timer.cancel()
        record = self._records.pop(stream_id)
        record.ended = True
        record.wake()
        record.release(record.size)
        share = record.share
        share.num_streams -= 1
        if not share.num_streams:
            assert share.num_bytes == 0
            del self._shares[share.tenant_id]


def stream_not_found() -> StreamNotFound:
    return StreamNotFound("There is no such stream, or it is no longer kept.")
