"""One line for each finished request, and its count in the metrics."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.metrics import Metrics

logger = logging.getLogger("gateway.access")

CLIENT_LEFT = 499
"""Logged when the client was gone before an answer began (nginx's code)."""
MAX_PATH_CHARS = 256
"""More than any route of ours has; a client may send as many as a whole head may have."""
PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""Asked every few seconds, for ever: those that succeed are worth a line only when debugging."""


class AccessLog:
    """Says who asked for what and what came of it; never a prompt, a key or a query string."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        started_at = time.monotonic()
        status = CLIENT_LEFT

        async def send_watched(message: Message) -> None:
            nonlocal status
            kind = message["type"]
            if kind == "http.response.start" or kind == "websocket.http.response.start":
                status = message["status"]
            elif kind == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        finally:
            self._log(scope, status, time.monotonic() - started_at)

    def _log(self, scope: Scope, status: int, duration_s: float) -> None:
        known = context.of(scope)
        route: str = getattr(scope.get("route"), "path", known.route or "other")
        self._metrics.count_response(route, status)
        level = logging.DEBUG if route in PROBES and status < 400 else logging.INFO
        if not logger.isEnabledFor(level):
            return
        fields: dict[str, str | int | float] = {
            "request_id": str(known.request_id),
            "method": scope.get("method", "WEBSOCKET"),
            "path": scope["path"][:MAX_PATH_CHARS],
            "status": status,
            "duration_ms": round(duration_s * 1000, 1),
            **known.notes,
        }
        if known.principal is not None:
            fields["tenant"] = known.principal.tenant.name
            fields["key"] = known.principal.key.public_id
        logger.log(level, "request", extra={"fields": fields})
