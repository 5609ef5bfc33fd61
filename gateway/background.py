"""Work that goes on beside the requests for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

logger = logging.getLogger(__name__)


class Background:
    """Owns one task for each piece of work. One that ends by itself is logged and started again."""

    def __init__(
        self, work: Mapping[str, Callable[[], Awaitable[None]]], *, restart_s: float = 1.0
    ) -> None:
        """work: keyed by the name that its task and log lines have."""
        self._work = work
        self._restart_s = restart_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        assert not self._tasks, "started twice"
        self._tasks = [
            asyncio.create_task(self._keep_running(name, run), name=name)
            for name, run in self._work.items()
        ]

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have cleaned up. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for name, outcome in zip(
            self._work, await asyncio.gather(*tasks, return_exceptions=True), strict=False
        ):
            if isinstance(outcome, Exception):
                logger.error("%s failed while it stopped", name, exc_info=outcome)

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
                logger.error("%s ended; starting it again", name)
            except Exception:  # the edge of a task
                logger.exception("%s died; starting it again", name)
            await asyncio.sleep(self._restart_s)
