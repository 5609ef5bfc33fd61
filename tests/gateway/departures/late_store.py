"""A store that takes its time, as a database does: before it acts, and after."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.memory_store.store import MemoryStore


def late_store(luck: random.Random, max_wait_s: float) -> MemoryStore:
    """Whoever is cancelled meanwhile does not know whether it acted."""
    store = MemoryStore()
    if max_wait_s:
        for owner in (store, store.shared):
            for name, method in inspect.getmembers(owner, inspect.iscoroutinefunction):
                setattr(owner, name, _late(method, luck, max_wait_s / 2))
    return store


def _late(
    method: Callable[..., Awaitable[Any]], luck: random.Random, max_wait_s: float
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(luck.random() * max_wait_s)
        result = await method(*args, **kwargs)
        await asyncio.sleep(luck.random() * max_wait_s)
        return result

    return call
