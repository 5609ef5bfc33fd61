"""One stream's log, and its readers.

Most items of a stream are events of text alone (``generation.events``). The record keeps only
their text, an object that all streams with the same text share, and makes events of it when
somebody reads. So a stream of 400 events takes 3 KB in place of 120.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.errors import Gone, InvalidRequestError
from gateway.generation.events import Around, Frame, Made, Text, TextForm, TextSink, framed
from tenants.shared import StreamKind

if TYPE_CHECKING:
    from gateway.streams.log import StreamLog

ITEM_OVERHEAD_BYTES = 48
"""Memory that Python needs for an item beside its bytes. It counts towards the bounds."""
STREAM_OVERHEAD_BYTES = 1024
"""The same for a stream."""
MAX_STRETCH_BYTES = 2048
"""The most that a stream's size is increased by before its items need it."""
MAX_READ_ITEMS = 256
"""The most items of one read, so that it does not hold up the event loop."""

Numbered = Callable[[Text, int], bytes]
"""Makes the item of a text at a position."""

Take = Callable[[bytes, float], bool]
"""Called with an item, in the callback that appends it, and with the event loop's time. Returns
whether it takes the item, which is then read. Must neither block nor raise."""


class Cursor:
    """The position of a reader, and where to send what comes while it waits."""

    __slots__ = ("after", "take")

    def __init__(self, after: int, take: Take | None = None) -> None:
        self.after = after
        """How many items of the stream it has read."""
        self.take = take


def whole(items: Sequence[bytes], form: Around | Numbered | None, position: int) -> list[bytes]:
    """The items as they are sent. ``position``: that of the first one."""
    if form is None:
        return list(items)
    if isinstance(form, Around):
        return [form.event(item) if type(item) is Text else item for item in items]
    numbered = enumerate(items, position)
    return [form(item, seq) if type(item) is Text else item for seq, item in numbered]


