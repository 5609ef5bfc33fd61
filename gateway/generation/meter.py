"""Counts the tokens that a request generates, as they arrive from the engine."""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.generation.grants import Grants
from tenants.progress import Running


class Meter:
    """Counts the tokens of all answers to one request, whether or not a client has read them.

    ``count`` is the streams' ``on_count``. It runs for every token of every stream, so this is one
    small object, and what need not be done for each token is done in ``_attend``.
    """

    __slots__ = (
        "_advance_at",
        "_attend_at",
        "_count_cached",
        "_counts",
        "_grants",
        "_running",
        "num_tokens",
    )

    def __init__(
        self,
        running: Running | None,
        grants: Grants | None,
        count_cached: Callable[[int], tuple[int, bool]],
    ) -> None:
        """``running``: the counts in a memory-mapped file, from which a neighbour settles if this
        process dies; None keeps them here only. ``grants``: None if all tokens are reserved.

        ``count_cached`` takes the number of new tokens. It returns the number of cached prompt
        tokens, and whether that may still change; it is called until it may not.
        """
        self.num_tokens = 0
        self._running = running
        self._counts = memoryview(bytearray(8)).cast("I") if running is None else running.counts
        self._grants = grants
        self._count_cached: Callable[[int], tuple[int, bool]] | None = count_cached
        self._attend_at = 0.0
        """The number of tokens at which ``_attend`` is called."""
        self._advance_at = math.inf if grants is None else 0.0
        """The number of tokens at which ``Grants.advance`` is called, which looks at every
        answer."""
        if grants is not None:
            grants.on_slack = self._on_slack

    def count(self, num_tokens: int) -> None:
        """Count ``num_tokens`` more."""
        self.num_tokens = total = self.num_tokens + num_tokens
        if total >= self._attend_at:
            self._attend(num_tokens)
        self._counts[0] = total

    def _attend(self, num_tokens: int) -> None:
        if self._count_cached is not None:
            self._counts[1], is_open = self._count_cached(num_tokens)
            if not is_open:
                self._count_cached = None
        if self._grants is not None and self.num_tokens >= self._advance_at:
            self._grants.advance()
            self._on_slack()
        self._attend_at = self._advance_at if self._count_cached is None else 0.0

    def _on_slack(self) -> None:
        """The slack of the grants has changed."""
        assert self._grants is not None
        self._advance_at = self.num_tokens + self._grants.slack
        if self._count_cached is None:
            self._attend_at = self._advance_at

    def generated(self) -> int:
        """The tokens so far; the callback for ``Hold.watch``."""
        return self.num_tokens

    def end(self) -> None:
        """Stop counting: the usage is now in the ledger or in its journal."""
        self._count_cached = None  # It refers to what owns this object.
        if self._grants is not None:
            self._grants.on_slack = None
        if self._running is not None:
            self._running.end()
