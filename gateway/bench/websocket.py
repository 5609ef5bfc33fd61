"""The client's end of a WebSocket of ``/v1/chat``: one turn at a time, timed as ``HttpStream``."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from gateway.bench.failures import ErrorBody, Failure
from gateway.bench.stream import Prompt, Stream
from gateway.commands.database import Address

HANDSHAKE_S = 30.0


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class _Message(msgspec.Struct, frozen=True):
    """The fields of a message that are measured."""

    type: str
    content: str | None = None
    request_id: str | None = None
    usage: _Usage | None = None
    error: ErrorBody = ErrorBody()


class SocketStream(Stream):
    """A stream over websockets' sans-I/O protocol and an asyncio transport."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._protocol = ClientProtocol(parse_uri(f"ws{address.url[4:]}/v1/chat"))
        self._key = address.key
        self._decoder = msgspec.json.Decoder(_Message)
        self._turns = itertools.count()
        self._opened = asyncio.Event()

    async def open(self) -> None:
        assert self._transport is not None
        request = self._protocol.connect()
        request.headers["Authorization"] = f"Bearer {self._key}"
        self._protocol.send_request(request)
        self._transport.write(b"".join(self._protocol.data_to_send()))
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._opened.wait()
        except TimeoutError:
            raise OSError("the handshake was not answered") from None
        if self._protocol.handshake_exc is not None:
            raise OSError(str(self._protocol.handshake_exc))

    def _ask(self, prompt: Prompt) -> bytes:
        turn = {"type": "chat", "id": str(next(self._turns)), **prompt.fields()}
        self._protocol.send_text(msgspec.json.encode(turn))
        return b"".join(self._protocol.data_to_send())

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._on_message(self._decoder.decode(event.data))
        if self._protocol.handshake_exc is not None:
            self._opened.set()
        elif self._transport is not None and (answers := self._protocol.data_to_send()):
            self._transport.write(b"".join(answers))  # pongs

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.set()
        super().connection_lost(exc)

    def _last_words(self, exc: Exception | None) -> str:
        close = self._protocol.close_rcvd
        return super()._last_words(exc) if close is None else f"WebSocket closed: {close}"

    def _on_message(self, message: _Message) -> None:
        match message.type:
            case "ready":
                self._opened.set()
            case "started":
                self._sample.request_id = (message.request_id or "").replace("-", "")
            case "delta" if message.content:
                self._on_text()
            case "done":
                if message.usage is not None:
                    self._sample.tokens = message.usage.completion_tokens
                self._end()
            case "error":
                self._sample.error = Failure.of_event(message.error)
                self._end()
