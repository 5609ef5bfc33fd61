"""What a route states about itself: the router, the middleware and the documents follow from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from tenants.types import Scope

SOCKET = "(WebSocket)"
"""In place of a method, for the handshake of a WebSocket; no method of HTTP can be called so."""


class Parameter(NamedTuple):
    """One that is given in the query."""

    name: str
    schema: dict[str, Any]
    description: str


class Operation(msgspec.Struct, frozen=True):
    """One method at one path; ``gateway.routes.table`` lists all of them."""

    method: str
    path: str
    """In Starlette's notation: ``{name}``, or ``{name:path}`` if slashes may be in it."""
    summary: str
    """Empty for a file of a page, which no document lists."""
    handler: Callable[..., Awaitable[Any]]
    """Called with ``Services`` and the request, then with the decoded body if there is a ``body``.
    It returns the answer. That of a socket gets the ``WebSocket`` and returns None."""
    scope: Scope | None = "chat"
    """What a key needs; None if no key is needed. Sockets authenticate themselves, so theirs is
    checked after the handshake."""
    body: Any = None
    """The struct that the body is decoded into; what clients may send, for a socket."""
    answer: type[msgspec.Struct] | None = None
    events: Any = None
    """The data of a streamed answer's events; what the server sends, for a socket."""
    status: int = 200
    query: tuple[Parameter, ...] = ()
    uploads: bool = False
    """Whether its body is a form with a file, which the handler reads as it comes."""
    reserves: bool = False
    """Whether it reserves tokens of the client's limits: if these are known to be used up, the
    request is refused before its body is read."""
    idempotent: bool = False
    """Whether an ``Idempotency-Key`` stands for its answer."""
