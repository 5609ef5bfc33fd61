"""The handshake of the WebSockets ``/v1/chat`` and ``/v1/responses``.

Refusals are real HTTP answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from gateway import context
from gateway.errors import Draining, InvalidRequestError, NotFound, PermissionDenied
from gateway.lifecycle import Lifecycle
from gateway.metrics.metrics import Metrics
from gateway.middleware.auth import bearer_token
from gateway.sockets.session import SocketSession
from gateway.sockets.strangers import Strangers
from gateway.sockets.tickets import Tickets
from tenants.authenticator import Authenticator

PATH = "/v1/chat"
SUBPROTOCOL = "sluice.v1"
KEY_SUBPROTOCOL = "sluice.api-key."
"""Before an API key, for clients that can set nothing but subprotocols."""


def ws_route(
    path: str,
    make_session: Callable[[WebSocket, str | None], SocketSession],
    *,
    authenticator: Authenticator,
    lifecycle: Lifecycle,
    metrics: Metrics,
    tickets: Tickets,
    strangers: Strangers,
    allowed_origins: Sequence[str],
) -> WebSocketRoute:
    async def serve(socket: WebSocket) -> None:
        check_origin(socket.headers, allowed_origins)
        if lifecycle.draining:
            raise Draining("The server is shutting down.", retry_after_s=1)
        api_key = await credential(socket, tickets)
        if api_key is not None:
            request = context.of(socket.scope)
            request.principal = await authenticator.authenticate(api_key)
            if request.trust is not None:
                request.trust()
        with _stranger(socket) if api_key is None else contextlib.nullcontext():
            await _run(socket, api_key)

    @contextlib.contextmanager
    def _stranger(socket: WebSocket) -> Iterator[None]:
        """Count the socket among those that have not authenticated, until it has."""
        leave = strangers.enter(socket.client.host if socket.client else "")
        request = context.of(socket.scope)
        trust = request.trust

        def welcome() -> None:
            leave()
            if trust is not None:
                trust()

        request.trust = welcome
        try:
            yield
        finally:
            leave()

    async def _run(socket: WebSocket, api_key: str | None) -> None:
        # Never the one with the key: what is echoed can be read by the page and by its logs.
        offered = socket.scope["subprotocols"]
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        session = make_session(socket, api_key)
        lifecycle.sessions.add(session)
        metrics.count_socket(+1)
        try:
            await session.run()
        finally:
            lifecycle.sessions.discard(session)
            metrics.count_socket(-1)

    return WebSocketRoute(path, serve)


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
    header = bearer_token(socket.headers)
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


def unknown_ws_route() -> WebSocketRoute:
    """The last of the WebSocket routes: answers 404 before the upgrade."""

    async def refuse(socket: WebSocket) -> None:
        raise NotFound("There is no WebSocket at this path.")

    return WebSocketRoute("/{path:path}", refuse)


def check_origin(headers: Headers, allowed: Sequence[str]) -> None:
    """Raise ``PermissionDenied`` for web pages of other origins. Browsers always send the header
    (RFC 6455, section 10.2); other clients need not."""
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    host = headers.get("host", "")
    scheme, _, authority = origin.lower().partition("://")
    if scheme in ("http", "https") and authority == host.lower():
        return
    raise PermissionDenied(
        "This web page may not open a WebSocket here; add its origin to server.allowed_origins.",
        code="origin_not_allowed",
    )
