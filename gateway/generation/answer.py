"""The path of an answer, from the engine's outputs to the channel that carries it.

    RequestStream.deliver ──► Reading.take ──► Encoder ──► Channel     in the callback: most tokens
            │ not taken            ▲
            └──► unread ──► Flushes: a timer                           sooner than the pause allows
                     └────► Reader.deltas ──► Answer.events            in the task

An encoder writes one format and knows no connection; a channel carries events and knows no format
(``generation.events``). ``Reading`` decides who may send a choice's next piece: its ``sender``.

                      ┌─────────────────── the task waits ──────────────────┐
                      │                                                     ▼
      begin ──►     TASK  ◄── the channel is not free, or the end ──── CALLBACK ◄──┐
                      ▲ │                                                   │      │ it is due, and
                      │ └── something is unread and not due ──► TIMER ◄─────┘      │ sent
                      │                                        │ │   not due       │
                      └── the end, or the channel is not free ─┘ └─────────────────┘

The engine's client merges outputs that are unread. The first piece of an answer and the last wait
for no pause.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from enum import Enum, auto
from typing import TYPE_CHECKING

from engine.messages import RequestOutput
from gateway.errors import ApiError
from gateway.generation.choice import Choice
from gateway.generation.delta import Delta
from gateway.generation.events import Channel, Encoder, Event, Text, TextSink
from gateway.generation.flushes import Flushes
from gateway.schemas.common import NO_USAGE, Usage

if TYPE_CHECKING:
    from gateway.generation.generation import Generation


class Answer:
    """What a generation says, in one format. ``close`` it in a ``finally``."""

    def __init__(self, generation: Generation | None, encoder: Encoder) -> None:
        """``generation``: None if there is nothing to say."""
        self.generation = generation
        self.encoder = encoder
        self.failure: ApiError | None = None
        """What the events ended with, until ``close``."""

    def events(self, channel: Channel | None = None) -> AsyncGenerator[Sequence[Event], None]:
        """All events, except those that callbacks give to ``channel`` meanwhile. A failure is an
        event as well, and is not raised."""
        return self._encoded(None if channel is None else Delivery(self.encoder, channel))

    async def _encoded(self, delivery: Delivery | None) -> AsyncGenerator[Sequence[Event], None]:
        encoder = self.encoder
        if opening := encoder.opening():
            yield opening
        try:
            async with aclosing(self._said(delivery)) as said:
                async for events in said:
                    yield events
            last = encoder.closing(await self._usage())
        except ApiError as exc:
            self.failure = exc
            last = encoder.failure(exc)
        yield await self._end(last)

    async def _said(self, delivery: Delivery | None) -> AsyncGenerator[Sequence[Event], None]:
        """The events between the first ones and the last."""
        async with aclosing(self._deltas(delivery)) as deltas:
            async for delta in deltas:
                if events := self.encoder.delta(delta):
                    yield events

    def _deltas(self, delivery: Delivery | None) -> AsyncGenerator[Delta, None]:
        return _nothing() if self.generation is None else self.generation.deltas(delivery)

    async def _usage(self) -> Usage:
        return NO_USAGE if self.generation is None else await self.generation.usage()

    async def _end(self, last: Sequence[Event]) -> Sequence[Event]:
        """What must be done before the last events are sent; returns these."""
        return last

    def heartbeat(self) -> Event | None:
        """An event for a client that has heard nothing for long."""
        return self.encoder.heartbeat()

    def cut(self, error: ApiError) -> Event:
        """The last event of a stream's log whose writer has failed."""
        return self.encoder.failure(error)[-1]

    def cancel(self) -> None:
        """End it because the client asked for it: it ends soon, with what there is until now."""
        if self.generation is not None:
            self.generation.cancel()

    def close(self) -> None:
        """Stop it if it still runs. Idempotent."""
        self.failure = None  # Its traceback refers to this object.
        if self.generation is not None:
            self.generation.close()


