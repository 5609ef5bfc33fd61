"""The handshake of the WebSockets ``/v1/chat`` and ``/v1/responses``.

Refusals are real HTTP answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from starlette.datastructures import Headers
from starlette.websockets import WebSocket

from gateway import context
from gateway.errors import Draining, InvalidRequestError, PermissionDenied
from gateway.middleware.auth import credential_in, key_in
from gateway.oidc.sign_in import is_same_origin
from gateway.services import Services
from gateway.sockets.session import SocketSession
from gateway.sockets.tickets import Tickets
from gateway.transport.connections import network_of

MakeSession = Callable[[WebSocket, str | None], SocketSession]
SUBPROTOCOL = "sluice.v1"
KEY_SUBPROTOCOL = "sluice.api-key."
"""Before an API key, for clients that can set nothing but subprotocols."""


async def open_chat(services: Services, socket: WebSocket) -> None:
    await _serve(services, socket, services.chat_session)


async def open_responses(services: Services, socket: WebSocket) -> None:
    await _serve(services, socket, services.responses_session)


async def _serve(services: Services, socket: WebSocket, make_session: MakeSession) -> None:
    allowed = services.config.server.allowed_origins
    if services.authenticator.config.public_url is not None:
        allowed = (*allowed, services.authenticator.config.origin)
    check_origin(socket.headers, allowed)
    if services.lifecycle.draining:
        raise Draining("The server is shutting down.", retry_after_s=1)
    api_key = await credential(socket, services.tickets)
    if api_key is None:
        api_key = credential_in(socket.scope, services.authenticator)
    with _counted(services, socket, is_stranger=api_key is None) as welcome:
        if api_key is not None:
            request = context.of(socket.scope)
            request.principal = await services.authenticator.authenticate(api_key)
            welcome()
        await _run(services, socket, make_session(socket, api_key))


@contextlib.contextmanager
def _counted(
    services: Services, socket: WebSocket, *, is_stranger: bool
) -> Iterator[Callable[[], None]]:
    """Count the socket by its tenant as soon as ``trust`` of its context is called, which is
    yielded here; until then by its address, if it is a stranger's."""
    request = context.of(socket.scope)
    trust = request.trust
    leave: Callable[[], None] | None = None
    if is_stranger:
        address = socket.client.host if socket.client else ""
        leave = services.strangers.enter(network_of(address))

    def welcome() -> None:
        nonlocal leave
        assert request.principal is not None
        leave_tenant = services.members.enter(request.principal.tenant.id.hex)
        if leave is not None:
            leave()
        leave, request.trust = leave_tenant, None
        if trust is not None:
            trust()

    request.trust = welcome
    try:
        yield welcome
    finally:
        request.trust = None  # It refers to the request.
        if leave is not None:
            leave()


async def _run(services: Services, socket: WebSocket, session: SocketSession) -> None:
    # Never the one with the key: what is echoed can be read by the page and by its logs.
    offered = socket.scope["subprotocols"]
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    services.lifecycle.sessions.add(session)
    services.metrics.count_socket(+1)
    try:
        await session.run()
    finally:
        services.lifecycle.sessions.discard(session)
        services.metrics.count_socket(-1)


async def credential(socket: WebSocket, tickets: Tickets) -> str | None:
    """The API key in the handshake: in a header, by a ticket or in a subprotocol.

    None if there is none, so that the first message must contain it. Raises ``InvalidApiKey`` for a
    bad ticket. Raises ``InvalidRequestError`` if there is more than one, or if there is a key among
    the subprotocols but not ``SUBPROTOCOL``: a browser fails a handshake that selects none of its
    subprotocols, and the one with the key must not be echoed.
    """
    offered: list[str] = socket.scope["subprotocols"]
    keys = [name.removeprefix(KEY_SUBPROTOCOL) for name in offered if _holds_key(name)]
    used = socket.query_params.getlist("ticket")
    header = key_in(socket.headers)
    if len(keys) + len(used) + (header is not None) > 1:
        raise InvalidRequestError(
            "Authenticate in one way: the Authorization header, a ticket or a subprotocol."
        )
    if used:
        return await tickets.redeem(used[0])
    if keys:
        if SUBPROTOCOL not in offered:
            raise InvalidRequestError(
                f"Offer the subprotocol {SUBPROTOCOL} beside the one with the key.",
                param="sec-websocket-protocol",
            )
        return keys[0]
    return header


def _holds_key(subprotocol: str) -> bool:
    return subprotocol.startswith(KEY_SUBPROTOCOL)


def check_origin(headers: Headers, allowed: Sequence[str]) -> None:
    """Raise ``PermissionDenied`` for web pages of other origins. Browsers always send the header
    (RFC 6455, section 10.2); other clients need not."""
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    if is_same_origin(origin.lower(), headers):
        return
    raise PermissionDenied(
        "This web page may not open a WebSocket here; add its origin to server.allowed_origins.",
        code="origin_not_allowed",
    )
