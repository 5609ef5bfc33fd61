"""Three extensions of ASGI. Two replace a coroutine for each chunk, and a task for each request.

``sluice.writer`` sends a piece of an answer that has begun, in a plain call. ASGI's ``send`` is a
coroutine, which each layer of middleware wraps again, and it runs for every chunk of every stream
although the server hardly ever waits in it. The writer bypasses the middleware, which only looks at
the start and the end of an answer.

``sluice.disconnect`` calls back when the client has left. With ASGI's ``receive`` a task must wait
for that.

``sluice.trust`` tells the server that a client has authenticated. Until then the server takes only
few and small frames of a WebSocket, and closes a connection if it needs the place for another.

``protocol`` offers all of them; with another server, ``send`` and ``receive`` are used, and all
clients are trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Scope

WRITER = "sluice.writer"
DISCONNECT = "sluice.disconnect"
TRUST = "sluice.trust"
"""Keys of ``scope["extensions"]``."""

Writer = Callable[[bytes], bool]
"""Takes a piece of an HTTP body, or a text message of a WebSocket in UTF-8. Returns False if it
cannot be written now, or in this state of the answer; then ``send`` waits, or raises."""


class Disconnect:
    """Whether the client of a connection has left."""

    __slots__ = ("has_left", "on_leave")

    def __init__(self) -> None:
        self.has_left = False
        self.on_leave: Callable[[], None] | None = None
        """Called when the client leaves. There is one callback, because the application works on
        one request of a connection at a time."""

    def leave(self) -> None:
        """To be called by the server when the connection is lost."""
        self.has_left = True
        if self.on_leave is not None:
            self.on_leave()


def offer(scope: Any, writer: Writer, disconnect: Disconnect | None = None) -> None:
    """Put the extensions into ``scope``: for a server, before the application runs."""
    offered = scope.setdefault("extensions", {})
    offered[WRITER] = writer
    if disconnect is not None:
        offered[DISCONNECT] = disconnect


def offer_trust(scope: Any, trust: Callable[[], None]) -> None:
    """Put the extension into ``scope``."""
    scope.setdefault("extensions", {})[TRUST] = trust


def take_trust(scope: Scope) -> Callable[[], None] | None:
    """Remove the extension from ``scope``, which it refers to itself."""
    found: Callable[[], None] | None = scope.get("extensions", {}).pop(TRUST, None)
    return found


def take_writer(scope: Scope) -> Writer | None:
    """Remove the writer from ``scope``, which it refers to itself; None if the server has none."""
    found: Writer | None = scope.get("extensions", {}).pop(WRITER, None)
    return found


def disconnect_of(scope: Scope) -> Disconnect | None:
    """Whether the client of ``scope`` has left; None if the server does not offer it."""
    found: Disconnect | None = scope.get("extensions", {}).get(DISCONNECT)
    return found
