"""How many tokens a step computes: few enough that streams flow evenly, many enough for prompts.

Requests that generate wait for every prompt token in their step. On a GPU the first few hundred
tokens are nearly free, since reading the weights takes as long; each one after that costs the same
in small steps as in large ones. So prompts lose little by being cut up, and streams gain much.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.request import Request

_LEAST_TOKENS = 512
"""About two to three times what a GPU multiplies while it reads 16-bit weights."""
_PROMPT_SHARE = 5
"""Prompt tokens for each other one, at least: steps of large batches take longer anyway, and
prompts that arrive as fast as other requests end must not fall behind."""
_NUM_STEPS = 64
"""Prompts that wait are to be computed in about as many steps."""
_TILE = 128
"""Matrix products cut the tokens of a step into tiles of so many."""


class StepBudget:
    """The most tokens of each step, by what there is to compute.

    Beside few requests that generate prompts get what is left of 512 tokens, beside many about five
    sixths of a step, and the more the more prompt tokens wait, up to ``max_num_prefill_tokens``:
    neither side can starve the other. Beside none they get all of ``max_num_batched_tokens``.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.max_num_tokens = config.step_tokens
        self._max_num_prefill_tokens = config.max_num_prefill_tokens

    def num_tokens(self, running: Iterable[Request], num_queued_tokens: int) -> int:
        """For a step of these requests and of new ones, which have ``num_queued_tokens``."""
        limit = self._max_num_prefill_tokens
        if limit is None:
            return self.max_num_tokens
        num_generating, num_prompts, num_waiting = 0, 0, num_queued_tokens
        for request in running:
            num_left = len(request.token_ids) - request.num_computed_tokens
            if num_left > 1:  # who generates has one, or none while its tokens are in flight
                num_prompts += 1
                num_waiting += num_left
            else:
                num_generating += 1 + len(request.draft_token_ids)
        if num_generating == 0:
            return self.max_num_tokens
        num_wanted = max(
            _LEAST_TOKENS - num_generating,
            _PROMPT_SHARE * num_generating,
            num_waiting // _NUM_STEPS,
        )
        num_wanted = max(min(num_wanted, limit), num_prompts)  # a token for each of them
        num_tokens = num_generating + num_wanted
        num_beyond_tile = num_tokens % _TILE
        if num_beyond_tile <= min(num_wanted // 4, num_wanted - num_prompts):
            num_tokens -= num_beyond_tile
        return min(num_tokens, self.max_num_tokens)
