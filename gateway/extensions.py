"""Our extensions of ASGI: what would take a task, or a coroutine for every chunk, in plain calls.

**Writer**: a piece of an answer that has begun. ``send`` is a coroutine that is made, wrapped by
each layer, and run to its end for every chunk of every stream, though the server hardly ever waits
in it. Where the server offers more (``protocol``), the layers in between, which look at heads and
ends, are passed by.

**Departure**: that the client has left. ``receive`` says so to a task that waits for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Scope

WRITER = "sluice.writer"
DEPARTURE = "sluice.departure"
"""In ``scope["extensions"]``."""

Writer = Callable[[bytes], bool]
"""Takes a piece of an HTTP body, or a text message of a WebSocket in UTF-8. False: not now, or not
in this state of the answer; then ``send`` says what is wrong."""


class Departure:
    """Whether the client of a connection has left."""

    __slots__ = ("has_left", "on_leave")

    def __init__(self) -> None:
        self.has_left = False
        self.on_leave: Callable[[], None] | None = None
        """Called when it leaves. One at a time: a connection has one request that is worked on."""

    def leave(self) -> None:
        """For the server."""
        self.has_left = True
        if self.on_leave is not None:
            self.on_leave()


def offer(scope: Any, writer: Writer, departure: Departure | None = None) -> None:
    """For a server, before the application runs."""
    offered = scope.setdefault("extensions", {})
    offered[WRITER] = writer
    if departure is not None:
        offered[DEPARTURE] = departure


def take_writer(scope: Scope) -> Writer | None:
    """None from a server that does not know it. It is there once: it knows the scope, too."""
    found: Writer | None = scope.get("extensions", {}).pop(WRITER, None)
    return found


def departure_of(scope: Scope) -> Departure | None:
    """None from a server that does not know it."""
    found: Departure | None = scope.get("extensions", {}).get(DEPARTURE)
    return found
