"""What gateway workers say to each other, over ZeroMQ with CURVE.

A caller connects a DEALER of its own for each request to the other worker's ROUTER, and sends the
request. ``Follow`` is answered by ``Following`` and items until ``Ended``, all others by one
``Value``. ``Failed`` can replace any answer: it contains the error for the client. A follower says
``More`` for each ``Items`` that it has taken, so that no more than ``WINDOW`` are on their way.

Either side knows the other by the CURVE key that all gateways of a site derive from their secrets:
who lacks it gets no byte, and nobody between them reads any.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from gateway import errors
from gateway.errors import ApiError, InternalError
from tenants.shared import StreamKind

MAX_FRAME_BYTES = 64 * 1024 * 1024
WINDOW = 8
HEARTBEAT_MS, SILENCE_MS = 5_000, 15_000
"""How often either side shows that it lives, and the silence after which it has gone, as when a
host has lost power or its network."""
LINGER_MS = 1_000
"""How long what was said last may take to leave after a connection is closed."""

T = TypeVar("T", bound=msgspec.Struct)
Part = Literal["body", "input"]
"""A part of a response: the response object, or its input items."""


class WireError(Exception):
    """The other side is gone, or breaks the protocol."""


class KeyMismatch(WireError):
    """The other side has another CURVE key."""


class Follow(msgspec.Struct, tag=True, kw_only=True):
    """Read a stream from a position on."""

    stream_id: str
    tenant_id: UUID
    kind: StreamKind
    after: int


class StopStream(msgspec.Struct, tag=True, kw_only=True):
    stream_id: str
    tenant_id: UUID


class ForgetStream(msgspec.Struct, tag=True, kw_only=True):
    stream_id: str
    tenant_id: UUID


class RedeemTicket(msgspec.Struct, tag=True):
    """Redeem a ticket; the value is the API key."""

    ticket: str


class RunningResponse(msgspec.Struct, tag=True, kw_only=True):
    """Ask for a part of a running response, which is the value."""

    response_id: str
    tenant_id: UUID
    part: Part = "body"


class EndResponse(msgspec.Struct, tag=True, kw_only=True):
    """Cancel a running response; it is stored unless ``is_deleted``."""

    response_id: str
    tenant_id: UUID
    is_deleted: bool = False


class Beat(msgspec.Struct, tag=True):
    """From a follower: send a heartbeat on the stream."""


class Stop(msgspec.Struct, tag=True):
    """From a follower: end the stream's work."""


class More(msgspec.Struct, tag=True):
    """From a follower: it has taken one ``Items``."""


class Left(msgspec.Struct, tag=True):
    """From a caller: it waits for nothing any more."""


class Probe(msgspec.Struct, tag=True):
    """To a follower, for nothing but to learn whether it is there."""


class Value(msgspec.Struct, tag=True):
    data: bytes = b""


class Following(msgspec.Struct, tag=True):
    """The stream exists; its items follow."""


class Items(msgspec.Struct, tag=True):
    items: list[bytes]


class Ended(msgspec.Struct, tag=True):
    """No more items."""


class Failed(msgspec.Struct, tag=True, kw_only=True):
    """The request failed with this ``ApiError``."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    headers: dict[str, str] = {}

    @classmethod
    def of(cls, error: ApiError) -> Failed:
        return cls(
            kind=type(error).__name__,
            message=error.message,
            param=error.param,
            code=error.code,
            retry_after_s=error.retry_after_s,
            headers=error.extra_headers,
        )

    def error(self) -> ApiError:
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, ApiError)):
            kind = InternalError  # The other worker has a newer version.
        return kind(
            self.message,
            param=self.param,
            code=self.code,
            retry_after_s=self.retry_after_s,
            headers=self.headers,
        )


Request = Follow | StopStream | ForgetStream | RedeemTicket | RunningResponse | EndResponse
Message = Request | Beat | Stop | More | Left | Probe | Value | Following | Items | Ended | Failed

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def decode(data: bytes) -> Message:
    """Raises ``WireError``."""
    try:
        return _decoder.decode(data)
    # Invalid UTF-8 and deep nesting have errors of their own.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(str(exc)) from exc


class Keys(NamedTuple):
    """A CURVE key pair in ZeroMQ's own notation (Z85)."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "Keys(...)"  # They must not get into a log.


