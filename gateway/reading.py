"""When the outputs of a generation are read: what a client gains, and in how many pieces.

What comes while a client can take it goes straight on, in the callback that received it. What comes
sooner than ``flush_interval_s`` after the piece before, or while the client is slow, waits: the
engine client merges it. The first piece leaves at once, and so does the last.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Protocol

from engine.messages import RequestOutput
from gateway.assembler import Delta
from gateway.choice import Choice


class Sink(Protocol):
    """Takes deltas as they come."""

    @property
    def is_free(self) -> bool:
        """Whether it can take one now."""

    def put(self, delta: Delta) -> None:
        """Must not block."""


Advance = Callable[[Choice, RequestOutput], Delta]


class _Line:
    """A choice that is read."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.stream = choice.stream
        self.flushed_at = -math.inf
        self.last: Delta | None = None
        """Of a choice that ended while its output was diverted."""

    def detach(self) -> None:
        self.stream.on_change = self.stream.divert = None


class Reader:
    """Reads the choices of one generation as they come, each in order."""

    def __init__(
        self,
        choices: Sequence[Choice],
        advance: Advance,
        flush_interval_s: float,
        sink: Sink | None,
    ) -> None:
        """``advance`` is told of each output that is read. ``sink`` gets what comes in between."""
        self._advance = advance
        self._interval_s = flush_interval_s
        self._sink = sink
        self._lines = [_Line(choice) for choice in choices]
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._waiter: asyncio.Future[None] | None = None
        """There while the sink may be given something: all that was yielded is sent."""
        self._error: Exception | None = None

    async def deltas(self, heard: RequestOutput | None) -> AsyncGenerator[Delta, None]:
        """All that ``sink`` did not get, among it each choice's last. ``heard``: read already, of
        the first."""
        if heard is not None:
            yield self._read(self._lines[0], heard)
        for line in self._lines:
            line.stream.on_change = self._wake
            if self._sink is not None:
                line.stream.divert = partial(self._divert, line)
        try:
            while running := [line for line in self._lines if line.choice.finish_reason is None]:
                for line in await self._due(running):
                    delta = line.last or self._read(line, await anext(line.stream))
                    if delta.finish_reason is not None:
                        line.detach()
                    yield delta
        finally:
            for line in self._lines:
                line.detach()

    async def _due(self, running: Sequence[_Line]) -> Sequence[_Line]:
        """Those that may be read now, at least one."""
        while True:
            if self._error is not None:
                raise self._error
            unread = [line for line in running if line.last or line.stream.is_readable]
            if due := [line for line in unread if self._delay_s(line) <= 0]:
                return due
            self._waiter = waiter = self._loop.create_future()
            timer = None
            if unread:
                timer = self._loop.call_later(min(map(self._delay_s, unread)), self._wake)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()

    def _delay_s(self, line: _Line) -> float:
        if line.last is not None or line.stream.is_finished:
            return 0.0
        return line.flushed_at + self._interval_s - self._time()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _read(self, line: _Line, output: RequestOutput) -> Delta:
        line.flushed_at = self._time()
        return self._advance(line.choice, output)

    def _divert(self, line: _Line, output: RequestOutput) -> bool:
        """Give it to the sink, unless it has to wait or ends the answer."""
        sink, now = self._sink, self._time()
        assert sink is not None
        if self._waiter is None or not sink.is_free or now < line.flushed_at + self._interval_s:
            return False
        line.flushed_at = now
        try:
            delta = line.choice.advance(output)
            if delta.finish_reason is not None:  # a stop string: the rest takes a task
                line.last = delta
                return False
            if delta.content or not delta.is_empty:
                sink.put(delta)
        except Exception as exc:  # the edge of a callback that serves other streams too
            self._error = exc
            return False
        return True
