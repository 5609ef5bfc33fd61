"""The handshake of the WebSocket ``/v1/chat``. Refusals are real HTTP answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from gateway import context
from gateway.chat_session import ChatSession
from gateway.errors import Draining, NotFound, PermissionDenied
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.middleware.auth import bearer_token
from tenants.authenticator import Authenticator

PATH = "/v1/chat"


def chat_ws_route(
    make_session: Callable[[WebSocket, str | None], ChatSession],
    *,
    authenticator: Authenticator,
    lifecycle: Lifecycle,
    metrics: Metrics,
    allowed_origins: Sequence[str],
) -> WebSocketRoute:
    async def serve(socket: WebSocket) -> None:
        check_origin(socket.headers, allowed_origins)
        if lifecycle.draining:
            raise Draining("The server is shutting down.", retry_after_s=1)
        api_key = bearer_token(socket.headers)
        if api_key is not None:
            context.of(socket.scope).principal = await authenticator.authenticate(api_key)
        await socket.accept()
        session = make_session(socket, api_key)
        lifecycle.sessions.add(session)
        metrics.count_socket(+1)
        try:
            await session.run()
        finally:
            lifecycle.sessions.discard(session)
            metrics.count_socket(-1)

    return WebSocketRoute(PATH, serve)


def unknown_ws_route() -> WebSocketRoute:
    """Last of the WebSocket routes: a real 404 before the upgrade."""

    async def refuse(socket: WebSocket) -> None:
        raise NotFound("There is no WebSocket at this path.")

    return WebSocketRoute("/{path:path}", refuse)


def check_origin(headers: Headers, allowed: Sequence[str]) -> None:
    """Browsers always send Origin; other clients need none. Raises ``PermissionDenied``."""
    origin = headers.get("origin")
    if origin is None or origin in allowed:
        return
    host = headers.get("host", "")
    scheme, _, authority = origin.lower().partition("://")
    if scheme in ("http", "https") and authority == host.lower():
        return
    raise PermissionDenied(
        "This web page may not open a WebSocket here; add its origin to server.allowed_origins.",
        code="origin_not_allowed",
    )
