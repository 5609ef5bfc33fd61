"""uvicorn's HTTP and WebSocket protocols, with the limits they lack.

httptools takes headers of any size, a silent socket may stay for ever, and an ASGI app has no way
to drop a client that stopped reading (closing would wait for it). Here headers have a size and a
time limit, connections a number, and ``abort`` drops the connection of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from gateway.errors import ApiError, HeadersTooLarge, InvalidRequestError, Overloaded

MAX_HEADERS = 100
_ABORT = "sluice.abort"


def abort(scope: Scope) -> None:
    """Drop the connection of ``scope`` at once, unsent bytes included."""
    drop = scope.get("extensions", {}).get(_ABORT)
    if drop is not None:
        drop["call"]()


def http_protocol(
    *, max_header_bytes: int, header_timeout_s: float, max_connections: int
) -> type[HttpToolsProtocol]:
    """A protocol class for ``uvicorn.Config(http=...)``."""

    class BoundedHttpProtocol(HttpToolsProtocol):
        _header_bytes = 0  # received of headers that are not complete yet
        _header_size = 0  # of what the parser has found in them
        _in_headers = True
        _refusal: ApiError | None = None
        _header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                error = Overloaded("The server has too many connections.", retry_after_s=1)
                _refuse(transport, error)
                return
            self._watch_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch_headers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_headers:
                self._header_bytes += len(data)
            super().data_received(data)
            if (
                self._in_headers
                and self._header_bytes > max_header_bytes
                and not self.transport.is_closing()
            ):
                self._too_large()
                self.send_400_response("")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = _extensions(self.transport.abort)
            self._in_headers = True
            self._header_size = 0
            self._watch_headers()

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self._count(len(url))

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self._count(len(name) + len(value) + 4)

        def on_headers_complete(self) -> None:
            self._in_headers = False
            self._header_bytes = 0
            self._unwatch_headers()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_headers = True

        def send_400_response(self, msg: str) -> None:
            error = self._refusal or InvalidRequestError("This is not a valid HTTP request.")
            _refuse(self.transport, error)

        def _count(self, size: int) -> None:
            self._header_size += size
            if self._header_size > max_header_bytes or len(self.headers) > MAX_HEADERS:
                self._too_large()
                raise ValueError("headers too large")  # the parser stops, the answer is a 431

        def _too_large(self) -> None:
            self._refusal = HeadersTooLarge(
                f"The headers exceed {max_header_bytes} bytes or {MAX_HEADERS} lines."
            )

        def _watch_headers(self) -> None:
            self._unwatch_headers()
            self._header_timer = self.loop.call_later(header_timeout_s, self.transport.abort)

        def _unwatch_headers(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

    return BoundedHttpProtocol


class AbortableWebSocketProtocol(WebSocketsSansIOProtocol):
    """For ``uvicorn.Config(ws=...)``: a socket that ``abort`` can drop."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope: dict[str, Any] | None = getattr(self, "scope", None)
        if scope is not None:  # the handshake was valid
            scope["extensions"].update(_extensions(self.transport.abort))


def _extensions(drop: Callable[[], None]) -> dict[str, dict[object, object]]:
    return {_ABORT: {"call": drop}}


def _refuse(transport: asyncio.Transport, error: ApiError) -> None:
    """Answer below ASGI, where no request exists yet, and close."""
    body = error.body()
    headers = {
        **error.headers(),
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": str(uuid4()),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    transport.write(f"HTTP/1.1 {error.status} \r\n{lines}\r\n".encode() + body)
    transport.close()
