"""The vocabulary of a tokenizer, as grammars need it: the bytes of each token id, and the ids that
end a text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.int32]
"""Bit ``i`` (word ``i // 32``, bit ``i % 32``) says whether token ``i`` is allowed."""


class Vocabulary:
    """The tokens of one model.

    ``tokens[i]``: the exact bytes of id ``i``, ``b""`` if it has none. ``size``: the width of the
    logits, which may exceed ``len(tokens)``. Ids of that padding, ids without bytes and
    ``special_ids`` never satisfy a grammar. Tokens beyond ``size``, which some tokenizers have, are
    left out, because the model cannot sample them. ``eos_token_ids`` end the output, and count as
    special. ``encode``: the tokenizer's encoding of plain text, which is used for forced tokens;
    without it they are the greedy longest matches.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos_token_ids: Iterable[int],
        special_ids: Iterable[int],
        size: int,
        *,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.eos_token_ids = frozenset(i for i in eos_token_ids if i < size)
        self.special_ids = frozenset(i for i in special_ids if i < size) | self.eos_token_ids
        self.size = size
        self.encode = encode
        assert all(i >= 0 for i in self.special_ids), "an id is negative"
        self.tokens = (*tokens[:size], *(b"" for _ in range(size - len(tokens))))

    @property
    def mask_words(self) -> int:
        """The int32 words of one mask row."""
        return (self.size + 31) // 32

    @cached_property
    def eos_mask(self) -> Mask:
        """[mask_words] int32: the bits of the EOS ids, and no others."""
        return self.mask(self.eos_token_ids)

    @cached_property
    def any_mask(self) -> Mask:
        """[mask_words] int32: the bits of all tokens except EOS, special ones included."""
        return self.mask(
            i
            for i, token in enumerate(self.tokens)
            if (token or i in self.special_ids) and i not in self.eos_token_ids
        )

    @cached_property
    def solid_mask(self) -> Mask:
        """[mask_words] int32: the bits of tokens that do not consist of blanks."""
        return self.mask(i for i, token in enumerate(self.tokens) if not token.isspace())

    @cached_property
    def text_mask(self) -> Mask:
        """[mask_words] int32: the bits of tokens that stand for bytes."""
        return self.mask(
            i for i, token in enumerate(self.tokens) if token and i not in self.special_ids
        )

    def mask(self, ids: Iterable[int]) -> Mask:
        """[mask_words] int32: the bits of these ids, and no others."""
        bits = np.zeros(self.mask_words * 32, dtype=np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32).view(np.int32)

    @staticmethod
    def allows(mask: Mask, token_id: int) -> bool:
        """Whether a mask has the bit of a token that lies within its width."""
        return bool(mask[token_id >> 5] >> (token_id & 31) & 1)

    def has(self, token_id: int) -> bool:
        """Whether the id is a token: not padding, nor an id without bytes."""
        return 0 <= token_id < self.size and (
            bool(self.tokens[token_id]) or token_id in self.special_ids
        )

    def tokenize(self, text: bytes) -> list[int]:
        """Split ``text`` into tokens, up to where no token matches.

        With ``encode`` if there is one and ``text`` is valid UTF-8; otherwise greedily.
        """
        if self.encode is not None:
            try:
                ids = self.encode(text.decode())
            except UnicodeDecodeError:
                pass
            else:
                return list(itertools.takewhile(lambda i: i < self.size, ids))
        ids = []
        start = 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                token = self._ids.get(text[start:end])
                if token is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                break
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        plain = (i for i, token in enumerate(self.tokens) if token and i not in self.special_ids)
        return {self.tokens[i]: i for i in plain}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)
