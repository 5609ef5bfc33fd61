"""Events that differ only in a piece of text, as most events of a stream do.

Such an event is a head, the text and a tail. A token's text is encoded as JSON once, when it comes
for the first time in any stream; after that its events cost no encoding. A stream's log keeps only
the text of such events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Text(bytes):
    """Content as the inside of a JSON string, in UTF-8. Its type tells it from a whole event."""

    __slots__ = ()


class Around(NamedTuple):
    """What precedes and follows the text in each event."""

    head: bytes
    tail: bytes

    def event(self, text: Text) -> bytes:
        """The event with this text."""
        return self.head + text + self.tail


class Numbered(NamedTuple):
    """Makes events that contain their own position in the stream."""

    following: Callable[[Text], bytes]
    """Makes the next event."""
    at: Callable[[Text, int], bytes]
    """Makes the event at a position again."""


TextForm = Around | Numbered | Callable[[Text], bytes | None]
"""How an event of text alone is made: with the same head and tail each time, with its number, or by
a function that is called once for each event, in order, and returns None for a text that needs more
than one event. With the first two, a stream's log keeps only the text."""


class TextSink(Protocol):
    """Takes the text of one choice."""

    def put(self, text: Text, now: float) -> bool:
        """Send a text. False if it cannot be sent now. Must not block.

        ``now``: in seconds of ``time.monotonic``, the clock of event loops.
        """
