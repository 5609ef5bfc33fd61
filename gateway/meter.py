"""What a request generates, counted as it arrives."""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.grants import Grants
from tenants.progress import Running


class Meter:
    """Counts the tokens of all answers to one request: a budget waits for no reader.

    One small object, because it is reached for at every token of every stream. Give ``count`` to
    the streams as their ``on_count``.
    """

    __slots__ = (
        "_advance_at",
        "_attend_at",
        "_counts",
        "_grants",
        "_look",
        "_running",
        "num_tokens",
    )

    def __init__(
        self,
        running: Running | None,
        grants: Grants | None,
        look: Callable[[int], tuple[int, bool]],
    ) -> None:
        """``running``: where it is written down in case this process dies.

        ``look`` is told of new tokens; it says how many of the prompt's were cached, and whether
        that may still change: then it is asked again.
        """
        self.num_tokens = 0
        self._running = running
        self._counts = memoryview(bytearray(8)).cast("I") if running is None else running.counts
        self._grants = grants
        self._look: Callable[[int], tuple[int, bool]] | None = look
        self._attend_at = 0.0
        """So many tokens in all call for more than to be counted."""
        self._advance_at = math.inf if grants is None else 0.0
        """So many call for grants: to deal them looks at every answer."""
        if grants is not None:
            grants.on_slack = self._on_slack

    def count(self, num_tokens: int) -> None:
        """So many more."""
        self.num_tokens = total = self.num_tokens + num_tokens
        if total >= self._attend_at:
            self._attend(num_tokens)
        self._counts[0] = total

    def _attend(self, num_tokens: int) -> None:
        if self._look is not None:
            self._counts[1], is_open = self._look(num_tokens)
            if not is_open:
                self._look = None
        if self._grants is not None and self.num_tokens >= self._advance_at:
            self._grants.advance()
            self._on_slack()
        self._attend_at = self._advance_at if self._look is None else 0.0

    def _on_slack(self) -> None:
        """The grants have just been looked at."""
        assert self._grants is not None
        self._advance_at = self.num_tokens + self._grants.slack
        if self._look is None:
            self._attend_at = self._advance_at

    def generated(self) -> int:
        """Until now; for a ``Hold`` to ask."""
        return self.num_tokens

    def end(self) -> None:
        """The settlement is kept elsewhere; nothing is counted after that."""
        if self._grants is not None:
            self._grants.on_slack = None
        if self._running is not None:
            self._running.end()
