"""Received bytes are parsed in small pieces, so that no client's bytes hold the event loop.

One read of 64 KiB can hold ten thousand WebSocket frames or two thousand pipelined requests, and
parsing them at once would take a tenth of a second, for each connection that sends them. So a
connection parses one piece after the other while the recent input of its client, and of all clients
together, has cost little time. What is left over, and all input of a client whose bytes were
costly, waits with reading paused, and the ``Pace`` of the worker gives such connections turns: all
of them together get at most a quarter of the event loop.

    bytes ──► ReceiveBuffer.receive ──► parsed now, in pieces          (almost always)
                     └──► backlog ──► Pace ──► parsed in turns
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

PIECE_BYTES = 1024
"""Bytes that are parsed at once where each of them may be costly: about 30 requests, 170 chunks or
512 frames."""
BURST_S = 0.002
"""Time that a connection's input may take at once."""
CONNECTION_SHARE = 0.02
"""Of the event loop, for a connection's input that is parsed as it comes."""
WORKER_BURST_S, WORKER_SHARE = 0.008, 0.25
"""The same for all connections together: a stranger may open a thousand of them, and send on all at
once."""
TURN_S = 0.002
"""Time of a turn of the backlogs."""
REST = 3.0
"""The backlogs rest for this many times the time that their turn took."""


class Parser(Protocol):
    """A connection's protocol, as ``ReceiveBuffer`` uses it."""

    transport: asyncio.Transport

    def parse(self, data: bytes) -> None:
        """Handle the next bytes of the connection."""

    def piece_end(self, data: bytes, start: int) -> int:
        """Where the piece of ``data`` ends that begins at ``start`` and costs little to parse."""

    @property
    def wants_input(self) -> bool:
        """Whether the next bytes can be handled now, or something received before must be first."""


class Credit:
    """Time that may be spent at once. A share of all time is added to it, up to the most."""

    __slots__ = ("_filled_at", "_left_s", "_most_s", "_share")

    def __init__(self, most_s: float, share: float) -> None:
        self._most_s, self._share = most_s, share
        self._left_s = most_s
        self._filled_at = time.perf_counter()

    def left_s(self, now: float) -> float:
        """Negative if more was spent than there was."""
        self._left_s = min(self._most_s, self._left_s + self._share * (now - self._filled_at))
        self._filled_at = now
        return self._left_s

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds


class Pace:
    """Gives the backlogs of one worker their turns."""

    def __init__(self) -> None:
        self.credit = Credit(WORKER_BURST_S, WORKER_SHARE)
        """Of all connections together, for input that is parsed as it comes."""
        self._fresh: deque[ReceiveBuffer] = deque()
        """Those whose own input has cost little: they wait for what all others cost."""
        self._costly: deque[ReceiveBuffer] = deque()
        self._queues = deque((self._fresh, self._costly))
        self._is_running = False
        """Whether turns are being taken, or will be."""

    def enqueue(self, buffer: ReceiveBuffer) -> None:
        """Let ``buffer`` have a turn. It must not be waiting for one."""
        (self._fresh if buffer.is_fresh else self._costly).append(buffer)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        began = time.perf_counter()
        now = began
        while any(self._queues) and now < began + TURN_S:
            self._queues.rotate()
            (self._queues[0] or self._queues[1]).popleft().take_turn(now)
            now = time.perf_counter()
        # They rest also after the last of them: it may come back at once.
        self._is_running = any(self._queues) or now > began
        if self._is_running:
            asyncio.get_running_loop().call_later(REST * (now - began), self._take_turns)


class ReceiveBuffer:
    """The bytes that a connection has received and not parsed yet."""

    __slots__ = (
        "_backlog", "_credit", "_has_turn", "_is_paused", "_pace", "_parser", "_start",
    )  # fmt: skip

    def __init__(self, parser: Parser, pace: Pace) -> None:
        self._parser: Parser | None = parser
        """None after the end: it refers to the buffer, and a cycle would keep the last body."""
        self._pace = pace
        self._backlog = b""
        self._start = 0
        """Where the rest of ``_backlog`` begins."""
        self._has_turn = False
        """Whether the connection waits for a turn."""
        self._is_paused = False
        """Whether reading is paused because bytes wait here."""
        self._credit = Credit(BURST_S, CONNECTION_SHARE)

    @property
    def is_fresh(self) -> bool:
        return self._credit.left_s(time.perf_counter()) > 0

    def receive(self, data: bytes) -> None:
        """Take what the transport has received, and parse it if it may be parsed now."""
        if self._backlog:  # Somebody has resumed reading; that is bounded by one read each time.
            data = self._backlog[self._start :] + data
        self._backlog, self._start = data, 0
        if not self._has_turn:
            now = time.perf_counter()
            credit_s = min(self._credit.left_s(now), self._pace.credit.left_s(now))
            if credit_s > 0:
                self._pace.credit.spend(self._parse(now, credit_s))
        self._go_on()

    def resume(self) -> None:
        """The parser wants input again."""
        if self._backlog:
            self._go_on()
        elif self._parser is not None:
            self._is_paused = False
            self._parser.transport.resume_reading()

    def clear(self) -> None:
        """Forget what waits."""
        self._backlog, self._start = b"", 0

    def end(self) -> None:
        """The connection is lost, or another protocol's from now on."""
        self.clear()
        parser, self._parser = self._parser, None
        if parser is not None and self._is_paused and not parser.transport.is_closing():
            parser.transport.resume_reading()

    def take_turn(self, now: float) -> None:
        """Parse a piece. ``Pace`` calls this."""
        self._has_turn = False
        if self._backlog:
            try:
                self._parse(now, 0.0)
            except Exception as exc:  # As where the event loop calls ``data_received``.
                loop = asyncio.get_running_loop()
                loop.call_exception_handler({"message": "a parser failed", "exception": exc})
                if self._parser is not None:
                    self._parser.transport.abort()
                self.clear()
            self._go_on()

    def _parse(self, now: float, credit_s: float) -> float:
        """Parse one piece, and more of them for ``credit_s``. Returns the time that it took."""
        began = now
        while True:
            parser = self._parser
            if parser is None or not parser.wants_input or not self._backlog:
                break
            data, start = self._backlog, self._start
            end = parser.piece_end(data, start)
            if end >= len(data):
                self.clear()
            else:
                self._start = end
            parser.parse(data[start:end] if start or end < len(data) else data)
            now = time.perf_counter()
            if now - began >= credit_s:
                break
        self._credit.spend(now - began)
        return now - began

    def _go_on(self) -> None:
        """Wait for a turn, for the parser, or for more bytes."""
        parser = self._parser
        if parser is None:
            return
        transport = parser.transport
        if transport.is_closing():
            self.clear()
        elif self._backlog:
            transport.pause_reading()
            self._is_paused = True
            if parser.wants_input and not self._has_turn:
                self._has_turn = True
                self._pace.enqueue(self)
        elif self._is_paused and parser.wants_input:
            self._is_paused = False
            transport.resume_reading()
