"""When the outputs of a generation are read: what a client gains, and in how many pieces.

What comes while a client can take it goes straight on, in the callback that received it. What comes
sooner than ``Flushes.pause_s`` after the piece before waits, and goes on from a timer; what
comes while the client is slow waits for a task to read it. The engine client merges what waits. The
first piece leaves at once, and so does the last.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from engine.messages import RequestOutput
from gateway.assembler import Delta
from gateway.choice import Choice
from gateway.flushes import Flushes
from gateway.text_events import Text, TextSink


class Sink(Protocol):
    """Takes deltas as they come."""

    def text_sink(self, index: int) -> TextSink | None:
        """A shorter way for the choice's content alone, where there is one."""

    @property
    def is_free(self) -> bool:
        """Whether it can take one now."""

    def put(self, delta: Delta) -> None:
        """Must not block."""


Advance = Callable[[Choice, RequestOutput], Delta]


class _Line:
    """A choice that is read."""

    # Slots, and all that a plain piece of text needs: see ``engine.request_stream``.
    __slots__ = (
        "_flushes",
        "_pause_s",
        "_reader",
        "_text_sink",
        "_texts",
        "choice",
        "due_at",
        "is_awaited",
        "is_settled",
        "is_waiting",
        "last",
        "stream",
    )

    def __init__(self, choice: Choice, flushes: Flushes, text_sink: TextSink | None) -> None:
        self.choice = choice
        self.stream = choice.stream
        self.due_at = -math.inf
        """From then on something may be read, or go straight on."""
        self.is_awaited = False
        """All that was yielded is sent: more may go straight on."""
        self.is_settled = False
        """As its choice says it, where there is a shorter way."""
        self.last: Delta | None = None
        """Of a choice that ended while its output was diverted."""
        self._pause_s = flushes.pause_s
        self._texts = choice.texts
        self._reader: Reader | None = None
        self._text_sink = text_sink
        self._flushes = flushes
        self.is_waiting = False
        """For ``flush_late``."""
        self.settle()

    def settle(self) -> None:
        """After each output that the choice was told of."""
        self.is_settled = self._text_sink is not None and self.choice.is_settled

    def flush(self, now: float) -> None:
        """What came until now is on its way to the client."""
        self.due_at = now + self._pause_s

    def delay_s(self) -> float:
        """Until it may be read."""
        if self.last is not None or self.stream.is_finished:
            return 0.0
        return self.due_at - time.monotonic()

    def divert(self, output: RequestOutput, now: float) -> bool | None:
        """As ``RequestStream.divert``: what may go straight on does, text by the shortest way."""
        if not self.is_awaited:
            return False
        if now < self.due_at:
            self._wait()
            return None
        # One token is the usual case, and to call for it would cost as much as to look it up.
        if self.is_settled and (
            text := (
                self._texts.get(output.new_token_ids[0])
                if len(output.new_token_ids) == 1
                and output.logprobs is None is output.prompt_logprobs
                else self._text(output)
            )
        ):
            assert self._text_sink is not None
            try:
                is_taken = self._text_sink.put(text, now)
            except Exception as exc:  # the edge of a callback that serves other streams too
                return self._failed(exc)
            if is_taken:
                self.due_at = now + self._pause_s
            return is_taken
        assert self._reader is not None
        return self._reader.divert(self, output, now)

    def _wait(self) -> None:
        """With what comes until it is due. No task wakes for that: it would cost more than all the
        rest, and where an engine is quick this is most of what comes."""
        if not self.is_waiting:
            self.is_waiting = True
            self._flushes.wait(self, self.due_at)

    def flush_late(self, now: float) -> None:
        """As ``flushes.Waiting``; nothing once it is detached."""
        if self.is_waiting:
            self.is_waiting = False
            self.stream.divert_pending(max(now, self.due_at))

    def _text(self, output: RequestOutput) -> Text | None:
        """What a settled choice gains by ``output``, if that is known text and nothing else."""
        if output.logprobs is not None or output.prompt_logprobs is not None:
            return None
        token_ids, texts = output.new_token_ids, self._texts
        if len(token_ids) == 1:
            return texts.get(token_ids[0])
        try:
            return Text(b"".join([texts[token_id] for token_id in token_ids]))
        except KeyError:
            return None

    def _failed(self, error: Exception) -> bool:
        assert self._reader is not None
        self._reader.fail(error)
        return False

    def attach(self, reader: Reader, *, has_sink: bool) -> None:
        """Until ``detach``."""
        self._reader = reader
        self.stream.on_change = reader.wake
        if has_sink:
            self.stream.divert = self.divert

    def detach(self) -> None:
        self.is_waiting = False
        self.stream.on_change = self.stream.divert = self._reader = None


class Reader:
    """Reads the choices of one generation as they come, each in order."""

    def __init__(
        self,
        choices: Sequence[Choice],
        advance: Advance,
        flushes: Flushes,
        sink: Sink | None,
    ) -> None:
        """``advance`` is told of each output that is read. ``sink`` gets what comes in between."""
        self._advance = advance
        self._sink = sink
        self._lines = [
            _Line(
                choice,
                flushes,
                None if sink is None else sink.text_sink(choice.index),
            )
            for choice in choices
        ]
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def deltas(self, heard: RequestOutput | None) -> AsyncGenerator[Delta, None]:
        """All that ``sink`` did not get, among it each choice's last. ``heard``: read already, of
        the first."""
        if heard is not None:
            yield self._read(self._lines[0], heard)
        for line in self._lines:
            line.attach(self, has_sink=self._sink is not None)
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
            if due := [line for line in unread if line.delay_s() <= 0]:
                return due
            self._waiter = waiter = self._loop.create_future()
            timer = None
            # A line that waits is flushed, or tells of it, when it is due.
            if delays_s := [line.delay_s() for line in unread if not line.is_waiting]:
                timer = self._loop.call_later(min(delays_s), self.wake)
            for line in running:
                line.is_awaited = True
            try:
                await waiter
            finally:
                self._waiter = None
                for line in running:
                    line.is_awaited = False
                if timer is not None:
                    timer.cancel()

    def wake(self) -> None:
        """For a line's stream: there is something to read."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _read(self, line: _Line, output: RequestOutput) -> Delta:
        line.flush(time.monotonic())
        delta = self._advance(line.choice, output)
        line.settle()
        return delta

    def divert(self, line: _Line, output: RequestOutput, now: float) -> bool:
        """For a line: give it to the sink, unless it has to wait or ends the answer."""
        sink = self._sink
        assert sink is not None
        if not sink.is_free:
            return False
        try:
            delta = line.choice.advance(output)
            line.settle()
            if delta.finish_reason is not None:  # a stop string: the rest takes a task
                line.last = delta
                return False
            if delta.content or not delta.is_empty:
                line.flush(now)
                sink.put(delta)
        except Exception as exc:  # likewise
            self.fail(exc)
            return False
        return True

    def drop_sink(self) -> None:
        """From here on everything is yielded."""
        for line in self._lines:
            line.stream.divert = None
        self._sink = None

    def fail(self, error: Exception) -> None:
        """What is read next raises it."""
        self._error = error
