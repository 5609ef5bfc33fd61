"""Rust's reading of a regular expression, through llguidance."""

from __future__ import annotations

import functools
import random

import llguidance
import numpy as np


def rust_matches(expression: str, text: str) -> bool:
    """Through llguidance, whose expressions are Rust's; the whole text, byte by byte."""
    tokenizer = rust_tokenizer()
    lark = (
        f'%llguidance {{"no_forcing": true}}\nstart: /{llguidance.regex_to_lark(expression, "")}/'
    )
    matcher = llguidance.LLMatcher(tokenizer, lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


class Bytes:
    """A tokenizer of bytes, in the shape that llguidance takes."""

    def __init__(self) -> None:
        self.tokens = [*(bytes([i]) for i in range(256)), b""]
        self.eos_token_id = 256
        self.bos_token_id = None
        self.special_token_ids = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@functools.cache
def rust_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def rust_samples(expression: str, rng: random.Random, count: int) -> list[str]:
    """Random matches; those that do not end within 300 bytes are left out."""
    lark = (
        f'%llguidance {{"no_forcing": true}}\nstart: /{llguidance.regex_to_lark(expression, "")}/'
    )
    prototype = llguidance.LLMatcher(rust_tokenizer(), lark, log_level=0)
    samples = (_sample(prototype.deep_copy(), rng) for _ in range(count))
    return [sample for sample in samples if sample is not None]


def _sample(matcher: llguidance.LLMatcher, rng: random.Random) -> str | None:
    text = b""
    while len(text) < 300:
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        # An early end keeps samples short; a dead end cannot be, so one can always go on.
        choice = 256 if 256 in allowed and rng.random() < 0.3 else int(rng.choice(list(allowed)))
        if choice == 256:
            return text.decode()
        assert matcher.consume_token(choice)
        text += bytes([choice])
    return None
