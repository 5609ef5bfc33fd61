"""Threads in which prompts are made: nobody knows how long a chat template takes, and a tokenizer
takes seconds for megabytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from engine.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded
from gateway.lanes import Lanes

LONG_CHARS = 32_768
"""From here on a text is long: tens of milliseconds of tokenizer."""
NUM_THREADS = 2
"""For short texts, and as many for long ones."""

T = TypeVar("T")


class PromptThreads:
    """Short texts never wait for long ones, and a tenant's long ones wait for each other before
    another tenant's wait for two of them."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prompt")
        self._long = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="long-prompt")
        self._lanes = Lanes()

    async def run(self, work: Callable[[], T], *, tenant: UUID, size: int) -> T:
        """What ``work`` on ``size`` characters, or as many tokens, returns or raises.

        A long one's turn lasts until the thread is free, even if nobody waits any more: else
        whoever leaves and comes back would have all threads.
        """
        loop = asyncio.get_running_loop()
        if size < LONG_CHARS:
            return await loop.run_in_executor(self._short, work)
        is_wanted = True

        async def in_turn() -> T:
            async with self._lanes.turn(tenant):
                if not is_wanted:
                    raise asyncio.CancelledError
                return await loop.run_in_executor(self._long, work)

        job = loop.create_task(in_turn(), name="long prompt")
        job.add_done_callback(_heard)
        try:
            return await asyncio.shield(job)
        finally:
            is_wanted = False

    def close(self) -> None:
        self._short.shutdown(wait=False)
        self._long.shutdown(wait=False)


def _heard(job: asyncio.Task[T]) -> None:
    """What it raises is its caller's, and nobody's if that has left: nothing to log."""
    if not job.cancelled():
        job.exception()


def check_length(text: str, tokenizer: Tokenizer, max_model_len: int, *, param: str) -> None:
    """Raises ``ContextLengthExceeded`` for a text that is too long if all its tokens are the
    longest there is: spares the tokenizer a text that is far too long."""
    if len(text) > max_model_len * tokenizer.max_token_bytes:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your {param} "
            f"resulted in {len(text)} characters, more than so many tokens can hold. Please reduce "
            f"the length of the {param}.",
            param=param,
        )
