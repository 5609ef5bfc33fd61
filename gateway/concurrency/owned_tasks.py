"""Tasks that go on when whoever began them is cancelled, such as settlements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class OwnedTasks:
    """Keeps its tasks until they end, so that the garbage collector cannot take them, and shutting
    down can wait for them. A task that fails is logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task. ``name`` is also that of its line in the log."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    async def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the tasks that run now have ended, at most ``timeout_s``; returns how many
        tasks are left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return len(self._tasks)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
