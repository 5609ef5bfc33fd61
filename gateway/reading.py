"""When the outputs of a generation are read: what a client gains, and in how many pieces.

What comes while a client can take it goes straight on, in the callback that received it. What comes
sooner than ``flush_interval_s`` after the piece before, or while the client is slow, waits: the
engine client merges it. The first piece leaves at once, and so does the last.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
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


class SingleReader:
    """Reads the only choice there is."""

    def __init__(
        self, choice: Choice, advance: Advance, flush_interval_s: float, sink: Sink | None
    ) -> None:
        """``advance`` is told of each output once, in order."""
        self._choice = choice
        self._advance = advance
        self._interval_s = flush_interval_s
        self._sink = sink
        self._time = asyncio.get_running_loop().time
        self._flushed_at = -math.inf
        self._last: Delta | None = None
        self._error: Exception | None = None

    async def deltas(self, heard: RequestOutput | None) -> AsyncGenerator[Delta, None]:
        """All that ``sink`` did not get, among it the last. ``heard``: read already."""
        choice, stream = self._choice, self._choice.stream
        divert = None if self._sink is None else self._divert
        if heard is not None:
            yield self._read(heard)
        while choice.finish_reason is None:
            await stream.wait(divert)
            if self._error is not None:
                raise self._error
            if self._last is not None:
                yield self._last
                return
            wait_s = self._flushed_at + self._interval_s - self._time()
            if wait_s > 0 and stream.finish_reason is None:
                await asyncio.sleep(wait_s)
            yield self._read(await anext(stream))

    def _read(self, output: RequestOutput) -> Delta:
        self._flushed_at = self._time()
        return self._advance(self._choice, output)

    def _divert(self, output: RequestOutput) -> bool:
        """Give it to the sink, unless it has to wait or ends the answer."""
        assert self._sink is not None
        if not self._sink.is_free or self._time() < self._flushed_at + self._interval_s:
            return False
        try:
            delta = self._read(output)
            if delta.finish_reason is not None:  # a stop string: the rest takes a task
                self._last = delta
                return False
            if not delta.is_empty:
                self._sink.put(delta)
        except Exception as exc:  # the edge of a callback that serves other streams too
            self._error = exc
            return False
        return True


async def deltas_of_many(
    choices: Sequence[Choice],
    advance: Advance,
    flush_interval_s: float,
    heard: RequestOutput | None,
) -> AsyncGenerator[Delta, None]:
    """Of all ``choices``, as they come. ``heard``: read already, of the first."""
    time = asyncio.get_running_loop().time
    first, *others = choices
    reading = {_next(first, heard): first} | {_next(choice): choice for choice in others}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            flushed_at = time()
            for task in sorted(done, key=lambda task: reading[task].index):
                choice = reading.pop(task)
                yield advance(choice, task.result())
                if choice.finish_reason is None:
                    reading[_next(choice)] = choice
            if reading and (wait_s := flushed_at + flush_interval_s - time()) > 0:
                await asyncio.sleep(wait_s)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def _next(choice: Choice, heard: RequestOutput | None = None) -> asyncio.Task[RequestOutput]:
    async def read() -> RequestOutput:
        return await anext(choice.stream) if heard is None else heard

    return asyncio.create_task(read(), name=f"read {choice.stream.request_id}")
