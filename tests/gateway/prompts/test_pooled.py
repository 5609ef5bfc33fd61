"""Pairs of texts, which cross-encoders read, become token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from engine.text.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded
from gateway.prompts.pooled import MAX_INPUTS, Input, encode
from gateway.prompts.threads import PromptThreads
from tests.gateway.conftest import model_dir

__all__ = ["model_dir"]


class Counting(Tokenizer):
    """Counts the characters of the pairs that it reads."""

    num_chars = 0

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]:
        Counting.num_chars += sum(len(one) + len(other) for one, other in pairs)
        return super().encode_pairs(pairs)


@pytest.mark.asyncio
async def test_a_query_that_is_too_long_is_not_read_with_each_document(model_dir: Path) -> None:
    """It has the most characters of which so many tokens could be, which most texts are far from:
    a body of a few kilobytes would be tens of millions of tokens."""
    tokenizer, threads = Counting.load(model_dir), PromptThreads()
    query = "a b " * (512 * tokenizer.max_token_bytes // 4 - 1)
    pairs = [Input((query, "x"), f"documents[{i}]") for i in range(MAX_INPUTS)]
    with pytest.raises(ContextLengthExceeded, match=r"documents\[0\] resulted in"):
        await encode(
            pairs,
            tokenizer,
            threads,
            vocab_size=tokenizer.vocab_size,
            tenant=uuid4(),
            max_model_len=512,
        )
    threads.close()
    assert Counting.num_chars < 100 * len(query)
