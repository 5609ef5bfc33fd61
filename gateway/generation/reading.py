"""Reads the engine's outputs of one generation, and decides when each is sent and by whom.

An output takes one of three ways:

- Its client can take it: it is sent at once, in the callback that received it from the engine.
- It comes sooner than ``Flushes.pause_s`` after the one before: it waits, and a timer sends it.
- Its client reads slowly, or the answer ends: the task that runs ``OutputReader.deltas`` reads it.

The engine's client merges outputs that wait. The first piece of an answer and the last never wait
for the interval. Most tokens go the first two ways, in which no task is woken.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from engine.messages import RequestOutput
from gateway.generation.choice import Choice
from gateway.generation.delta import Delta
from gateway.generation.flushes import Flushes
from gateway.generation.text_events import Text, TextSink


class Sink(Protocol):
    """Takes deltas in the callback that received them: a connection, or a stream's log."""

    def text_sink(self, index: int) -> TextSink | None:
        """A faster sink for deltas of one choice that are content alone; None if there is none.
        ``index``: of the choice."""

    @property
    def is_free(self) -> bool:
        """Whether it can take a delta now."""

    def put(self, delta: Delta) -> None:
        """Send a delta; only while ``is_free``. Must not block."""


Advance = Callable[[Choice, RequestOutput], Delta]


class _Reading:
    """One choice while it is read: when its next piece may be sent, and by whom."""

    # Slots, with all that a plain piece of text needs: ``engine.client.stream`` says why.
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
        """When the next piece may be sent, in seconds of ``time.monotonic``."""
        self.is_awaited = False
        """Whether the task waits, and so has sent all that it read: only then may a callback send,
        or it would overtake the task."""
        self.is_settled = False
        """Whether there is a text sink and ``Choice.is_settled``: the next token's text is known
        without the detokenizer."""
        self.last: Delta | None = None
        """The last delta of a choice that ended in a callback; the task must yield it."""
        self._pause_s = flushes.pause_s
        self._texts = choice.texts
        self._reader: OutputReader | None = None
        self._text_sink = text_sink
        self._flushes = flushes
        self.is_waiting = False
        """Whether ``Flushes`` will call ``flush_late``."""
        self.update_settled()

    def update_settled(self) -> None:
        """To be called after each output that the choice has processed."""
        self.is_settled = self._text_sink is not None and self.choice.is_settled

    def start_pause(self, now: float) -> None:
        """A piece has just been sent: the next one may follow after the pause."""
        self.due_at = now + self._pause_s

    def delay_s(self) -> float:
        """Seconds until the choice may be read; 0 or less if it may be now."""
        if self.last is not None or self.stream.is_finished:
            return 0.0
        return self.due_at - time.monotonic()

    def divert(self, output: RequestOutput, now: float) -> bool | None:
        """The callback for ``RequestStream.divert``: send the output at once if possible."""
        if not self.is_awaited:
            return False
        if now < self.due_at:
            self._wait()
            return None
        # A single token is the usual case. It is looked up here, because a call of ``_text`` would
        # cost as much as the lookup itself.
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
            except Exception as exc:  # The callback serves other streams too.
                return self._failed(exc)
            if is_taken:
                self.due_at = now + self._pause_s
            return is_taken
        assert self._reader is not None
        return self._reader.divert(self, output, now)

    def _wait(self) -> None:
        """Have a timer send what has come by ``due_at``. A fast engine sends most outputs before
        they are due, and to wake a task for each would cost more than all other work on it."""
        if not self.is_waiting:
            self.is_waiting = True
            self._flushes.wait(self, self.due_at)

    def flush_late(self, now: float) -> None:
        """The callback for ``Flushes.wait``. Does nothing after ``detach``."""
        if self.is_waiting:
            self.is_waiting = False
            self.stream.divert_pending(max(now, self.due_at))

    def _text(self, output: RequestOutput) -> Text | None:
        """The text that ``output`` adds to a settled choice; None if the text of a token is not
        known yet, or if there is more than text."""
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

    def attach(self, reader: OutputReader, *, has_sink: bool) -> None:
        """Have outputs reported to ``reader``, until ``detach``."""
        self._reader = reader
        self.stream.on_change = reader.wake
        if has_sink:
            self.stream.divert = self.divert

    def detach(self) -> None:
        self.is_waiting = False
        self.stream.on_change = self.stream.divert = self._reader = None