def derive_keys(root: bytes) -> Keys:
    """The site's key pair, from the secret that all its gateways share."""
    secret = z85.encode(hmac.digest(root, b"sluice gateway peers, version 2", hashlib.sha256))
    return Keys(zmq.curve_public(secret), secret)


def prepare(socket: zmq.asyncio.Socket, keys: Keys) -> None:
    """What sockets of both sides have in common."""
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.linger = LINGER_MS
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.ipv6 = True
    socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS


_END = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_WATCHED = (
    _END
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def failure(sent: Any) -> BaseException | None:
    """Why a message that was sent with ``DONTWAIT`` is not on its way. Its future is done already;
    looking at it keeps asyncio from warning of an error that nobody saw."""
    error: BaseException | None = sent.exception()
    return error


class Wire:
    """A caller's connection to another worker, for one request."""

    def __init__(self, address: str, keys: Keys) -> None:
        """Raises ``WireError`` if ``address`` is none."""
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        prepare(self._socket, keys)
        self._socket.curve_serverkey = keys.public
        self._socket.reconnect_ivl = (
            -1
        )  # Another process at this address would not know the request.
        self._monitor: zmq.asyncio.Socket = self._socket.get_monitor_socket(_WATCHED)
        self._seen = 0
        """The events of the connection so far."""
        try:
            self._socket.connect(address)
        except zmq.ZMQError as exc:
            self.close()
            raise WireError(str(exc)) from exc

    async def opened(self) -> None:
        """Wait until the other side has shown its key. Raises ``WireError``; ``KeyMismatch`` if it
        was there and has another one."""
        while not self._seen & zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if self._seen & ~zmq.EVENT_CONNECTED:
                kind = KeyMismatch if self._seen & zmq.EVENT_CONNECTED else WireError
                raise kind("it did not take the handshake")
            self._note(await self._monitor.recv_multipart())

    def post(self, message: Message) -> None:
        """Send a message, which goes on its way at once. Nobody gets it if the other side has
        gone."""
        failure(self._socket.send(encode(message), zmq.DONTWAIT))

    async def receive(self, kind: type[T]) -> T:
        """The next message, which must be a ``kind``. Raises ``WireError``, or the ``ApiError`` of
        a ``Failed``."""
        message = await self.receive_any()
        if isinstance(message, Failed) and not issubclass(Failed, kind):
            raise message.error()
        if not isinstance(message, kind):
            raise WireError(f"expected {kind.__name__}, got {type(message).__name__}")
        return message

    async def receive_any(self) -> Message:
        """The next message that is no ``Probe``. Raises ``WireError``, also if the other side has
        closed the connection."""
        while True:
            try:
                # Messages that arrived before the end are read, too.
                message = decode(await self._socket.recv(zmq.DONTWAIT))
            except zmq.Again:
                if self._seen & _END:
                    raise WireError("the other side has gone") from None
                await self._wait()
            except zmq.ZMQError as exc:  # closed by another task
                raise WireError(str(exc)) from exc
            else:
                if not isinstance(message, Probe):
                    return message

    async def _wait(self) -> None:
        """Until there is a message or an event."""
        poller = zmq.asyncio.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        if self._monitor in dict(await poller.poll()):
            self._note(await self._monitor.recv_multipart())

    def _note(self, event: list[bytes]) -> None:
        self._seen |= parse_monitor_message(event)["event"]

    def close(self) -> None:
        """Close the connection after sending what was posted. Idempotent."""
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close()