class Waiting:
    """A reader that has read all items, and waits for the next one."""

    __slots__ = ("cursor", "future")

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def offer(self, item: bytes, now: float) -> None:
        """Send the reader a new item, or wake it."""
        if self.future.done():  # It will read the item itself, or was cancelled.
            return
        take = self.cursor.take
        if take is not None and take(item, now):
            self.cursor.after += 1
        else:
            self.future.set_result(None)

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Share:
    """The size of all streams of one tenant."""

    __slots__ = ("idle", "num_bytes", "num_streams", "tenant_id")

    def __init__(self, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.num_bytes = 0
        self.num_streams = 0
        self.idle: dict[str, Record] = {}
        """The streams that have ended and have no readers, the oldest first."""


class Record:
    """One stream's log.

    Nearly always there is one reader, which takes each item at once: the *follower*. Its cursor is
    not moved for each item, but when it ceases to follow. A follower whose task is cancelled still
    takes items until the task has run; its cursor is then behind these.
    """

    __slots__ = (
        "_follower",
        "_head",
        "_log",
        "_tail",
        "_take",
        "_unused",
        "appended_at",
        "ended",
        "form",
        "items",
        "kind",
        "num_dropped",
        "num_readers",
        "share",
        "size",
        "waiting",
    )

    def __init__(self, log: StreamLog, share: Share, kind: StreamKind) -> None:
        self.share = share
        self.kind = kind
        self.items: list[bytes] = []
        """Whole items and texts, as in ``Kept``."""
        self.form: Around | Numbered | None = None
        """What makes items of the texts."""
        self.num_dropped = 0
        self.size = 0
        """Bytes that count towards the bounds: of all items, and ``_unused`` ones for items to
        come. Most texts take less memory, because streams share them."""
        self.num_readers = 0
        self.ended = False
        """Whether it accepts no more items."""
        self.appended_at = asyncio.get_running_loop().time()
        self.waiting: list[Waiting] = []
        self._follower: Waiting | None = None
        """The reader in ``waiting``, if it is the only one and has taken all items."""
        self._take: Take = _takes_nothing
        """The follower's ``Cursor.take``."""
        self._unused = 0
        """The part of ``size`` that no item has used."""
        self._log = log
        self._head = self._tail = b""
        share.num_streams += 1
        self._grow(STREAM_OVERHEAD_BYTES)

    def text_sink(self, form: TextForm, frame: Frame) -> TextSink | None:
        """Appends an item for each text, framed as ``frame`` does it; None for another form than
        that of the texts so far."""
        before, after = framed(form, frame)
        if isinstance(form, Around):
            around = Around(before + form.head, form.tail + after)
            if self.form not in (None, around):
                return None
            self.form = around
            self._head, self._tail = around
            return self
        if (at := form.at) is not None:
            self.form = lambda text, position: before + at(text, position) + after
        return _MadeItems(self, form, before, after)

    def put(self, text: Text, now: float) -> bool:
        if self.ended:
            return True
        # The same as ``append``, inlined: this runs for each chunk of each stream, where a call
        # and every object that is accessed matter.
        self.items.append(text)
        self.appended_at = now
        self._unused = unused = self._unused - ITEM_OVERHEAD_BYTES - len(text)
        if unused < 0:
            self._take_room()
        take = self._take
        if not take(self._head + text + self._tail, now) and self.waiting:
            self._notify(self._head + text + self._tail, now)
        return True

    def add(self, items: Sequence[bytes]) -> None:
        """Append whole items."""
        if self.ended:
            return
        now = asyncio.get_running_loop().time()
        for item in items:
            self.append(item, now)

    def append(self, item: bytes, now: float, *, text: Text | None = None) -> None:
        """Append an item. ``text``: what to keep in its place, if ``form`` makes the item of it."""
        kept = item if text is None else text
        self.items.append(kept)
        self.appended_at = now
        self._unused -= ITEM_OVERHEAD_BYTES + len(kept)
        if self._unused < 0:
            self._take_room()
        take = self._take
        if not take(item, now) and self.waiting:
            self._notify(item, now)

    def _notify(self, item: bytes, now: float) -> None:
        """Give an item that no follower took to the readers that wait."""
        if self._follower is not None:
            self._unfollow(num_unread=1)
            return
        for waiting in self.waiting:
            waiting.offer(item, now)

    def wait(self, waiting: Waiting) -> None:
        """Add a reader that has read all items."""
        if self._follower is not None:
            self._unfollow(num_unread=0)
        self.waiting.append(waiting)
        if len(self.waiting) == 1 and waiting.cursor.take is not None:
            self._follower, self._take = waiting, waiting.cursor.take

    def leave(self, waiting: Waiting) -> None:
        """Remove a reader that waits no longer."""
        if self._follower is waiting:
            self._unfollow(num_unread=0)
        self.waiting.remove(waiting)

    def _unfollow(self, *, num_unread: int) -> None:
        assert self._follower is not None
        waiting = self._follower
        waiting.cursor.after = self.num_dropped + len(self.items) - num_unread
        self._follower, self._take = None, _takes_nothing
        if num_unread:
            waiting.wake()

    def end(self) -> None:
        self.ended = True
        self._return_unused()
        self.wake()

    def read(self, start: int) -> Sequence[bytes]:
        """Some items, from index ``start`` on."""
        some = self.items[start : start + MAX_READ_ITEMS]
        return whole(some, self.form, self.num_dropped + start)

    def _take_room(self) -> None:
        """Increase the size for the items so far, and for some to come, so that the bounds need not
        be checked for each item."""
        num_bytes = max(-self._unused, self._log.stretch_bytes)
        self._unused += num_bytes
        self._grow(num_bytes)

    def _return_unused(self) -> None:
        """Reduce the size by what was meant for items to come."""
        unused, self._unused = self._unused, 0
        self.release(unused)

    def _grow(self, num_bytes: int) -> None:
        self.size += num_bytes
        self.share.num_bytes += num_bytes
        log = self._log
        if self.size > log.max_stream_bytes or self.share.num_bytes > log.max_tenant_bytes:
            log.make_room(self)

    def drop(self) -> None:
        """Drop the oldest items until the bounds hold."""
        self._return_unused()
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
    """The ``Take`` of a record without a follower."""
    return False


class _MadeItems:
    """A ``TextSink`` for items that are made anew for each text."""

    __slots__ = ("_after", "_before", "_is_numbered", "_make", "_record")

    def __init__(self, record: Record, form: Made, before: bytes, after: bytes) -> None:
        self._record = record
        self._make = form.make
        self._is_numbered = form.at is not None
        self._before, self._after = before, after

    def put(self, text: Text, now: float) -> bool:
        record, make = self._record, self._make
        if record.ended:
            return True
        data = make(text)
        if data is None:
            return False
        if self._before:
            data = self._before + data + self._after
        record.append(data, now, text=text if self._is_numbered else None)
        return True


def check_position(after: int, *, num_dropped: int, num_items: int) -> None:
    """Check that the item after position ``after`` is kept, or can still come.

    Raises ``Gone`` if it was dropped, and ``InvalidRequestError`` if the stream has fewer items.
    """
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
