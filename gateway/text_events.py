"""Events that differ in nothing but a piece of text: most of what a server streams.

Such an event is a head, the text and a tail. What a token says is written for JSON once, when it
comes for the first time, in whichever stream; after that an event costs no encoding, and a log of
them keeps the text alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Text(bytes):
    """Content as it stands within a JSON string. Its type tells it from a whole event."""

    __slots__ = ()


class Around(NamedTuple):
    """What stands before and behind the text in an event that holds it."""

    head: bytes
    tail: bytes

    def event(self, text: Text) -> bytes:
        """With ``text`` between them."""
        return self.head + text + self.tail


class Numbered(NamedTuple):
    """Makes events that hold their own position in the stream."""

    following: Callable[[Text], bytes]
    """The next one."""
    at: Callable[[Text, int], bytes]
    """The one at a position, again."""


TextForm = Around | Numbered | Callable[[Text], bytes | None]
"""How an event of text alone is made: from what is always around it, with its number, or by a
function that is called once for each event, in their order; None where this one takes more than an
event. Of the first two a log keeps the text alone."""


class TextSink(Protocol):
    """Takes the text of one choice."""

    def put(self, text: Text, now: float) -> bool:
        """``now``: in seconds of ``time.monotonic``, which event loops go by.

        False: not now. Must not block.
        """
