"""What the layers of one HTTP request or WebSocket know of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID, uuid4

from starlette.types import Scope, Send

from gateway import extensions
from gateway.extensions import Departure, Writer
from tenants.types import Principal

_KEY = "sluice"


@dataclass(slots=True)
class RequestContext:
    """Made by the outermost middleware, one for each HTTP request or WebSocket."""

    send: Send
    """For the chunks of an answer that has begun: past the layers, which look at heads and ends."""
    write: Writer | None = None
    """The same in a plain call, where the server offers it."""
    departure: Departure | None = None
    """Of the client, where the server tells of it."""
    request_id: UUID = field(default_factory=uuid4)
    principal: Principal | None = None
    """Set by ``middleware.auth``, or by a WebSocket session once it is authenticated."""
    notes: dict[str, str | int | float] = field(default_factory=dict)
    """Facts for the line in the access log: no prompts, no keys."""
    rate_limits: dict[str, str] = field(default_factory=dict)
    """Headers for the answer, whatever it will be: the limits as admission left them."""


def attach(scope: Scope, send: Send) -> RequestContext:
    context = RequestContext(send, extensions.take_writer(scope), extensions.departure_of(scope))
    scope[_KEY] = context
    return context


def detach(scope: Scope) -> None:
    """At the end: the scope and what sends on its behalf know each other, and would both wait for
    the garbage collector."""
    del scope[_KEY]


def of(scope: Scope) -> RequestContext:
    context = scope[_KEY]
    assert isinstance(context, RequestContext)
    return context


def principal_of(scope: Scope) -> Principal:
    """Of a request that passed ``middleware.auth``."""
    principal = of(scope).principal
    assert principal is not None, "the route must not be public"
    return principal
