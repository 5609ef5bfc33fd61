"""The protocol between gateway workers: frames on a socket, after a handshake.

    frame       4 bytes of length (big-endian), then a msgspec struct as MessagePack
    handshake   Challenge ──►, ◄── Hello, Welcome ──►: either side proves by an HMAC that it knows
                the secret that all gateways of a site share

A connection has one request. ``Follow`` is answered by ``Following`` and items until ``Ended``, all
others by one ``Value``. ``Failed`` can replace any answer: it contains the error for the client.
Frames are not encrypted, so a connection between hosts needs a private network.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import sys
from typing import Literal, TypeVar
from uuid import UUID

import msgspec

from gateway import errors
from gateway.errors import ApiError, InternalError
from tenants.shared import StreamKind

MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_HANDSHAKE_BYTES = 256
HANDSHAKE_S = 5.0
_NONCE_BYTES = 32
SILENCE_S, PROBE_S, NUM_PROBES = 10, 5, 3
"""TCP keep-alive: seconds of silence before the first probe, seconds between probes, and how many
go unanswered before the connection is lost."""

T = TypeVar("T", bound=msgspec.Struct)
Part = Literal["body", "input"]
"""A part of a response: the response object, or its input items."""


class WireError(Exception):
    """The other side is gone, or breaks the protocol."""


class Challenge(msgspec.Struct, tag=True):
    nonce: bytes


class Hello(msgspec.Struct, tag=True):
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, tag=True):
    proof: bytes


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
Message = (
    Challenge | Hello | Welcome | Request | Beat | Stop | Value | Following | Items | Ended | Failed
)

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises: invalid UTF-8 and deep nesting have errors of their own."""


class Wire:
    """One connection between two workers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message) -> None:
        """Send a message, and wait while the other side is slow. Raises ``WireError``."""
        self.post(message)
        try:
            await self._writer.drain()
        except OSError as exc:
            raise WireError(str(exc)) from exc

    def post(self, message: Message) -> None:
        """Send a message without waiting; only for small ones."""
        data = _encode(message)
        self._writer.write(len(data).to_bytes(4, "big") + data)

    async def receive(self, kind: type[T], *, max_bytes: int = MAX_FRAME_BYTES) -> T:
        """The next message, which must be a ``kind``. Raises ``WireError``, or the ``ApiError`` of
        a ``Failed``."""
        message = await self.receive_any(max_bytes=max_bytes)
        if isinstance(message, Failed) and not issubclass(Failed, kind):
            raise message.error()
        if not isinstance(message, kind):
            raise WireError(f"expected {kind.__name__}, got {type(message).__name__}")
        return message

    async def receive_any(self, *, max_bytes: int = MAX_FRAME_BYTES) -> Message:
        """The next message. Raises ``WireError``, also if the other side has closed the
        connection."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > max_bytes:
                raise WireError(f"a frame of {size} bytes")
            return _decoder.decode(await self._reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError, *_UNREADABLE) as exc:
            raise WireError(str(exc)) from exc

    def notice_loss(self) -> None:
        """Let a TCP connection end soon after the other host has lost power or its network.

        By default the system notices that after two hours if nothing is sent, and after a quarter
        of an hour otherwise. All that time a follower would wait for items, and a stream would run
        without a reader. Raises ``WireError``.
        """
        connection: socket.socket = self._writer.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            return  # The system closes the sockets of a process that ends.
        options = [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, NUM_PROBES),
        ]
        if sys.platform == "darwin":
            options.append((socket.IPPROTO_TCP, socket.TCP_KEEPALIVE, SILENCE_S))
        else:
            options.append((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S))
            # There are no keep-alive probes while sent data are not acknowledged.
            limit_ms = 1000 * (SILENCE_S + PROBE_S * NUM_PROBES)
            options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms))
        try:
            for option in options:
                connection.setsockopt(*option)
        except OSError as exc:  # The connection is lost already.
            raise WireError(str(exc)) from exc

    def close(self) -> None:
        """Close the connection after sending what was posted."""
        self._writer.close()


async def greet(wire: Wire, secret: bytes) -> None:
    """The listener's side of the handshake. Raises ``WireError``, ``TimeoutError``."""
    wire.notice_loss()
    async with asyncio.timeout(HANDSHAKE_S):
        challenge = secrets.token_bytes(_NONCE_BYTES)
        await wire.send(Challenge(challenge))
        hello = await wire.receive(Hello, max_bytes=MAX_HANDSHAKE_BYTES)
        if not hmac.compare_digest(hello.proof, _proof(secret, b"asks", challenge, hello.nonce)):
            raise WireError("a peer does not know the secret")
        await wire.send(Welcome(_proof(secret, b"answers", challenge, hello.nonce)))


async def introduce(wire: Wire, secret: bytes) -> None:
    """The caller's side of the handshake. Raises ``WireError``, ``TimeoutError``."""
    wire.notice_loss()
    async with asyncio.timeout(HANDSHAKE_S):
        challenge = (await wire.receive(Challenge, max_bytes=MAX_HANDSHAKE_BYTES)).nonce
        nonce = secrets.token_bytes(_NONCE_BYTES)
        await wire.send(Hello(nonce, _proof(secret, b"asks", challenge, nonce)))
        welcome = await wire.receive(Welcome, max_bytes=MAX_HANDSHAKE_BYTES)
        if not hmac.compare_digest(welcome.proof, _proof(secret, b"answers", challenge, nonce)):
            raise WireError("a peer does not know the secret")


def derive_secret(root: bytes) -> bytes:
    """The secret of the handshake, derived from the one that all gateways share."""
    return hmac.digest(root, b"sluice gateway peers, version 1", hashlib.sha256)


def _proof(secret: bytes, role: bytes, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + challenge + nonce, hashlib.sha256)
