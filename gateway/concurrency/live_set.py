"""A set of what is going on, which shutting down waits for."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


class LiveSet(set[T]):
    """A set whose end can be waited for. Elements leave it by ``discard`` only."""

    def __init__(self) -> None:
        super().__init__()
        self._emptied = asyncio.Event()

    def discard(self, element: object) -> None:
        super().discard(element)
        if not self:
            self._emptied.set()

    async def wait_empty(self) -> None:
        """Return as soon as the set is empty."""
        while self:
            self._emptied.clear()
            await self._emptied.wait()
