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
        """What ``work`` on ``size`` characters, or as many tokens, returns or raises."""
        loop = asyncio.get_running_loop()
        if size < LONG_CHARS:
            return await loop.run_in_executor(self._short, work)
        return await self._lanes.run(tenant, lambda: loop.run_in_executor(self._long, work))

    def close(self) -> None:
        self._short.shutdown(wait=False)
        self._long.shutdown(wait=False)


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
