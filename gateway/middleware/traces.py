"""Makes a span of each request, if ``tracing.otlp_endpoint`` is set. Nothing else of it is here."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.middleware.access_log import CLIENT_LEFT, PROBES
from gateway.middleware.request_id import STARTS
from gateway.tracing import Tracing

HEADER = b"traceparent"


class Traces:
    """Begins and ends the spans of HTTP requests and WebSockets, and returns ``traceparent``.
    Probes have none."""

    def __init__(self, app: ASGIApp, *, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        method: str = scope.get("method", "GET")
        about = {"http.request.method": method}
        trace = self._tracing.begin(method, Headers(scope=scope), about)
        status = CLIENT_LEFT

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] in STARTS:
                status = message.get("status", 101)
                ours = (HEADER, trace.traceparent.encode())
                message["headers"] = [*message.get("headers", ()), ours]
            await send(message)

        try:
            with trace:
                await self._app(scope, receive, send_traced)
        finally:
            if trace.stage is not None:
                known = context.of(scope)
                trace.stage.rename(_name(method, known), _attributes(known, status))
                has_failed = status >= 500 or status == CLIENT_LEFT
                trace.stage.end(error=str(status) if has_failed else None)


def _name(method: str, known: context.RequestContext) -> str:
    return method if known.operation is None else f"{method} {known.operation.path}"


def _attributes(known: context.RequestContext, status: int) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "http.response.status_code": status,
        "sluice.request.id": str(known.request_id),
    }
    if known.operation is not None:
        attributes["http.route"] = known.operation.path
    if known.principal is not None:
        attributes["sluice.tenant.name"] = known.principal.tenant.name
        attributes["sluice.key.id"] = known.principal.key.public_id
    return attributes
