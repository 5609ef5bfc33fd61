"""Threads for rendering and tokenizing prompts, which may take too long for the event loop: there
is no bound on a chat template's time, and megabytes of text take a tokenizer seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from engine.garbage import return_freed
from engine.text.tokenizer import Tokenizer
from gateway.concurrency.fair_threads import FairThreads
from gateway.errors import ContextLengthExceeded
from tenants.lanes import Lanes

LONG_CHARS = 32_768
"""A text of this length or more is long: tokenizing it takes tens of milliseconds."""
HUGE_CHARS = 250_000
"""For a text of this length, a tokenizer takes 25 to 100 MB."""
NUM_THREADS = 2
"""The number of threads for short texts, and also of those for long ones."""

T = TypeVar("T")


class PromptThreads:
    """Two thread pools: short texts never wait for long ones. Each tenant has one long text worked
    on at a time, so that it cannot occupy all threads; short ones are worked on for all tenants in
    turn."""

    def __init__(self) -> None:
        self._short = FairThreads(NUM_THREADS, "prompt")
        self._long = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="long-prompt")
        self._lanes = Lanes()

    async def run(self, work: Callable[[], T], *, tenant: UUID, size: int) -> T:
        """Run ``work`` in a thread; returns or raises what it does. ``size``: the number of
        characters or tokens that it works on."""
        if size < LONG_CHARS:
            return await asyncio.wrap_future(self._short.submit(tenant, work))

        def long_work() -> T:
            try:
                return work()
            finally:
                if size >= HUGE_CHARS:
                    return_freed()

        return await self._lanes.run(tenant, lambda: self._long.submit(long_work))

    def close(self) -> None:
        self._short.close()
        self._long.shutdown(wait=False)


def check_length(text: str, tokenizer: Tokenizer, max_model_len: int, *, param: str) -> None:
    """Raise ``ContextLengthExceeded`` for a text that would be too long even if all its tokens were
    the longest of the vocabulary. So a text that is far too long is not tokenized."""
    if len(text) > max_model_len * tokenizer.max_token_bytes:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your {param} "
            f"resulted in {len(text)} characters, more than so many tokens can hold. Please reduce "
            f"the length of the {param}.",
            param=param,
        )
