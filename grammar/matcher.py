"""The state of one constrained output with any backend, and the masks of many outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grammar.backends.base import BackendMatcher, BatchMatcher
from grammar.errors import DeadEnd, MatcherFailed
from grammar.vocabulary import Mask, Vocabulary

_MAX_FORCED_BYTES = 256
"""It is computed anew in every step: more bytes would never be used."""


class TokenMatcher(ABC):
    """The state of one output, advanced token by token. Not thread-safe: one owner at a time."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens accepted so far, EOS included."""

    @property
    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether EOS was accepted: nothing may follow."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Advance by one token. False, with no change, if the token is forbidden here, or if the
        backend has hit a limit; in the second case ``fill_mask`` raises."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens, EOS included."""

    @abstractmethod
    def fill_mask(self, row: Mask) -> None:
        """Overwrite ``row`` with the tokens that are allowed next: a set bit means allowed, and
        after the end no bit is set. row: [vocabulary.mask_words] int32, contiguous.

        Raises ``MatcherFailed`` if the backend hits a limit, ``DeadEnd`` if no token is allowed.
        """

    @property
    @abstractmethod
    def backend(self) -> BackendMatcher | None:
        """The backend's matcher, if ``row`` can be filled by it and completed by ``finish_mask``;
        otherwise None."""

    @abstractmethod
    def finish_mask(self, row: Mask) -> None:
        """Complete ``fill_mask`` after ``backend`` has filled ``row``. Raises ``DeadEnd``."""

    @abstractmethod
    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as far as that is certain; empty if there is a choice.

        Each is legal after those before it. Another tokenization of the same text may be legal as
        well, so they may be proposed as drafts, but not appended.
        """

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
        """Masks for a window of speculative decoding: ``rows[i]`` gets the tokens allowed after the
        first ``i`` drafts. Returns the number ``n`` of drafts before the first illegal one.
        ``rows[: n + 1]`` are overwritten, the last one with zeros if the ``n``-th draft is EOS. The
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
    """A ``TokenMatcher`` that follows a compiled grammar.

    It handles what backends treat differently: EOS is allowed exactly where the grammar may end,
    ends the output when it is accepted, and can be rolled back. Padding, special ids and ids
    without bytes are never allowed.
    """

    def __init__(
        self, backend: BackendMatcher, vocabulary: Vocabulary, allowed: Mask | None = None
    ) -> None:
        """allowed: the tokens that the grammar may use; by default all that stand for bytes."""
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
        self.finish_mask(row)

    @property
    def backend(self) -> BackendMatcher | None:
        return None if self._terminated else self._backend

    def finish_mask(self, row: Mask) -> None:
        vocabulary = self._vocabulary
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
    """The masks to fill for one output in one step."""

    matcher: TokenMatcher
    draft_ids: Sequence[int]
    """Legal drafts, see ``TokenMatcher.fill_draft_masks``."""
    start: int
    """The first of its ``len(draft_ids) + 1`` rows."""


class MaskFiller:
    """Fills the masks of many outputs. With ``num_threads`` above one, backends that can do so use
    their own threads; otherwise masks are filled one by one. Python's threads would wait for each
    other, because half of the time for a usual row is spent in Python."""

    _MIN_BATCH = 4  # for fewer, one by one is as fast

    def __init__(self, num_threads: int = 1) -> None:
        self._num_threads = num_threads

    def fill(self, jobs: Sequence[MaskJob], rows: Mask) -> dict[int, MatcherFailed]:
        """Overwrite the rows of all jobs, whose matchers must be different objects.

        Returns the failures by index. Their rows allow everything; what is sampled from them must
        be dropped. rows: [any, vocabulary.mask_words] int32, contiguous.
        """
        assert rows.flags.c_contiguous
        batches: dict[type[BatchMatcher], list[tuple[int, BatchMatcher]]] = {}
        for index, (matcher, draft_ids, _) in enumerate(jobs):
            backend = None if draft_ids or self._num_threads == 1 else matcher.backend
            if isinstance(backend, BatchMatcher):
                batches.setdefault(type(backend), []).append((index, backend))
        filled: set[int] = set()
        for kind, batch in batches.items():
            if len(batch) >= self._MIN_BATCH:
                places = [(backend, jobs[index].start) for index, backend in batch]
                kind.fill_many(places, rows, self._num_threads)
                filled.update(index for index, _ in batch)
        failures = {}
        for index, job in enumerate(jobs):
            try:
                _fill_one(job, rows, is_filled=index in filled)
            except MatcherFailed as error:
                rows[job.start : job.start + len(job.draft_ids) + 1].fill(-1)
                failures[index] = error
        return failures


def _fill_one(job: MaskJob, rows: Mask, *, is_filled: bool) -> None:
    matcher, draft_ids, start = job
    if is_filled:
        backend = matcher.backend
        assert isinstance(backend, BatchMatcher)
        backend.settle(rows[start])
        matcher.finish_mask(rows[start])
        return
    num_legal = matcher.fill_draft_masks(draft_ids, rows[start : start + len(draft_ids) + 1])
    assert num_legal == len(draft_ids), "a draft that the grammar forbids was planned"
