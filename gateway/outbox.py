"""The unsent frames of one WebSocket, bounded for each turn."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable

from gateway.outlet import Outlet


class Outbox:
    """Frames leave in order. A turn with ``max_bytes`` unsent waits; the others go on.

    The bound is per turn, so that one turn of long answers cannot take the room of the others, and
    a reader that is slow costs at most ``max_bytes`` for each of its turns: while a turn waits,
    the engine client merges what is generated meanwhile.
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
        """Nothing waits to be sent."""
        return not self._unsent and self._outlet.is_free

    def put_now(self, frame: bytes) -> None:
        """Send a frame at once, in no task; only while it ``is_free``."""
        assert not self._unsent
        self._outlet.put(frame)

    def offer(self, frame: bytes, now: float) -> bool:
        """``put_now``, or False while it is not free. ``now``: the event loop's time."""
        return not self._unsent and self._outlet.offer(frame, now)

    async def put(self, turn: str | None, frame: bytes) -> None:
        """Queue a frame; ``turn`` None is for frames that belong to no turn."""
        while self._unsent.get(turn, 0) >= self._max_bytes:
            self._drained.clear()
            await self._drained.wait()
        self._queue(turn, frame)

    def put_all_now(self, turn: str | None, frames: Iterable[bytes]) -> None:
        """Send a few at once, as far as the reader takes them; the rest is queued."""
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
        """Send for ever. Raises what sending raises."""
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
        """Wait until all is sent."""
        while self._unsent:
            self._drained.clear()
            await self._drained.wait()
        await self._outlet.wait()
