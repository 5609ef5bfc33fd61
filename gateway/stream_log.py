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
MAX_STRETCH_BYTES = 2048
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

    __slots__ = ("idle", "num_bytes", "num_streams", "tenant_id")

    def __init__(self, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.num_bytes = 0
        self.num_streams = 0
        self.idle: dict[str, _Record] = {}
        """Those that have ended and are not read, the oldest first."""


class _Record:
    """One stream's log; a ``TextSink``, once it knows what is ``around`` the texts.

    Nearly always one reader waits that takes each item at once: the *follower*. Where it stands is
    not written down for each item, but when it follows no longer.
    """

    __slots__ = (
        "_follower",
        "_head",
        "_log",
        "_tail",
        "_take",
        "_unused",
        "around",
        "ended",
        "items",
        "kind",
        "num_dropped",
        "num_readers",
        "retention",
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
        """What the items take here; of most texts it is less, as other streams have the same. While
        the stream runs, a little for items to come."""
        self.num_readers = 0
        self.ended = False
        """It takes nothing more."""
        self.said_at = asyncio.get_running_loop().time()
        self.retention: asyncio.TimerHandle | None = None
        """Forgets it, some time after its end."""
        self.waiting: list[_Waiting] = []
        self._follower: asyncio.Future[None] | None = None
        """What the only one in ``waiting`` waits for, while it has taken all items."""
        self._take: Take = _takes_nothing
        """The follower's."""
        self._unused = 0
        """Part of ``size``."""
        self._log = log
        self._head = self._tail = b""
        share.num_streams += 1
        self._grow(STREAM_OVERHEAD_BYTES)

    def set_around(self, around: Around) -> None:
        assert self.around in (None, around)
        self.around = around
        self._head, self._tail = around

    def put(self, text: Text, now: float) -> bool:
        if self.ended:
            return True
        # ``say``, written out: for each chunk of each stream, a call is a cost, and so is every
        # object that is touched.
        self.items.append(text)
        self.said_at = now
        self._unused = unused = self._unused - ITEM_OVERHEAD_BYTES - len(text)
        if unused < 0:
            self._provide()
        follower = self._follower
        if follower is not None:
            if follower.done() or not self._take(self._head + text + self._tail, now):
                self._unfollow(num_unread=1)
        elif self.waiting:
            self._tell(self._head + text + self._tail, now)
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
        self._unused -= ITEM_OVERHEAD_BYTES + len(item)
        if self._unused < 0:
            self._provide()
        if self._follower is None:
            self._tell(item, now)
        elif self._follower.done() or not self._take(item, now):
            self._unfollow(num_unread=1)

    def _tell(self, item: bytes, now: float) -> None:
        for waiting in self.waiting:
            waiting.hear(item, now)

    def wait(self, waiting: _Waiting) -> None:
        """Somebody has read all there is."""
        if self._follower is not None:
            self._unfollow(num_unread=0)
        self.waiting.append(waiting)
        if len(self.waiting) == 1 and waiting.cursor.take is not None:
            self._follower, self._take = waiting.future, waiting.cursor.take

    def leave(self, waiting: _Waiting) -> None:
        """It waits no longer."""
        if self._follower is waiting.future:
            self._unfollow(num_unread=0)
        self.waiting.remove(waiting)

    def _unfollow(self, *, num_unread: int) -> None:
        (waiting,) = self.waiting
        waiting.cursor.after = self.num_dropped + len(self.items) - num_unread
        self._follower, self._take = None, _takes_nothing
        if num_unread:
            waiting.wake()

    def end(self) -> None:
        self.ended = True
        self._save()
        self.wake()

    def read(self, start: int) -> Sequence[bytes]:
        """Some from there on."""
        return whole(self.items[start : start + MAX_READ_ITEMS], self.around)

    def _provide(self) -> None:
        """Room for the items there are, and for some to come: the bounds are not looked at for each
        of them."""
        num_bytes = max(-self._unused, self._log.stretch_bytes)
        self._unused += num_bytes
        self._grow(num_bytes)

    def _save(self) -> None:
        """The room for items to come."""
        unused, self._unused = self._unused, 0
        self.release(unused)

    def _grow(self, num_bytes: int) -> None:
        self.size += num_bytes
        self.share.num_bytes += num_bytes
        log = self._log
        if self.size > log.max_stream_bytes or self.share.num_bytes > log.max_tenant_bytes:
            log.make_room(self)

    def drop(self) -> None:
        """The oldest items, until the bounds hold."""
        self._save()
        log, share = self._log, self.share
        excess = max(self.size - log.max_stream_bytes, share.num_bytes - log.max_tenant_bytes)
        num_dropped, freed = 0, 0
        while freed < excess and num_dropped < len(self.items):
            freed += len(self.items[num_dropped]) + ITEM_OVERHEAD_BYTES
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


def _takes_nothing(item: bytes, now: float) -> bool:
    """Of no follower."""
    return False


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
        self._records: dict[str, _Record] = {}
        self._shares: dict[UUID, _Share] = {}

    def size_of(self, tenant_id: UUID) -> int:
        """In bytes."""
        share = self._shares.get(tenant_id)
        return 0 if share is None else share.num_bytes

    async def create(self, stream_id: str, tenant_id: UUID, kind: StreamKind) -> None:
        assert stream_id not in self._records
        share = self._shares.get(tenant_id) or _Share(tenant_id)
        self._forget_ended(share, room_for=STREAM_OVERHEAD_BYTES)
        if share.num_bytes + STREAM_OVERHEAD_BYTES > self.max_tenant_bytes:
            raise RateLimited(
                "Your running resumable streams fill the room there is for them; open this one "
                "without, or try again when one has ended.",
                code="too_many_streams",
            )
        self._shares[tenant_id] = share
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
        record.end()
        if not record.num_readers:
            record.share.idle[stream_id] = record
        loop = asyncio.get_running_loop()
        record.retention = loop.call_later(self._retention_s, self._forget, stream_id)

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
            record.wait(waiting)
            try:
                await waiting.future
            finally:
                record.leave(waiting)

    def _record(self, stream_id: str) -> _Record:
        record = self._records.get(stream_id)
        if record is None:
            raise stream_not_found()
        return record

    def make_room(self, record: _Record) -> None:
        """For a record that has grown."""
        self._forget_ended(record.share)
        record.drop()

    def _forget_ended(self, share: _Share, *, room_for: int = 0) -> None:
        while share.idle and share.num_bytes + room_for > self.max_tenant_bytes:
            self._forget(next(iter(share.idle)))

    def _forget(self, stream_id: str) -> None:
        record = self._records.pop(stream_id)
        share = record.share
        share.idle.pop(stream_id, None)
        if record.retention is not None:
            record.retention.cancel()
        record.end()
        record.release(record.size)
        share.num_streams -= 1
        if not share.num_streams:
            assert share.num_bytes == 0
            del self._shares[share.tenant_id]


def stream_not_found() -> StreamNotFound:
    return StreamNotFound("There is no such stream, or it is no longer kept.")
