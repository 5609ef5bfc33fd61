"""Free reasoning before a constrained answer."""

from __future__ import annotations

from collections.abc import Sequence

from grammar.backends.base import BackendMatcher
from grammar.matcher import TokenMatcher
from grammar.vocabulary import Mask, Vocabulary


class ReasoningMatcher(TokenMatcher):
    """A ``TokenMatcher`` that allows any tokens until the output contains ``end_ids``, the tokens
    of the tag that closes the reasoning. From the next token on ``matcher`` decides.

    The boundary may lie anywhere in a draft window, and ``rollback`` can undo it. EOS is not
    allowed before it, because the answer would then lack its constrained part.
    """

    def __init__(
        self, matcher: TokenMatcher, vocabulary: Vocabulary, end_ids: Sequence[int]
    ) -> None:
        assert end_ids
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._end = list(end_ids)
        self._reasoning: list[int] = []

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning[-len(self._end) :] != self._end

    @property
    def is_terminated(self) -> bool:
        return self._matcher.is_terminated

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, reasoning included."""
        return len(self._reasoning) + self._matcher.num_tokens

    def accept(self, token_id: int) -> bool:
        if not self.is_reasoning:
            return self._matcher.accept(token_id)
        vocabulary = self._vocabulary
        if not 0 <= token_id < vocabulary.size:
            return False
        if not vocabulary.allows(vocabulary.any_mask, token_id):
            return False
        self._reasoning.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= self.num_tokens
        answered = min(num_tokens, self._matcher.num_tokens)
        self._matcher.rollback(answered)
        del self._reasoning[len(self._reasoning) - (num_tokens - answered) :]

    def fill_mask(self, row: Mask) -> None:
        if self.is_reasoning:
            row[:] = self._vocabulary.any_mask
        else:
            self._matcher.fill_mask(row)

    @property
    def backend(self) -> BackendMatcher | None:
        return None if self.is_reasoning else self._matcher.backend

    def finish_mask(self, row: Mask) -> None:
        self._matcher.finish_mask(row)

    def forced_tokens(self) -> list[int]:
        return [] if self.is_reasoning else self._matcher.forced_tokens()
