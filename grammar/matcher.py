"""The state of one constrained output, whichever backend follows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grammar.backends.base import BackendMatcher
from grammar.errors import MatcherFailed
from grammar.vocabulary import Mask, Vocabulary


class Matcher:
    """Follows one output token by token. Not thread-safe: one owner at a time.

    It owns what the backends disagree on: EOS is allowed exactly where the grammar may end, ends
    the output once accepted, and can be rolled back; padding, special ids and ids without bytes
    are never allowed.
    """

    def __init__(self, backend: BackendMatcher, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._terminated = False
        self.num_tokens = 0
        """Accepted so far, EOS included."""

    @property
    def is_terminated(self) -> bool:
        """Whether EOS was accepted: nothing may follow."""
        return self._terminated

    def accept(self, token_id: int) -> bool:
        """Advances by one token. False, and no change, for one the grammar forbids here."""
        if self._terminated:
            return False
        if token_id in self._vocabulary.eos_token_ids:
            accepted = self._terminated = self._backend.is_accepting()
        elif not self._is_text(token_id):
            accepted = False
        else:
            accepted = self._backend.accept(token_id)
        self.num_tokens += accepted
        return accepted

    def _is_text(self, token_id: int) -> bool:
        if not 0 <= token_id < self._vocabulary.size:
            return False
        return bool(self._vocabulary.text_mask[token_id >> 5] >> (token_id & 31) & 1)

    def rollback(self, num_tokens: int) -> None:
        """Undoes the last ``num_tokens`` accepted tokens, EOS among them."""
        assert 0 <= num_tokens <= self.num_tokens
        if num_tokens == 0:
            return
        self.num_tokens -= num_tokens
        if self._terminated:
            self._terminated = False
            num_tokens -= 1
        if num_tokens:
            self._backend.rollback(num_tokens)

    def fill_mask(self, row: Mask) -> None:
        """Overwrites ``row``, int32 of shape ``[vocabulary.mask_words]`` and contiguous, with the
        tokens allowed next: bit set = allowed, nothing after the end.

        Raises ``MatcherFailed`` when the backend hits a limit or no token can follow.
        """
        vocabulary = self._vocabulary
        assert row.shape == (vocabulary.mask_words,)
        assert row.dtype == np.int32
        assert row.flags.c_contiguous
        if self._terminated:
            row.fill(0)
            return
        self._backend.fill(row)
        row &= vocabulary.text_mask
        if self._backend.is_accepting():
            row |= vocabulary.eos_mask
        elif not row.any():
            raise MatcherFailed("no token of the vocabulary can continue the output")

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as far as they are certain; empty where there is a
        choice. Every one is legal after those before it, but another cut of the same text into
        tokens may be as legal: offer them as drafts, do not append them."""
        if self._terminated:
            return []
        return self.legal_prefix(self._vocabulary.tokenize(self._backend.forced_bytes()))

    def legal_prefix(self, token_ids: Sequence[int]) -> list[int]:
        """The longest prefix that could be accepted now; the state does not change."""
        before = self.num_tokens
        legal: list[int] = []
        for token_id in token_ids:
            if not self.accept(token_id):
                break
            legal.append(token_id)
        self.rollback(self.num_tokens - before)
        return legal
