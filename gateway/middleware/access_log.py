"""Logs and counts each finished request; of a flood of refused ones, it logs a part."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.logs import LogThrottle
from gateway.metrics.metrics import Metrics

logger = logging.getLogger("gateway.access")

CLIENT_LEFT = 499
"""The status in the log if the client left before an answer began (nginx's code)."""
MAX_PATH_CHARS = 256
"""Characters of a path that are logged. No route has as many; a client may send far more."""
PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that are requested every few seconds: successful requests are logged at ``debug`` only."""

REFUSALS, REFUSALS_PER_S = 100, 10.0
"""Lines of refused requests with one key and status, at once and for good. Refusals are cheap, so
that whoever repeats them could otherwise fill the disk."""


class AccessLog:
    """Logs who asked for what, with which result; never a prompt, a key or a query string."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._refusals = LogThrottle(burst=REFUSALS, per_s=REFUSALS_PER_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        started_at = time.monotonic()
        status = CLIENT_LEFT
        known = context.of(scope)
        known.notes.is_written = scope["type"] == "websocket"  # Each turn has a line of its own.
        noting = context.notes.set(known.notes)

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
            context.notes.reset(noting)
            self._log(scope, status, time.monotonic() - started_at)

    def _log(self, scope: Scope, status: int, duration_s: float) -> None:
        known = context.of(scope)
        known.notes.is_written = True
        route = "other" if known.operation is None else known.operation.path
        self._metrics.count_response(route, status)
        level = logging.DEBUG if route in PROBES and status < 400 else logging.INFO
        if not logger.isEnabledFor(level):
            return
        key = None if known.principal is None else known.principal.key.public_id
        is_refusal = status >= 400 and status != CLIENT_LEFT
        num_left_out = self._refusals.admit((key, status)) if is_refusal else 0
        if num_left_out is None:
            return
        fields: dict[str, str | int | float] = {
            "request_id": str(known.request_id),
            **_client_request_id(known),
            "method": scope.get("method", "WEBSOCKET"),
            "path": scope["path"][:MAX_PATH_CHARS],
            "status": status,
            "duration_ms": round(duration_s * 1000, 1),
            **known.notes,
        }
        if known.principal is not None:
            fields["tenant"] = known.principal.tenant.name
            fields["key"] = known.principal.key.public_id
        if num_left_out:
            fields["left_out"] = num_left_out
        logger.log(level, "request", extra={"fields": fields})


def _client_request_id(known: context.RequestContext) -> dict[str, str]:
    named = known.client_request_id
    return {} if named is None else {"client_request_id": named}
