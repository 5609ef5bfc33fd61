"""uvicorn's WebSocket protocol with limits, and with a writer that needs no coroutine."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import SecurityError
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import OPEN

from gateway.config import ServerConfig
from gateway.errors import ApiError, Draining, HeadersTooLarge, InvalidRequestError
from gateway.transport import extensions
from gateway.transport.connections import Deadline, answer_of
from gateway.transport.cork import Cork
from gateway.transport.frame_cuts import FrameCuts
from gateway.transport.pacing import Pace, ReceiveBuffer

STRANGER_FRAMES, STRANGER_BYTES = 64, 16384
"""Frames, and size of a message, of a WebSocket that has not authenticated."""
MAX_FRAGMENTS = 4096
"""Fragments of one WebSocket message. They may be empty, so its size does not limit them."""


class TextWriter:
    """The ``extensions.Writer`` of a WebSocket: writes text frames as of RFC 6455, section 5.2.

    Whether it may write is looked up once, as by ``protocol.BodyWriter``; only the connection's
    state, which any frame of the client can change, is checked each time.
    """

    __slots__ = ("_conn", "_cork", "_is_open", "_owner", "_write")

    def __init__(self, owner: BoundedWebSocketProtocol) -> None:
        self._owner = owner
        self._cork = owner.cork
        self._conn = owner.conn
        self._write = owner.transport.write
        self._is_open = False

    def write(self, data: bytes) -> bool:
        if self._conn.state is not OPEN or not (self._is_open or self._open()):
            self._cork.release()  # Otherwise what ``send`` writes would overtake it.
            return False
        size = len(data)
        if size < 126:
            frame = b"\x81%c%b" % (size, data)
        elif size < 65536:
            frame = b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), data)
        else:
            frame = b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), data)
        held = self._cork.held
        if held is None:
            self._write(frame)
        else:
            held.append((self._write, frame))
        return True

    def close(self) -> None:
        """Look up again before the next write: writing is paused, or the connection is lost."""
        self._is_open = False

    def _open(self) -> bool:
        owner = self._owner
        self._is_open = owner.writable.is_set() and not owner.disconnected
        return self._is_open


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """For ``uvicorn.Config(ws=...)``: ``protocol.limited`` makes the subclass that sets
    these.

    ``server`` turns off the protocol's extensions, because they change how frames are written.
    """

    limits: ServerConfig
    cork: Cork
    pace: Pace

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._buffer = ReceiveBuffer(self, self.pace)
        self._cuts = FrameCuts()
        self._is_trusted = False
        self._frame_credit = float(STRANGER_FRAMES)
        self._counted_at = self.loop.time()
        self._num_counted = 0
        self._has_failed = False  # the client broke the protocol, or its handshake was refused
        self._writer: TextWriter | None = None
        self._send_deadline = Deadline(self.limits.send_timeout_s)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._buffer.end()
        self._send_deadline.stop()
        self._close_writer()
        self._writer = None
        super().connection_lost(exc)
        for error in (self.conn.handshake_exc, self.conn.parser_exc):
            if error is not None:  # Its traceback refers to the connection, which keeps the error.
                error.__traceback__ = error.__context__ = error.__cause__ = None

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # What was put there refers to the connection: such a cycle has a hundred objects, so that
        # strangers who come and go would have many collected at once.
        self.scope.clear()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._buffer.receive(data)
            return
        super().data_received(data)
        if not self.handshake_initiated:  # The headers came at once, and were not a handshake.
            self._refuse_handshake()

    # -- frames

    @property
    def wants_input(self) -> bool:
        return not self.read_paused

    def piece_end(self, data: bytes, start: int) -> int:
        return self._cuts.cut(data, start)

    def parse(self, data: bytes) -> None:
        self._count_frames()
        if not self.transport.is_closing():
            super().data_received(data)

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        if not self.read_paused:
            self._buffer.resume()
        return message

    def _trust(self) -> None:
        """The client has authenticated: its limits are now those of the settings."""
        self._is_trusted = True
        self._frame_credit = 2.0 * self.limits.ws_max_frames_per_s
        self.conn.max_message_size = self.limits.ws_max_message_bytes

    def _count_frames(self) -> None:
        now = self.loop.time()
        if self._is_trusted:
            rate = self.limits.ws_max_frames_per_s
            refilled = self._frame_credit + rate * (now - self._counted_at)
            self._frame_credit = min(2.0 * rate, refilled)
        self._counted_at = now
        self._frame_credit -= self._cuts.num_frames - self._num_counted
        self._num_counted = self._cuts.num_frames
        if self._frame_credit < 0 and self.conn.state is OPEN:
            rate = self.limits.ws_max_frames_per_s
            why = f"more than {rate} frames a second" if self._is_trusted else "no authentication"
            self.conn.fail(CloseCode.POLICY_VIOLATION, why)
            self.handle_parser_exception()

    def _refuse_handshake(self) -> None:
        """uvicorn would not answer, and keep the connection open."""
        error: ApiError = InvalidRequestError("This is not a valid WebSocket handshake.")
        exc = self.conn.handshake_exc
        if isinstance(exc, SecurityError):
            error = HeadersTooLarge(f"The WebSocket handshake is too large: {exc}.")
        self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        """Answer a handshake in the application's place, and close the connection."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self._has_failed = True
        self.transport.write(answer_of(error))
        self.transport.close()
        self._send_deadline.start(self.transport)

    def shutdown(self) -> None:
        if self.handshake_complete or self.initial_response is not None:
            super().shutdown()
            self._send_deadline.start(self.transport)
        else:  # uvicorn would answer in plain text.
            self._refuse(Draining("The server is shutting down.", retry_after_s=1))

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.close_sent:  # uvicorn has refused the handshake, and made no scope.
            return
        extensions.offer_trust(self.scope, self._trust)
        self.conn.max_message_size = STRANGER_BYTES
        if not self.conn.extensions:
            self._writer = TextWriter(self)
            extensions.offer(self.scope, self._writer.write)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif self.conn.state is OPEN:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and self.conn.state is OPEN:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                # uvicorn would log an error for each, so that a client could flood the log.
                self.frames = []
                self.conn.fail(CloseCode.INVALID_DATA, "not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        self._has_failed = True
        if self.conn.close_sent is None:  # It came before the answer to the handshake.
            self.transport.abort()
        else:
            super().handle_parser_exception()

    async def send(self, message: ASGISendEvent) -> None:
        if self._has_failed:  # The application does not know of it yet.
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # uvicorn would log an error for every refused upgrade, although it was answered.
            self.handshake_complete = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._close_writer()
        self._send_deadline.start(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._send_deadline.stop()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
