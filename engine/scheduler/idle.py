"""What requests of the idle class get of a step: all, or what hardly lengthens it for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.request import Request
    from engine.scheduler.costs import StepTimes

_SHARE = 0.02
"""By how much they may lengthen a step that others are in."""
_MAX_SAVED = 16.0
"""Tokens that they may save up over steps, where a step has room for less than one."""
_ALONE = 512
"""Most tokens of a step in which nobody else is, so that who comes next does not wait for long."""


class IdleShare:
    """Counts the tokens that requests of the idle class may still have in a step.

    Those that get none keep their rows and blocks until somebody else needs these."""

    def __init__(self, costs: StepTimes) -> None:
        self._costs = costs
        self._saved = 0.0
        self._num_left = 0
        self._is_alone, self._has_idle = True, False
        self._has_prompt = False
        """Whether the step computes a prompt of somebody else."""

    def begin_step(self, running: Sequence[Request], num_waiting: int) -> Sequence[Request]:
        """Begin a step; returns the requests that its budget is made for. num_waiting: requests of
        other classes that wait."""
        others = [request for request in running if not request.is_idle]
        self._has_idle = len(others) < len(running)
        self._is_alone, self._has_prompt = not others and not num_waiting, False
        if self._is_alone:
            self._num_left, self._saved = _ALONE, 0.0
            return running
        share = self._costs.num_tokens_within(_SHARE, len(others) or 1)
        self._saved = min(self._saved + share, max(share, _MAX_SAVED))
        self._num_left = int(self._saved)
        return others

    def divide(self, running: list[Request]) -> tuple[list[Request], int]:
        """The requests in an order in which so many get something in this step; the others, at the
        end, pause in it, and are the first to give way."""
        if self._is_alone or not self._has_idle:
            return running, len(running)
        others = [request for request in running if not request.is_idle]
        idle = [request for request in running if request.is_idle]
        return others + idle, len(others) + min(len(idle), self._num_left)

    def limit(self, request: Request, num_tokens: int) -> int:
        """How many of these a request may have, 0 or more."""
        if not request.is_idle:
            return num_tokens
        is_prompt = len(request.token_ids) - request.num_computed_tokens > 1
        if is_prompt and not self._is_alone and not self._has_prompt:
            return 0  # A step with a prompt takes much longer than one of a recorded graph.
        if self._is_alone and request.is_whole:
            return num_tokens
        return min(num_tokens, self._num_left)

    def spend(self, request: Request, num_tokens: int, num_drafts: int) -> None:
        """Note a chunk of the step, of which the last tokens are drafts."""
        if request.is_idle:
            self._num_left -= num_tokens
            self._saved -= num_tokens
        elif num_tokens - num_drafts > 1:
            self._has_prompt = True
