"""Driving a matcher by hand: byte-exact texts and random walks under the mask."""

from __future__ import annotations

import random

import numpy as np

from grammar.matcher import Matcher
from grammar.vocabulary import Vocabulary


def allowed_ids(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, dtype=np.int32)
    matcher.fill_mask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def accepts(matcher: Matcher, vocabulary: Vocabulary, text: str | bytes) -> bool:
    """Whether the whole text is a complete output, token by token and by its masks."""
    data = text.encode() if isinstance(text, str) else text
    for token_id in vocabulary.tokenize(data):
        legal = token_id in allowed_ids(matcher, vocabulary)
        assert matcher.accept(token_id) == legal
        if not legal:
            return False
    eos = min(vocabulary.eos_token_ids)
    legal = eos in allowed_ids(matcher, vocabulary)
    assert matcher.accept(eos) == legal
    return legal


def random_walk(
    matcher: Matcher, vocabulary: Vocabulary, rng: random.Random, max_tokens: int = 400
) -> bytes | None:
    """The text of a random output, or None if it did not end within ``max_tokens``."""
    text = b""
    for _ in range(max_tokens):
        token_id = rng.choice(allowed_ids(matcher, vocabulary))
        assert matcher.accept(token_id)
        if matcher.is_terminated:
            return text
        text += vocabulary.tokens[token_id]
    return None