async def _nothing() -> AsyncGenerator[Delta, None]:
    nothing: tuple[Delta, ...] = ()
    for delta in nothing:
        yield delta


class Delivery:
    """Encodes deltas in the callback that received them, and gives them to the channel."""

    __slots__ = ("_channel", "_encoder")

    def __init__(self, encoder: Encoder, channel: Channel) -> None:
        self._encoder = encoder
        self._channel = channel

    @property
    def is_free(self) -> bool:
        """Whether it can take a delta now."""
        return self._channel.is_free

    def put(self, delta: Delta) -> None:
        """Send a delta; only while ``is_free``."""
        if events := self._encoder.delta(delta):
            self._channel.put(events)

    def text_sink(self, index: int) -> TextSink | None:
        """A faster way for content of one choice alone; None if there is none. ``index``: of the
        choice."""
        form = self._encoder.text_form(index)
        return None if form is None else self._channel.text_sink(form)


Advance = Callable[[Choice, RequestOutput], Delta]


class Reader:
    """Reads all choices of one generation as their outputs come, each choice in order."""

    def __init__(
        self,
        choices: Sequence[Choice],
        advance: Advance,
        flushes: Flushes,
        delivery: Delivery | None,
    ) -> None:
        """``advance`` makes a delta of an output that the task reads. ``delivery`` gets the deltas
        that callbacks send; without it the task reads everything."""
        self.delivery = delivery
        self._advance = advance
        self._readings = [
            Reading(choice, flushes, None if delivery is None else delivery.text_sink(choice.index))
            for choice in choices
        ]
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def deltas(self, first_output: RequestOutput | None) -> AsyncGenerator[Delta, None]:
        """All deltas that ``delivery`` did not get, among them the last one of each choice.

        ``first_output``: an output of the first choice that was read before.
        """
        if first_output is not None:
            yield self._read(self._readings[0], first_output)
        for reading in self._readings:
            reading.attach(self)
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

    async def _due(self, running: Sequence[Reading]) -> Sequence[Reading]:
        """Wait until the task must read at least one choice, and return those that it may read."""
        while True:
            if self._error is not None:
                raise self._error
            if due := [reading for reading in running if reading.is_due]:
                return due
            self._waiter = waiter = self._loop.create_future()
            for reading in running:
                reading.let_go()
            try:
                await waiter
            finally:
                self._waiter = None
                for reading in running:
                    reading.sender = _TASK

    def _read(self, reading: Reading, output: RequestOutput) -> Delta:
        reading.due_at = time.monotonic() + reading.pause_s
        delta = self._advance(reading.choice, output)
        reading.update_settled()
        return delta

    def wake(self) -> None:
        """Have the task read on; also the callback for ``RequestStream.on_change``."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drop_delivery(self) -> None:
        """Let ``deltas`` yield everything from here on."""
        self.delivery = None
        for reading in self._readings:
            reading.drop_delivery()

    def fail(self, error: Exception) -> None:
        """Let ``deltas`` raise ``error``, because the callback where it came up serves other
        streams too."""
        self._error = error
        self.wake()


class Sender(Enum):
    """Who may send the next piece of a choice."""

    TASK = auto()
    """The task that reads the answer: it has something that is not sent yet, and whatever comes
    must wait behind that."""
    CALLBACK = auto()
    """The callback that receives it from the engine: the task waits, and nothing is unread."""
    TIMER = auto()
    """The timer of ``Flushes``: the task waits, and what is unread is not due yet. A fast engine
    sends most outputs before they are due, and to wake a task for each would cost more than all
    other work on it."""
    NOBODY = auto()
    """The choice is not read yet, or has ended."""


_TASK, _CALLBACK, _TIMER, _NOBODY = Sender
_CLOCK_ERROR_S = 1e-6


class Reading:
    """One choice while it is read: decides who may send its next piece."""

    # Slots, with all that a plain piece of text needs: ``engine.client.stream`` says why.
    __slots__ = (
        "_flushes",
        "_reader",
        "_text_sink",
        "_texts",
        "_timed_for",
        "choice",
        "due_at",
        "is_settled",
        "last",
        "pause_s",
        "sender",
        "stream",
    )

    def __init__(self, choice: Choice, flushes: Flushes, text_sink: TextSink | None) -> None:
        self.choice = choice
        self.stream = choice.stream
        self.sender = _NOBODY
        self.pause_s = flushes.pause_s
        self.due_at = -math.inf
        """When the next piece may be sent, in seconds of ``time.monotonic``."""
        self.is_settled = False
        """Whether the next token's text is known without the detokenizer (``Choice.is_settled``)
        and can be sent without an encoder."""
        self.last: Delta | None = None
        """The last delta of a choice that ended in a callback; the task must yield it."""
        self._texts = choice.texts
        self._text_sink = text_sink
        self._reader: Reader | None = None
        self._flushes = flushes
        self._timed_for = -math.inf
        """The ``due_at`` for which ``Flushes`` will call ``flush_late``."""
        self.update_settled()

    def attach(self, reader: Reader) -> None:
        """Take the choice's outputs for ``reader``, until ``detach``."""
        self._reader = reader
        self.sender = _TASK
        self.stream.on_change = reader.wake
        self.stream.take = self.take

    def detach(self) -> None:
        self.sender = _NOBODY
        self.stream.on_change = self.stream.take = self._reader = None

    def drop_delivery(self) -> None:
        self._text_sink = None
        self.is_settled = False

    def update_settled(self) -> None:
        """To be called after each output that the choice has processed."""
        self.is_settled = self._text_sink is not None and self.choice.is_settled

    @property
    def is_due(self) -> bool:
        """Whether the task may read the choice."""
        stream = self.stream
        if self.last is not None or stream.is_finished:
            return True
        return stream.is_readable and self.due_at <= time.monotonic()

    def let_go(self) -> None:
        """The task waits from now on, and has sent all that it read."""
        self.sender = _CALLBACK
        if self.stream.is_readable:
            self._start_timer()

    def take(self, output: RequestOutput, now: float) -> bool:
        """The callback for ``RequestStream.take``: send the output now if possible."""
        if self.sender is not _CALLBACK:
            return False
        if now < self.due_at:
            self._start_timer()
            return False
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
                if self._text_sink.put(text, now):
                    self.due_at = now + self.pause_s
                    return True
            except Exception as exc:
                return self._failed(exc)
        return self._take_delta(output, now)

    def _take_delta(self, output: RequestOutput, now: float) -> bool:
        """Send what ``output`` adds to the choice. The task must go on if the channel is not free,
        or if the answer ends with it."""
        reader = self._reader
        assert reader is not None
        delivery = reader.delivery
        if delivery is None or not delivery.is_free:
            reader.wake()
            return False
        try:
            delta = self.choice.advance(output)
            self.update_settled()
            if delta.finish_reason is not None:  # A stop string: what follows needs the task.
                self.last = delta
                reader.wake()
                return False
            if delta.content or not delta.is_empty:
                self.due_at = now + self.pause_s
                delivery.put(delta)
        except Exception as exc:
            return self._failed(exc)
        return True

    def _failed(self, error: Exception) -> bool:
        assert self._reader is not None
        self._reader.fail(error)
        return False

    def _start_timer(self) -> None:
        self.sender = _TIMER
        if self._timed_for != self.due_at:
            self._timed_for = self.due_at
            self._flushes.wait(self, self.due_at)

    def flush_late(self, now: float) -> None:
        """The callback for ``Flushes.wait``: what is unread is due."""
        if now < self.due_at - _CLOCK_ERROR_S:  # Called for a piece that has left another way.
            return
        self._timed_for = -math.inf
        if self.sender is _TIMER:
            self.sender = _CALLBACK
            self.stream.offer_again(max(now, self.due_at))

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
