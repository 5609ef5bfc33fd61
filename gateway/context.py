"""State shared by the layers of one HTTP request or WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from uuid import UUID

from starlette.types import Scope, Send

from gateway import rate_limits
from gateway.schemas.operation import Operation
from gateway.transport import extensions
from gateway.transport.extensions import Disconnect, Writer
from tenants.attempts import Attempt, with_less
from tenants.limits import QuotaAnswer
from tenants.request_ids import new_request_id
from tenants.types import Principal, UsageEvent

_KEY = "sluice"


class Notes(dict[str, str | int | float]):
    """Facts for a request's line in the access log: no prompts, no keys."""

    is_written = False
    """Whether the line was written, so that what comes later needs one of its own."""
    endpoint = ""
    """The path of the operation, as the route table has it; empty if there is none."""


notes: ContextVar[Notes | None] = ContextVar("notes", default=None)
"""Those of the HTTP request or the WebSocket that is being answered."""


class Deferred:
    """Takes the usage of a request that somebody else settles: with the result of a batch's line,
    in one transaction. Such a request is of the idle class, and it is not billed if this process
    dies, because it runs again then."""

    def __init__(self) -> None:
        self.event: asyncio.Future[UsageEvent | None] | None = None
        """What was used; None before the request has reached the engine."""

    def begin(self) -> None:
        """The request runs, and will be settled."""
        self.event = asyncio.get_running_loop().create_future()

    def settle(self, event: UsageEvent | None) -> None:
        """To be called at least once; what comes first counts. None: it cannot be said."""
        assert self.event is not None
        if not self.event.done():
            self.event.set_result(event)


deferred: ContextVar[Deferred | None] = ContextVar("deferred", default=None)
"""Set where a line of a batch is answered."""


def endpoint() -> str | None:
    """The path of the operation that is being answered; None outside of requests."""
    noted = notes.get()
    return None if noted is None else noted.endpoint or None


@dataclass(slots=True)
class RequestContext:
    """One for each HTTP request or WebSocket, made by the outermost middleware."""

    send: Send
    """Sends chunks of an answer that has begun, bypassing the middleware, which looks only at heads
    and ends."""
    write: Writer | None = None
    """The same as a plain function call, where the server offers it."""
    trust: Callable[[], None] | None = None
    """To be called when the client has authenticated, where the server offers it."""
    disconnect: Disconnect | None = None
    """Tells when the client leaves, where the server offers it."""
    request_id: UUID = field(default_factory=new_request_id)
    client_request_id: str | None = None
    """The client's own name for it, if it has sent one of the right shape."""
    operation: Operation | None = None
    """Set by ``middleware.auth``; None if there is none at the path."""
    principal: Principal | None = None
    """Set by ``middleware.auth``, or by a WebSocket session once it is authenticated."""
    notes: Notes = field(default_factory=Notes)
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the answer, successful or not, such as the rate limits as of admission."""
    attempt: Attempt | None = None
    """Set by ``middleware.rate_limit`` while the request may be refused."""
    on_admitted: Callable[[], None] | None = None
    """Set by ``middleware.memory_share``, which lets another request in then."""

    def found(self, operation: Operation) -> None:
        """The operation that the request asks for."""
        self.operation = operation
        self.notes.endpoint = operation.path

    def admitted(self, answer: QuotaAnswer) -> None:
        """The store counts the request from now on. ``answer``: what it said."""
        if self.on_admitted is not None:
            self.on_admitted()
        if self.attempt is not None:
            self.attempt.end()
            answer = with_less(answer, self.attempt.window)
        self.headers.update(rate_limits.headers(answer))


def attach(scope: Scope, send: Send) -> RequestContext:
    context = RequestContext(
        send,
        extensions.take_writer(scope),
        extensions.take_trust(scope),
        extensions.disconnect_of(scope),
    )
    scope[_KEY] = context
    return context


def detach(scope: Scope) -> None:
    """Break the reference cycle between the scope and the functions that send on its behalf, which
    would wait for the garbage collector."""
    del scope[_KEY]


def fork(scope: Scope, send: Send, disconnect: Disconnect) -> Scope:
    """The scope for work that answers to ``send`` and may outlive the request: it shares what the
    request is and what is noted of it, not how its client is reached, nor when that has left."""
    return {**scope, _KEY: replace(of(scope), send=send, write=None, disconnect=disconnect)}


def of(scope: Scope) -> RequestContext:
    context = scope[_KEY]
    assert isinstance(context, RequestContext)
    return context


def principal_of(scope: Scope) -> Principal:
    """The principal of a request that passed ``middleware.auth``."""
    principal = of(scope).principal
    assert principal is not None, "the route must not be public"
    return principal
