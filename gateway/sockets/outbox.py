"""The unsent frames of one WebSocket, bounded for each turn."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from gateway.generation.events import Event, TextForm, TextSink, as_message, text_sink
from gateway.transport.outlet import Outlet


class Outbox:
    """Sends frames in order. A turn with ``max_bytes`` unsent must wait; the others need not.

    The bound is for each turn, so that a turn with long answers cannot hold up the others. A slow
    reader takes at most ``max_bytes`` of memory for each of its turns: while a turn waits, the
    engine's client merges its outputs.
    """

    __slots__ = ("_drained", "_filled", "_frames", "_max_bytes", "_outlet", "_unsent")

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        *,
        max_bytes: int,
        write: Callable[[bytes], bool] | None = None,
    ) -> None:
        """``send`` and ``write``: as an ``Outlet`` takes them."""
        self._outlet = Outlet(send, write)
        self._max_bytes = max_bytes
        self._frames: deque[tuple[str | None, bytes]] = deque()
        self._unsent: defaultdict[str | None, int] = defaultdict(int)
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    @property
    def is_free(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._unsent and self._outlet.is_free

    def offer(self, frame: bytes, now: float) -> bool:
        """Send a frame at once, without a task; False if the outbox is not free. ``now``: the event
        loop's time."""
        return not self._unsent and self._outlet.offer(frame, now)

    async def put(self, turn: str | None, frame: bytes) -> None:
        """Queue a frame once its turn's unsent frames are within the bound. ``turn``: None for a
        frame that belongs to no turn."""
        while self._unsent.get(turn, 0) >= self._max_bytes:
            self._drained.clear()
            await self._drained.wait()
        self._queue(turn, frame)

    def put_all_now(self, turn: str | None, frames: Iterable[bytes]) -> None:
        """Send a few frames at once as long as the client takes them, and queue the rest."""
        for frame in frames:
            if self.is_free:
                self._outlet.put(frame)
            else:
                self._queue(turn, frame)

    def _queue(self, turn: str | None, frame: bytes) -> None:
        self._unsent[turn] += len(frame)
        self._frames.append((turn, frame))
        self._filled.set()

    async def run(self) -> None:
        """Send queued frames forever. Raises what sending raises."""
        try:
            while True:
                if not self._frames:
                    self._filled.clear()
                    await self._filled.wait()
                turn, frame = self._frames.popleft()
                await self._outlet.send(frame)
                self._unsent[turn] -= len(frame)
                if not self._unsent[turn]:
                    del self._unsent[turn]
                self._drained.set()
        finally:
            self._outlet.close()

    async def flush(self) -> None:
        """Wait until all frames are sent."""
        while self._unsent:
            self._drained.clear()
            await self._drained.wait()
        await self._outlet.wait()


class SocketChannel:
    """The ``Channel`` of one turn, or one response, of a WebSocket."""

    __slots__ = ("_outbox", "_turn")

    def __init__(self, outbox: Outbox, turn: str) -> None:
        self._outbox = outbox
        self._turn = turn

    @property
    def is_free(self) -> bool:
        return self._outbox.is_free

    def put(self, events: Sequence[Event]) -> None:
        self._outbox.put_all_now(self._turn, map(as_message, events))

    def text_sink(self, form: TextForm) -> TextSink:
        return text_sink(form, as_message, self._outbox)
