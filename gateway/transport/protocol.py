"""uvicorn's HTTP protocol with limits, and with a writer that needs no coroutine.

httptools accepts headers of any size, and uvicorn keeps sockets that send nothing, or that read
nothing, forever: a closing transport waits until its last byte is sent. Here the size of headers
and the time for sending them are limited, so are the number of connections and the time for which
bytes may stay unsent. What is received is parsed in pieces (``pacing``).
"""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.config import ServerConfig
from gateway.errors import (
    ApiError,
    HeadersTooLarge,
    InvalidRequestError,
    Overloaded,
    UnsupportedCoding,
)
from gateway.transport import extensions
from gateway.transport.connections import Deadline, EvictionQueue, answer_of, network_of
from gateway.transport.cork import Cork
from gateway.transport.extensions import Disconnect
from gateway.transport.pacing import PIECE_BYTES, Pace, ReceiveBuffer
from gateway.transport.websocket import BoundedWebSocketProtocol

MAX_HEADERS = 100
MAX_CHUNK_OVERHEAD = 16
"""Bytes of chunk headers and extensions for each byte of a chunked body, beyond
``FREE_CHUNK_OVERHEAD``."""
FREE_CHUNK_OVERHEAD = 65536


class _PacedFlow(FlowControl):
    """Reading goes on when uvicorn wants it to and nothing waits in the buffer."""

    def __init__(self, transport: asyncio.Transport, buffer: ReceiveBuffer) -> None:
        super().__init__(transport)
        self._buffer = buffer

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._buffer.resume()


