"""The client's end of one stream: cheap, because it shares the machine with the server.

httptools for HTTP, msgspec for the chunks, one connection for each stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from gateway.bench.failures import ErrorBody, Failure
from gateway.commands.database import Address

REQUEST_TIMEOUT_S = 300.0


class Reader(Enum):
    """How a client reads its answer."""

    WHOLE = auto()  #: Reads all of it.
    STALLED = auto()  #: Takes the first text, then nothing for ``Prompt.stall_s``, then goes.
    LEAVING = auto()  #: Closes its connection after ``Prompt.leave_after`` chunks.


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    model: str
    content: str
    max_tokens: int
    resumable: bool = False
    reader: Reader = Reader.WHOLE
    is_warm_up: bool = False
    """Whether the answer is not measured: it only lets streams end at different times."""
    stall_s: float = 0.0
    leave_after: int = 1

    def fields(self) -> dict[str, object]:
        """The fields of the request that all APIs share."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,  # so that all answers have the same length
            **({"resumable": True} if self.resumable else {}),
        }


class Sample(msgspec.Struct):
    """One request. Times in seconds since it was sent."""

    ttft_s: float = math.nan
    total_s: float = math.nan
    tokens: int = 0
    num_chunks: int = 0
    """The number of chunks with text."""
    gaps_s: list[float] = []
    """Times from each chunk with text to the next."""
    error: Failure | None = None
    reader: Reader = Reader.WHOLE
    is_warm_up: bool = False
    request_id: str | None = None
    """32 hexadecimal digits, which the engine's ids begin with."""
    left_at_s: float = math.nan
    """``time.monotonic()`` when a leaving reader closed its connection."""


class Tally:
    """Counts the chunks of all streams."""

    __slots__ = ("num_chunks",)

    def __init__(self) -> None:
        self.num_chunks = 0


