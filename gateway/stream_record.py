"""One stream's log, and those who follow it.

Most of what a stream says are events of text alone (``text_events``). Of those the record keeps the
text, which it shares with all other streams that said the same, and makes an event of it when
somebody reads: a stream of 400 events takes 3 KB in place of 120.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from gateway.errors import Gone, InvalidRequestError
from gateway.text_events import Around, Numbered, Text
from tenants.shared import StreamKind

ITEM_OVERHEAD_BYTES = 48
"""Of Python's, for each item; it counts towards the bounds."""
STREAM_OVERHEAD_BYTES = 1024
"""The same for each stream."""
MAX_STRETCH_BYTES = 2048
"""Of room that a stream takes before it is needed."""
MAX_READ_ITEMS = 256
"""So many items are read at once, so that one read is no long step of the event loop."""

Take = Callable[[bytes, float], bool]
"""Given an item in the callback that adds it, and the event loop's time; what it takes (True) is
read. Must neither block nor raise."""


class Cursor:
    """How far somebody has read."""

    __slots__ = ("after", "take")

    def __init__(self, after: int, take: Take | None = None) -> None:
        self.after = after
        """The position."""
        self.take = take


class Bounds(Protocol):
    """What all records of a log have in common."""

    max_stream_bytes: int
    max_tenant_bytes: int
    """Of all streams of one tenant."""
    stretch_bytes: int
    """How much room a stream takes at a time."""

    def make_room(self, record: Record) -> None:
        """For a record that has grown beyond a bound."""


def whole(items: Sequence[bytes], form: Around | Numbered | None, position: int) -> list[bytes]:
    """As they are sent. ``position``: that of the first."""
    if form is None:
        return list(items)
    if isinstance(form, Numbered):
        numbered = enumerate(items, position)
        return [form.at(item, seq) if type(item) is Text else item for seq, item in numbered]
    return [form.event(item) if type(item) is Text else item for item in items]


class Waiting:
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


class Share:
    """What a tenant's streams take together."""

    __slots__ = ("idle", "num_bytes", "num_streams", "tenant_id")

    def __init__(self, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.num_bytes = 0
        self.num_streams = 0
        self.idle: dict[str, Record] = {}
        """Those that have ended and are not read, the oldest first."""


class Record:
    """One stream's log; a ``TextSink``, once it knows the ``form`` of its texts.

    Nearly always one reader waits that takes each item at once: the *follower*. Where it stands is
    not written down for each item, but when it follows no longer. One that is cancelled goes on
    taking until its task hears of that, and stands behind what it took.
    """

    __slots__ = (
        "_follower",
        "_head",
        "_log",
        "_tail",
        "_take",
        "_unused",
        "ended",
        "form",
        "items",
        "kind",
        "num_dropped",
        "num_readers",
        "said_at",
        "share",
        "size",
        "waiting",
    )

    def __init__(self, log: Bounds, share: Share, kind: StreamKind) -> None:
        self.share = share
        self.kind = kind
        self.items: list[bytes] = []
        """As ``Kept`` has them."""
        self.form: Around | Numbered | None = None
        """What makes items of texts."""
        self.num_dropped = 0
        self.size = 0
        """What the items take here; of most texts it is less, as other streams have the same. While
        the stream runs, a little for items to come."""
        self.num_readers = 0
        self.ended = False
        """It takes nothing more."""
        self.said_at = asyncio.get_running_loop().time()
        self.waiting: list[Waiting] = []
        self._follower: Waiting | None = None
        """The only one in ``waiting``, while it has taken all items."""
        self._take: Take = _takes_nothing
        """The follower's."""
        self._unused = 0
        """Part of ``size``."""
        self._log = log
        self._head = self._tail = b""
        share.num_streams += 1
        self._grow(STREAM_OVERHEAD_BYTES)

    def set_form(self, form: Around | Numbered) -> None:
        assert self.form in (None, form)
        self.form = form
        if isinstance(form, Around):
            self._head, self._tail = form

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
        take = self._take
        if not take(self._head + text + self._tail, now) and self.waiting:
            self._tell(self._head + text + self._tail, now)
        return True

    def add(self, items: Sequence[bytes]) -> None:
        """Items that are whole."""
        if self.ended:
            return
        now = asyncio.get_running_loop().time()
        for item in items:
            self.say(item, now)

    def say(self, item: bytes, now: float, *, text: Text | None = None) -> None:
        """``text``: kept in place of the item, which ``form`` makes of it."""
        kept = item if text is None else text
        self.items.append(kept)
        self.said_at = now
        self._unused -= ITEM_OVERHEAD_BYTES + len(kept)
        if self._unused < 0:
            self._provide()
        take = self._take
        if not take(item, now) and self.waiting:
            self._tell(item, now)

    def _tell(self, item: bytes, now: float) -> None:
        """Those who wait, of an item that no follower took."""
        if self._follower is not None:
            self._unfollow(num_unread=1)
            return
        for waiting in self.waiting:
            waiting.hear(item, now)

    def wait(self, waiting: Waiting) -> None:
        """Somebody has read all there is."""
        if self._follower is not None:
            self._unfollow(num_unread=0)
        self.waiting.append(waiting)
        if len(self.waiting) == 1 and waiting.cursor.take is not None:
            self._follower, self._take = waiting, waiting.cursor.take

    def leave(self, waiting: Waiting) -> None:
        """It waits no longer."""
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
        self._save()
        self.wake()

    def read(self, start: int) -> Sequence[bytes]:
        """Some from there on."""
        some = self.items[start : start + MAX_READ_ITEMS]
        return whole(some, self.form, self.num_dropped + start)

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


class NumberedItems:
    """A ``TextSink`` of items that hold their positions."""

    __slots__ = ("_following", "_record")

    def __init__(self, record: Record, form: Numbered) -> None:
        record.set_form(form)
        self._record = record
        self._following = form.following

    def put(self, text: Text, now: float) -> bool:
        record, following = self._record, self._following
        if not record.ended:
            record.say(following(text), now, text=text)
        return True


class MadeItems:
    """A ``TextSink`` where items are not all alike."""

    __slots__ = ("_make", "_record")

    def __init__(self, record: Record, make: Callable[[Text], bytes | None]) -> None:
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
