"""Vocabularies for tests, made here so that no test needs a model."""

from __future__ import annotations

from grammar.vocabulary import Vocabulary

MERGES = [
    b'{"',
    b'":',
    b'": ',
    b'",',
    b'"}',
    b"true",
    b"false",
    b"null",
    b"  ",
    b"\n",
    b"12",
    b"ab",
]
MERGES += ["é".encode(), "日".encode(), "日".encode()[:2], b"</tool", b"},{", b'"]']
# A special token whose text is legal inside a JSON string, and one that is a whole JSON value.
SPECIALS = [b"<|end|>", b"<|im_start|>", b"true", b""]
SIZE = 320


def byte_vocabulary(size: int = SIZE) -> Vocabulary:
    """256 bytes, then merges, then the specials (the first is EOS), then padding up to ``size``."""
    tokens = [bytes([i]) for i in range(256)] + MERGES
    specials = range(len(tokens), len(tokens) + len(SPECIALS))
    return Vocabulary(tokens + SPECIALS, [specials[0]], specials, size)
