"""What an answer is made of on its way out: events, the encoders that make them, and the channels
that carry them.

Most events of a stream differ only in a piece of text. A token's text is encoded as JSON once, when
it comes for the first time in any stream; after that its events cost no encoding. A stream's log
keeps only the text of such events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.schemas.common import Usage


class Event(NamedTuple):
    """An event. ``data`` is JSON in nearly all of them; ``type`` is empty in formats whose events
    have no names."""

    type: str
    data: bytes


class Text(bytes):
    """Content as the inside of a JSON string, in UTF-8. Its type tells it from a whole event."""

    __slots__ = ()


class Around(NamedTuple):
    """The form of events that have the same data before and after each text."""

    head: bytes
    tail: bytes

    def event(self, text: Text) -> bytes:
        """The data of the event with this text."""
        return self.head + text + self.tail


class Made(NamedTuple):
    """The form of events whose data is made anew for each text: it has the event's number."""

    type: str
    make: Callable[[Text], bytes | None]
    """Makes the next event's data. Returns None, with nothing changed, for a text that needs more
    than one event."""
    at: Callable[[Text, int], bytes] | None = None
    """Makes the data of the event at a position again; None if only ``make`` can."""


TextForm = Around | Made


class TextSink(Protocol):
    """Sends the events of one choice's text."""

    def put(self, text: Text, now: float) -> bool:
        """Send a text's event. False if it cannot be sent now, or needs more than one event. Must
        not block. ``now``: in seconds of ``time.monotonic``, the clock of event loops."""


class Encoder(Protocol):
    """Writes one answer in one format. No I/O.

    First ``opening``, then any number of ``delta``, then ``closing``; ``failure`` may replace the
    rest at any point.
    """

    def opening(self) -> Sequence[Event]: ...

    def delta(self, delta: Delta) -> Sequence[Event]:
        """The events of a delta; none if there is nothing to say."""

    def closing(self, usage: Usage) -> Sequence[Event]:
        """The events after the last delta, only after success."""

    def failure(self, error: ApiError) -> Sequence[Event]: ...

    def heartbeat(self) -> Event | None:
        """An event that changes nothing; None if there can be none now."""

    def text_form(self, index: int) -> TextForm | None:
        """How ``delta`` writes content alone; None if that differs in more than the number.
        ``index``: of the choice."""


class Channel(Protocol):
    """Carries the events of one answer: to a connection, or into a stream's log."""

    @property
    def is_free(self) -> bool:
        """Whether it can take events now: nothing waits for the client."""

    def put(self, events: Sequence[Event]) -> None:
        """Send events; only while ``is_free``. Must not block."""

    def text_sink(self, form: TextForm) -> TextSink | None:
        """Sends content alone, in this form; None if the channel has no shorter way for it."""


class Offers(Protocol):
    """What a connection's channel sends to: an outlet, or a WebSocket's outbox."""

    @property
    def is_free(self) -> bool: ...

    def offer(self, data: bytes, now: float) -> bool: ...


def as_sse(event: Event) -> bytes:
    """The event as a server-sent event (WHATWG HTML, section 9.2)."""
    return b"%bdata: %b\n\n" % (_name(event.type), event.data)


def as_message(event: Event) -> bytes:
    """The event as a WebSocket message."""
    return event.data


Frame = Callable[[Event], bytes]
"""Either of these."""


def framed(form: TextForm, frame: Frame) -> tuple[bytes, bytes]:
    """What ``frame`` puts before and after the data of events of text."""
    kind = form.type if isinstance(form, Made) else ""
    head, _, tail = frame(Event(kind, b"\0")).partition(b"\0")
    return head, tail


def _name(kind: str) -> bytes:
    return b"event: %b\n" % kind.encode() if kind else b""


# Each chunk of each stream passes one of these. They are small objects because with a thousand
# streams each cache line that a chunk needs must be fetched from memory; closures need more.


class AroundTexts:
    """The ``TextSink`` of a connection for one form of text."""

    __slots__ = ("_head", "_offer", "_tail")

    def __init__(self, form: Around, frame: Frame, to: Offers) -> None:
        before, after = framed(form, frame)
        self._head, self._tail = before + form.head, form.tail + after
        self._offer = to.offer

    def put(self, text: Text, now: float) -> bool:
        offer = self._offer
        return offer(self._head + text + self._tail, now)


class MadeTexts:
    """The same for the other."""

    __slots__ = ("_after", "_before", "_make", "_to")

    def __init__(self, form: Made, frame: Frame, to: Offers) -> None:
        self._before, self._after = framed(form, frame)
        self._make = form.make
        self._to = to

    def put(self, text: Text, now: float) -> bool:
        to, make = self._to, self._make
        # Asked first, because an event that is made but not sent would leave a gap in the numbers.
        if not to.is_free or (data := make(text)) is None:
            return False
        if self._before:
            data = self._before + data + self._after
        return to.offer(data, now)


def text_sink(form: TextForm, frame: Frame, to: Offers) -> TextSink:
    """Sends events of text alone to a connection, in a plain call."""
    if isinstance(form, Around):
        return AroundTexts(form, frame, to)
    return MadeTexts(form, frame, to)
