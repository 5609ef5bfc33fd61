"""The state of one constrained output, whichever backend follows it, and masks for many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from grammar.backends.base import BackendMatcher
from grammar.errors import DeadEnd, MatcherFailed
from grammar.vocabulary import Mask, Vocabulary

_MAX_FORCED_BYTES = 256
"""Looked at anew for every step: more would never be used."""


class TokenMatcher(ABC):
    """What follows one output token by token. Not thread-safe: one owner at a time."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Accepted so far, EOS included."""

    @property
    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether EOS was accepted: nothing may follow."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Advances by one token. False, and no change, for one that is forbidden here; also when
        the backend hit a limit, and then ``fill_mask`` raises."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undoes the last ``num_tokens`` accepted tokens, EOS among them."""

    @abstractmethod
    def fill_mask(self, row: Mask) -> None:
        """Overwrites ``row``, int32 of shape ``[vocabulary.mask_words]`` and contiguous, with the
        tokens allowed next: bit set = allowed, nothing after the end.

        Raises ``MatcherFailed`` when the backend hits a limit, ``DeadEnd`` when no token fits.
        """

    @abstractmethod
    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as far as they are certain; empty where there is a
        choice. Every one is legal after those before it, but another cut of the same text into
        tokens may be as legal: offer them as drafts, do not append them."""

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

    def fill_draft_masks(self, draft_ids: Sequence[int], rows: Mask) -> int:
        """Masks for a window of speculative decoding: ``rows[i]`` holds the tokens allowed after
        the first ``i`` drafts. Returns the number ``n`` of drafts before the first illegal one;
        ``rows[: n + 1]`` are overwritten, the last with zeros if the ``n``-th draft is EOS. The
        state does not change.

        ``rows``: int32 ``[len(draft_ids) + 1, vocabulary.mask_words]``. Raises ``MatcherFailed``.
        """
        assert len(rows) == len(draft_ids) + 1
        before = self.num_tokens
        try:
            self.fill_mask(rows[0])
            for index, token_id in enumerate(draft_ids):
                if not self.accept(token_id):
                    return index
                self.fill_mask(rows[index + 1])
            return len(draft_ids)
        finally:
            self.rollback(self.num_tokens - before)


class Matcher(TokenMatcher):
    """Follows a grammar.

    It owns what the backends disagree on: EOS is allowed exactly where the grammar may end, ends
    the output once accepted, and can be rolled back; padding, special ids and ids without bytes
    are never allowed.
    """

    def __init__(
        self, backend: BackendMatcher, vocabulary: Vocabulary, allowed: Mask | None = None
    ) -> None:
        """``allowed``: the tokens a grammar may ask for; default: those that stand for bytes."""
        self._backend = backend
        self._vocabulary = vocabulary
        self._allowed = vocabulary.text_mask if allowed is None else allowed
        self._terminated = False
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def is_terminated(self) -> bool:
        return self._terminated

    def accept(self, token_id: int) -> bool:
        if self._terminated:
            return False
        if token_id in self._vocabulary.eos_token_ids:
            accepted = self._terminated = self._backend.is_accepting()
        elif not self._is_allowed(token_id):
            accepted = False
        else:
            accepted = self._backend.accept(token_id)
        self._num_tokens += accepted
        return accepted

    def _is_allowed(self, token_id: int) -> bool:
        vocabulary = self._vocabulary
        return 0 <= token_id < vocabulary.size and vocabulary.allows(self._allowed, token_id)

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= self.num_tokens
        if num_tokens == 0:
            return
        self._num_tokens -= num_tokens
        if self._terminated:
            self._terminated = False
            num_tokens -= 1
        if num_tokens:
            self._backend.rollback(num_tokens)

    def fill_mask(self, row: Mask) -> None:
        vocabulary = self._vocabulary
        assert row.shape == (vocabulary.mask_words,)
        assert row.dtype == np.int32
        assert row.flags.c_contiguous
        if self._terminated:
            row.fill(0)
            return
        self._backend.fill(row)
        row &= self._allowed
        if self._backend.is_accepting():
            row |= vocabulary.eos_mask
        elif not row.any():
            raise DeadEnd("no token of the vocabulary can continue the output")

    def forced_tokens(self) -> list[int]:
        if self._terminated:
            return []
        forced = self._backend.forced_bytes()[:_MAX_FORCED_BYTES]
        return self.legal_prefix(self._vocabulary.tokenize(forced))


class MaskJob(NamedTuple):
    """The masks of one output at one step."""

    matcher: TokenMatcher
    draft_ids: Sequence[int]
    """Legal ones, see ``TokenMatcher.fill_draft_masks``."""
    rows: Mask
    """int32 ``[len(draft_ids) + 1, vocabulary.mask_words]``, contiguous."""


class MaskFiller:
    """Fills the masks of many outputs, on ``num_threads`` threads: backends release the GIL.

    More threads do not make the usual batch faster, whose rows take ten microseconds each, half of
    them in Python. They keep a few slow rows, of a millisecond and more, from adding up.
    """

    _MIN_JOBS_PER_THREAD = 8

    def __init__(self, num_threads: int = 1) -> None:
        self.num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar-mask")

    def fill(self, jobs: Sequence[MaskJob]) -> dict[int, MatcherFailed]:
        """Overwrites the rows of all jobs, whose matchers are all different objects.

        Returns the failures by index; such rows allow everything, as what is sampled from them is
        to be thrown away.
        """
        num_parts = min(self.num_threads, max(1, len(jobs) // self._MIN_JOBS_PER_THREAD))
        if num_parts == 1:
            return _fill_part(jobs, range(len(jobs)))
        # Striped, because neighbours often are alike and take alike.
        parts = [range(start, len(jobs), num_parts) for start in range(num_parts)]
        failures: dict[int, MatcherFailed] = {}
        for found in self._threads.map(lambda part: _fill_part(jobs, part), parts):
            failures |= found
        return failures

    def close(self) -> None:
        self._threads.shutdown()


def _fill_part(jobs: Sequence[MaskJob], part: range) -> dict[int, MatcherFailed]:
    failures = {}
    for index in part:
        matcher, draft_ids, rows = jobs[index]
        try:
            num_legal = matcher.fill_draft_masks(draft_ids, rows)
        except MatcherFailed as error:
            rows.fill(-1)
            failures[index] = error
        else:
            assert num_legal == len(draft_ids), "a draft that the grammar forbids was planned"
    return failures