class Stream(asyncio.Protocol, ABC):
    """One connection that sends one request at a time and times its answer."""

    def __init__(self) -> None:
        self.tally = Tally()
        """Counts the chunks; may be shared by streams."""
        self._transport: asyncio.Transport | None = None
        self._prompt = Prompt(model="", content="", max_tokens=0)
        self._sample = Sample()
        self._sent_at = self._chunk_at = 0.0
        self._finished: asyncio.Future[None] | None = None

    @abstractmethod
    async def open(self) -> None:
        """Do what must precede the first request. Raises ``OSError`` if the server refuses."""

    @abstractmethod
    def _ask(self, prompt: Prompt) -> bytes:
        """The bytes of a request."""

    async def request(self, prompt: Prompt) -> Sample:
        """Send one request. Returns its sample when the answer has ended, or its reader leaves."""
        assert self._transport is not None
        self._prompt, self._sample = prompt, Sample()
        self._sample.reader, self._sample.is_warm_up = prompt.reader, prompt.is_warm_up
        self._finished = asyncio.get_running_loop().create_future()
        data = self._ask(prompt)
        self._sent_at = time.perf_counter()
        self._transport.write(data)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S + prompt.stall_s):
                await self._finished
        except TimeoutError:
            self._sample.error = Failure("timeout", f"no end after {REQUEST_TIMEOUT_S:g} s")
            self._transport.abort()
        self._sample.total_s = time.perf_counter() - self._sent_at
        return self._sample

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not inherit

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(Failure("connection lost", self._last_words(exc)))

    def _last_words(self, exc: Exception | None) -> str:
        """Why the connection has ended."""
        return f"after {self._sample.num_chunks} chunks: {exc or 'closed by the server'}"

    # -- what was read

    def _on_text(self) -> None:
        """Record a chunk with text."""
        now = time.perf_counter()
        sample = self._sample
        if sample.num_chunks == 0:
            sample.ttft_s = now - self._sent_at
        else:
            sample.gaps_s.append(now - self._chunk_at)
        sample.num_chunks += 1
        self.tally.num_chunks += 1
        self._chunk_at = now
        if sample.reader is Reader.STALLED and sample.num_chunks == 1:
            self._stall()
        elif sample.reader is Reader.LEAVING and sample.num_chunks == self._prompt.leave_after:
            self._leave()
            self._end()

    def _leave(self) -> None:
        """Close the connection at once; ``close`` would do so in the event loop's next turn."""
        assert self._transport is not None
        self._sample.left_at_s = time.monotonic()
        if self._transport.get_extra_info("sslcontext") is None:
            # On a duplicate, because not every event loop's socket has ``shutdown``.
            descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=descriptor) as twin, contextlib.suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)
        self.close()

    def _stall(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(self._prompt.stall_s, self._give_up)

    def _give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _fail(self, failure: Failure) -> None:
        if self._finished is not None and not self._finished.done():
            if self._sample.reader is Reader.WHOLE:
                self._sample.error = self._sample.error or failure
            self._end()

    def _end(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class _Chunk(msgspec.Struct, frozen=True):
    """The fields of a chunk that are measured."""

    id: str = ""
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: ErrorBody | None = None


class _ResponseUsage(msgspec.Struct, frozen=True):
    output_tokens: int


class _Response(msgspec.Struct, frozen=True):
    id: str
    usage: _ResponseUsage | None = None
    error: ErrorBody | None = None


class _Event(msgspec.Struct, frozen=True):
    """The fields of a response's event that are measured."""

    type: str = ""
    response: _Response | None = None
    error: ErrorBody | None = None


_ENDS = ("response.completed", "response.incomplete")
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class HttpStream(Stream):
    """Server-sent events of ``/v1/chat/completions``, over a connection that is kept alive."""

    path = "/v1/chat/completions"

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._host = urlsplit(address.url).netloc
        self._key = address.key
        self._parser: httptools.HttpResponseParser | None = None
        self._buffer = b""
        self._is_whole = False
        """Whether the stream had its last event, and not only the end of the connection."""

    async def open(self) -> None:
        """Nothing to do: there is no handshake."""

    def _ask(self, prompt: Prompt) -> bytes:
        self._parser, self._buffer = httptools.HttpResponseParser(self), b""
        self._is_whole = False
        body = msgspec.json.encode(self._body(prompt))
        head = (
            f"POST {self.path} HTTP/1.1\r\n"
            f"Host: {self._host}\r\n"
            f"Authorization: Bearer {self._key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _body(self, prompt: Prompt) -> dict[str, object]:
        return prompt.fields() | {"stream": True, "stream_options": {"include_usage": True}}

    def data_received(self, data: bytes) -> None:
        if self._parser is not None:
            self._parser.feed_data(data)

    # -- httptools

    def on_body(self, body: bytes) -> None:
        *events, self._buffer = (self._buffer + body).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line == b"data: [DONE]":
                    self._is_whole = True
                elif line.startswith(b"data: "):
                    self._on_data(line[6:])

    def on_message_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status != 200:
            self._sample.error = Failure.of_status(status, self._buffer)
        elif not self._is_whole:
            self._fail(Failure("cut short", f"ended after {self._sample.num_chunks} chunks"))
        self._end()

    def _on_data(self, data: bytes) -> None:
        chunk = _decode_chunk(data)
        if chunk.error is not None:
            self._sample.error = Failure.of_event(chunk.error)
        if chunk.usage is not None:
            self._sample.tokens = chunk.usage.completion_tokens
        if chunk.choices and chunk.choices[0].delta.content:
            self._sample.request_id = chunk.id.rpartition("-")[2]
            self._on_text()


class ResponsesStream(HttpStream):
    """Server-sent events of ``/v1/responses``."""

    path = "/v1/responses"

    def _body(self, prompt: Prompt) -> dict[str, object]:
        fields = prompt.fields()
        fields["input"] = fields.pop("messages")
        fields["max_output_tokens"] = fields.pop("max_tokens")
        return fields | {"stream": True, "store": False}

    def _on_data(self, data: bytes) -> None:
        event = _decode_event(data)
        if event.type == "response.output_text.delta":
            self._on_text()
        elif event.error is not None:
            self._sample.error = Failure.of_event(event.error)
        elif event.response is not None:
            self._is_whole = event.type in _ENDS
            self._on_response(event.response)

    def _on_response(self, response: _Response) -> None:
        """Record the response object of an event."""
        self._sample.request_id = response.id.partition("_")[2]
        if response.usage is not None:
            self._sample.tokens = response.usage.output_tokens
        if response.error is not None:
            self._sample.error = Failure.of_event(response.error)