class OutputReader:
    """Reads all choices of one generation as their outputs come, each choice in order."""

    def __init__(
        self,
        choices: Sequence[Choice],
        advance: Advance,
        flushes: Flushes,
        sink: Sink | None,
    ) -> None:
        """``advance`` makes a delta of an output that the task reads. ``sink`` gets the deltas that
        callbacks send; without it the task reads everything."""
        self._advance = advance
        self._sink = sink
        self._readings = [
            _Reading(choice, flushes, None if sink is None else sink.text_sink(choice.index))
            for choice in choices
        ]
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def deltas(self, first_output: RequestOutput | None) -> AsyncGenerator[Delta, None]:
        """All deltas that ``sink`` did not get, among them the last one of each choice.

        ``first_output``: an output of the first choice that was read before.
        """
        if first_output is not None:
            yield self._read(self._readings[0], first_output)
        for reading in self._readings:
            reading.attach(self, has_sink=self._sink is not None)
        try:
            while running := [one for one in self._readings if one.choice.finish_reason is None]:
                for reading in await self._due(running):
                    delta = reading.last or self._read(reading, await anext(reading.stream))
                    if delta.finish_reason is not None:
                        reading.detach()
                    yield delta
        finally:
            self._error = None  # Once raised, it refers to this object by its traceback.
            for reading in self._readings:
                reading.detach()

    async def _due(self, running: Sequence[_Reading]) -> Sequence[_Reading]:
        """Wait until at least one choice may be read, and return those that may."""
        while True:
            if self._error is not None:
                raise self._error
            unread = [reading for reading in running if reading.last or reading.stream.is_readable]
            if due := [reading for reading in unread if reading.delay_s() <= 0]:
                return due
            self._waiter = waiter = self._loop.create_future()
            timer = None
            # Those that wait for ``Flushes`` are sent by it, or it calls ``wake``.
            if delays_s := [reading.delay_s() for reading in unread if not reading.is_waiting]:
                timer = self._loop.call_later(min(delays_s), self.wake)
            for reading in running:
                reading.is_awaited = True
            try:
                await waiter
            finally:
                self._waiter = None
                for reading in running:
                    reading.is_awaited = False
                if timer is not None:
                    timer.cancel()

    def wake(self) -> None:
        """The callback for ``RequestStream.on_change``: there is something to read."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _read(self, reading: _Reading, output: RequestOutput) -> Delta:
        reading.start_pause(time.monotonic())
        delta = self._advance(reading.choice, output)
        reading.update_settled()
        return delta

    def divert(self, reading: _Reading, output: RequestOutput, now: float) -> bool:
        """Give the sink what ``output`` adds to a choice. False if the task must read it, because
        the sink is not free, or must yield it, because the answer ends with it."""
        sink = self._sink
        assert sink is not None
        if not sink.is_free:
            return False
        try:
            delta = reading.choice.advance(output)
            reading.update_settled()
            if delta.finish_reason is not None:  # A stop string: what follows needs the task.
                reading.last = delta
                return False
            if delta.content or not delta.is_empty:
                reading.start_pause(now)
                sink.put(delta)
        except Exception as exc:  # The callback serves other streams too.
            self.fail(exc)
            return False
        return True

    def drop_sink(self) -> None:
        """Let ``deltas`` yield everything from here on."""
        for reading in self._readings:
            reading.stream.divert = None
        self._sink = None

    def fail(self, error: Exception) -> None:
        """Let the next read in ``deltas`` raise ``error``."""
        self._error = error
