"""Our extension of ASGI: a piece of an answer that has begun goes out in a plain call.

``send`` is a coroutine that is made, wrapped by each layer, and run to its end for every chunk of
every stream, though the server hardly ever waits in it. Where the server offers more
(``protocol``), the layers in between, which look at heads and ends, are passed by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Scope

NAME = "sluice.writer"
"""In ``scope["extensions"]``."""

Writer = Callable[[Any], bool]
"""Takes a piece of an HTTP body, as bytes, or a message of a WebSocket, as text. False: not now, or
not in this state of the answer; then ``send`` says what is wrong."""


def offer(scope: Any, writer: Writer) -> None:
    """For a server, before the application runs."""
    scope.setdefault("extensions", {})[NAME] = writer


def take_writer(scope: Scope) -> Writer | None:
    """None from a server that does not know it. It is there once: it knows the scope, too."""
    found: Writer | None = scope.get("extensions", {}).pop(NAME, None)
    return found
