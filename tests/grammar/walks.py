"""Driving a matcher by hand: exact texts, and random walks under the mask."""

from __future__ import annotations

import numpy as np

from grammar.matcher import TokenMatcher
from grammar.vocabulary import Vocabulary


def allowed_ids(matcher: TokenMatcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, dtype=np.int32)
    matcher.fill_mask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def accepts(matcher: TokenMatcher, vocabulary: Vocabulary, text: str | bytes) -> bool:
    """Whether the whole text is a complete output; mask and ``accept`` must agree all the way."""
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


class Walker:
    """Samples outputs from random logits under the mask. The logits lean towards what closes a
    string or a container, the more so the longer the output, or most would never end."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng(seed)
        closers = (b'"', b"}", b"]", b",", b'"}', b'"]', b'",')
        self._closers = np.array([token in closers for token in vocabulary.tokens])
        self._blanks = np.array([token.isspace() for token in vocabulary.tokens])
        self._eos = np.isin(np.arange(vocabulary.size), list(vocabulary.eos_token_ids))

    def walk(self, matcher: TokenMatcher, max_tokens: int = 300) -> bytes | None:
        """The text of an output, or None if it did not end."""
        vocabulary, rng = self._vocabulary, self._rng
        row = np.zeros(vocabulary.mask_words, dtype=np.int32)
        logits = rng.normal(0, 2, vocabulary.size) + 3 * self._eos - 2 * self._blanks
        text = b""
        for step in range(max_tokens):
            matcher.fill_mask(row)
            ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            scores = logits[ids] + self._closers[ids] * (2 + step / 20) + rng.gumbel(size=len(ids))
            token_id = int(ids[np.argmax(scores)])
            assert matcher.accept(token_id)
            if matcher.is_terminated:
                return text
            text += vocabulary.tokens[token_id]
        return None