class BoundedHttpProtocol(HttpToolsProtocol):
    """For ``uvicorn.Config(http=...)``: ``limited`` makes the subclass that sets these."""

    limits: ServerConfig
    cork: Cork
    pace: Pace
    evictions: EvictionQueue

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._buffer = ReceiveBuffer(self, self.pace)
        self.flow = _PacedFlow(transport, self._buffer)
        self._body_left = 0  # to come of a body whose length is known
        self._body_overhead = 0  # of a chunked body, beyond FREE_CHUNK_OVERHEAD and its bytes
        self._refused_bytes = 0  # of a body whose request was answered before
        self._header_deadline = Deadline(self.limits.header_timeout_s)
        self._send_deadline = Deadline(self.limits.send_timeout_s)
        self._in_headers = True
        self._is_behind = False
        """The request being received waits until the one before it is answered (pipelining)."""
        self._bytes_waiting = 0  # received, of headers that are not complete yet
        self._bytes_parsed = 0  # reported by the parser, of the same headers
        self._refusal: ApiError | None = None
        self._disconnect = Disconnect()
        self._worked_on: RequestResponseCycle | None = None
        """The request that the application works on; uvicorn's ``cycle`` is the latest one."""
        self.writer: BodyWriter | None = None
        """The current answer's writer, while it is open."""
        self._header_deadline.start(transport)
        self._network = network_of(self.client[0] if self.client else "")
        if len(self.connections) > self.limits.max_connections:
            (self.evictions.first() or self).evict()
        if not transport.is_closing():
            self.evictions.add(self, self._network)

    def evict(self) -> None:
        self.evictions.remove(self, self._network)
        if self.cycle is None or self._bytes_waiting:
            self._refusal = Overloaded("The server has too many connections.", retry_after_s=1)
            self.send_400_response("")
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._buffer.end()
        self._header_deadline.stop()
        self._send_deadline.stop()
        self.evictions.remove(self, self._network)
        self._close_writer()
        if self._worked_on is not None and not self._worked_on.response_complete:
            self._worked_on.disconnected = True
            self._worked_on.message_event.set()
        super().connection_lost(exc)
        self._disconnect.leave()

    def data_received(self, data: bytes) -> None:
        self._buffer.receive(data)

    @property
    def wants_input(self) -> bool:
        return not self.flow.read_paused and not self.pipeline

    def piece_end(self, data: bytes, start: int) -> int:
        if self._body_left > PIECE_BYTES:
            return start + self._body_left
        # The application's work on a request takes longer than parsing it: one at a time.
        end = data.find(b"\r\n\r\n", start + self._body_left, start + PIECE_BYTES)
        return start + PIECE_BYTES if end < 0 else end + 4

    def handle_websocket_upgrade(self) -> None:
        self._buffer.end()  # RFC 6455, section 4.1: frames come after the server's handshake.
        self.evictions.remove(self, self._network)
        super().handle_websocket_upgrade()
        # A cycle of the two would keep all of the connection.
        self.parser = None  # type: ignore[assignment]

    # -- headers

    def parse(self, data: bytes) -> None:
        if self._in_headers:
            self._bytes_waiting += len(data)
        else:
            self._body_overhead += len(data)
        super().data_received(data)
        if not self._in_headers and not self.transport.is_closing():
            self._check_body(len(data))
        # The parser reports a header only when it is complete, so received bytes count as well.
        too_much = self._bytes_waiting > self.limits.max_header_bytes
        if self._in_headers and too_much and not self.transport.is_closing():
            self._refuse_headers()
            self.send_400_response("")
        # Bytes that belong to no request (blank lines, or the rest of a refused one) have stopped
        # the keep-alive timer, and must not keep the connection open forever.
        is_ours = self in self.connections  # and was not upgraded
        if is_ours and not self._is_answering and self.timeout_keep_alive_task is None:
            self._header_deadline.ensure_started(self.transport)

    def _check_body(self, num_bytes: int) -> None:
        """Bound what a body costs beside its bytes, and what is read of a refused one."""
        if self._body_overhead > FREE_CHUNK_OVERHEAD:
            self._refusal = InvalidRequestError("The body's chunks are mostly headers.")
            self.send_400_response("")
        elif not self._is_answering:
            self._refused_bytes += num_bytes
            if self._refused_bytes > self.limits.max_body_bytes:
                self._close()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_left = max(0, self._body_left - len(body))
        self._body_overhead = max(0, self._body_overhead - (MAX_CHUNK_OVERHEAD + 1) * len(body))

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._is_behind = self._is_answering
        self._bytes_parsed = 0
        self._header_deadline.start(self.transport)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._bytes_waiting = 0
        self._header_deadline.stop()
        self._body_left = self._body_overhead = self._refused_bytes = 0
        self._check_coding()
        version = self.parser.get_http_version()
        if version == "0.9":
            raise ValueError("HTTP/0.9")  # Its answers have no head. Answered with a 400.
        num_hosts = [name for name, _ in self.headers].count(b"host")
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            raise ValueError("not one host")  # RFC 9112, section 3.2: answered with a 400
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # not an upgrade
            extensions.offer(self.scope, BodyWriter(self, self.cycle).write, self._disconnect)
            extensions.offer_trust(self.scope, self._trust)

    def _trust(self) -> None:
        """The request's key is good: its connection gives way to no other until it is answered."""
        self.evictions.remove(self, self._network)

    def _check_coding(self) -> None:
        """RFC 9112, section 6.1: what is not understood is refused. Raises ``ValueError``."""
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        for name, value in self.headers:
            if name == b"content-length" and not codings:
                self._body_left = int(value)
        names = [name.strip().lower() for name in b",".join(codings).split(b",") if name.strip()]
        if codings and names != [b"chunked"]:
            if names[-1:] == [b"chunked"]:
                self._refusal = UnsupportedCoding(
                    "Send the body with Transfer-Encoding: chunked alone."
                )
            raise ValueError("not chunked")  # stops the parser; answered

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._worked_on = cycle
        super()._start_asgi_task(cycle, app)

    def _should_upgrade(self) -> bool:
        # A WebSocket would write into the answer to the request before.
        return not self._is_behind and super()._should_upgrade()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_headers = True
        is_request = self.cycle is not None and self.cycle.scope is self.scope  # not an upgrade
        if is_request and self.cycle.response_complete:  # refused before its body was read
            self._header_deadline.stop()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        # A large body has paused reading, without which the end of the connection goes unnoticed.
        if not self.pipeline:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request for which ASGI has no scope yet, and close the connection. If an answer
        to an earlier request is being sent, it breaks off instead."""
        error = self._refusal or InvalidRequestError("This is not a valid HTTP request.")
        if not self._is_answering:
            self.transport.write(answer_of(error))
        elif not self._is_behind and not self.cycle.response_started:
            # The body broke off before the application began to answer; now it cannot any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.write(answer_of(error))
        self._close()

    def _count(self, size: int) -> None:
        self._bytes_parsed += size
        limit = self.limits.max_header_bytes
        if self._bytes_parsed > limit or len(self.headers) > MAX_HEADERS:
            self._refuse_headers()
            raise ValueError("headers too large")  # stops the parser; answered with a 431

    def _refuse_headers(self) -> None:
        self._refusal = HeadersTooLarge(
            f"The headers exceed {self.limits.max_header_bytes} bytes or {MAX_HEADERS} lines."
        )

    # -- unsent bytes

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._send_deadline.start(self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._close_writer()
        self._send_deadline.start(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._send_deadline.stop()

    def on_response_complete(self) -> None:
        self._close_writer()
        super().on_response_complete()
        if self.transport.is_closing():
            self._send_deadline.start(self.transport)
            return
        self.evictions.add(self, self._network)
        if self.wants_input:
            self._buffer.resume()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._send_deadline.start(self.transport)

    def _close_writer(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _close(self) -> None:
        self.transport.close()
        self._send_deadline.start(self.transport)


class BodyWriter:
    """The ``extensions.Writer`` of a request: writes chunks as of RFC 9112, section 7.1.

    Whether it may write depends on half a dozen objects, which would have to be fetched from memory
    for every chunk. So it is looked up once, and again after the protocol has closed the writer.
    """

    __slots__ = ("_cork", "_cycle", "_is_open", "_owner", "_write")

    def __init__(self, owner: BoundedHttpProtocol, cycle: RequestResponseCycle) -> None:
        self._owner = owner
        self._cork = owner.cork
        self._cycle = cycle
        self._write = cycle.transport.write
        self._is_open = False

    def write(self, data: bytes) -> bool:
        if not data or not (self._is_open or self._open()):  # An empty chunk would end the body.
            self._cork.release()  # Otherwise what ``send`` writes would overtake it.
            return False
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        held = self._cork.held
        if held is None:
            self._write(chunk)
        else:
            held.append((self._write, chunk))
        return True

    def close(self) -> None:
        """Look up again before the next write: writing is paused, or the answer has ended."""
        self._is_open = False

    def _open(self) -> bool:
        cycle = self._cycle
        self._is_open = bool(
            cycle.chunked_encoding  # The answer has begun, without a content-length.
            and not cycle.flow.write_paused
            and not cycle.response_complete
            and not cycle.disconnected
        )
        if self._is_open:
            self._owner.writer = self
        return self._is_open


def limited(
    limits: ServerConfig, cork: Cork
) -> tuple[type[BoundedHttpProtocol], type[BoundedWebSocketProtocol]]:
    """Subclasses of both protocols with these limits, of which uvicorn makes the instances.
    ``cork`` holds what their writers write."""
    declared = {"limits": limits, "cork": cork, "pace": Pace(), "evictions": EvictionQueue()}
    return (
        type("HttpProtocol", (BoundedHttpProtocol,), declared),
        type("WebSocketProtocol", (BoundedWebSocketProtocol,), declared),
    )
