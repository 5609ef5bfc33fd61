"""The running event loop's time, moved by hand: what takes minutes is tested in none."""

from __future__ import annotations

import asyncio

import pytest


class LoopClock:
    """Timers that are due run within ``go_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def go_on(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(20):  # a timer runs in one turn of the loop, what it wakes in those after
            await asyncio.sleep(0)
