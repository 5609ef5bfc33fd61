"""How many tokens a step computes: few enough for even streams, many enough for prompts.

Every prompt token in a step delays the requests that generate in it. On a GPU the first few hundred
tokens are nearly free, because the step is bound by reading the weights; each token beyond them
costs the same in small steps as in large ones. So prompts lose little if they are cut into chunks,
and streams gain much."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.request import Request

_LEAST_TOKENS = 512
"""About two to three times as many tokens as a GPU computes in the time of reading 16-bit
weights."""
_LEAST_CPU_TOKENS = 64
"""A CPU computes tokens beyond these at nearly the same cost in small steps as in large ones:
prompts of 512 tokens of the bundled model take 3 % more of it than in steps of 2,048. Only answers
of one token to prompts of 20 take half as much again, for what the host does in each step."""
_SHARED_CPU_TOKENS = 16
"""The same where one tenant's prompts are in the steps in which others generate. With the bundled
model they make a step of three tokens 2.2 times as long; 64 tokens would make it six times as long,
for half as many prompts again in a second."""
_PROMPT_SHARE = 5
"""Prompt tokens for each generated token, at least: steps of large batches take longer anyway, and
prompts that arrive as fast as other requests end must not fall behind."""
_NUM_STEPS = 64
"""Waiting prompts should be computed within about this many steps."""
_TILE = 128
"""GEMMs divide the tokens of a step into tiles of this size."""


class StepBudget:
    """The most tokens of a step, from what there is to compute.

    If few requests generate, prompts get what they leave of 512 tokens; if many do, about five
    sixths of the step. They get more if many prompt tokens wait, up to ``max_num_prefill_tokens``,
    so that neither side starves the other. If no request generates, prompts get all of
    ``max_num_batched_tokens``.

    On a CPU 64 tokens take the place of 512, also if no request generates: there, who comes next
    would wait for a full step many times longer than for its own prompt. Where one tenant's prompts
    delay what another one generates, they get what is left of 16 tokens, or half of the step,
    however many of them wait."""

    def __init__(self, config: EngineConfig) -> None:
        self.max_num_tokens = config.step_tokens
        self._max_num_prefill_tokens = config.max_num_prefill_tokens
        self._on_cpu = config.device == "cpu"

    def num_tokens(
        self,
        running: Iterable[Request],
        num_queued_tokens: int,
        queued_tenants: Collection[str] = (),
    ) -> int:
        """The budget of a step. running: the current batch. num_queued_tokens: prompt tokens of the
        requests in the queue; queued_tenants: whose these are, by fair keys."""
        limit = self._max_num_prefill_tokens
        if limit is None:
            return self.max_num_tokens
        num_generating, num_prompts, num_waiting = 0, 0, num_queued_tokens
        delaying, delayed = set(queued_tenants), set[str]()
        for request in running:
            num_left = len(request.token_ids) - request.num_computed_tokens
            if num_left > 1:  # A generating request has one, or none while its token is in flight.
                num_prompts += 1
                num_waiting += num_left
                delaying.add(request.fair_key)
            else:
                num_generating += 1 + len(request.draft_token_ids)
                delayed.add(request.fair_key)
        if num_generating == 0 and not self._on_cpu:
            return self.max_num_tokens
        if self._on_cpu and delaying and delayed and len(delaying | delayed) > 1:
            num_wanted = max(_SHARED_CPU_TOKENS - num_generating, num_generating)
        else:
            num_wanted = max(
                (_LEAST_CPU_TOKENS if self._on_cpu else _LEAST_TOKENS) - num_generating,
                _PROMPT_SHARE * num_generating,
                num_waiting // _NUM_STEPS,
            )
        num_wanted = max(min(num_wanted, limit), num_prompts)  # At least a token for each prompt.
        num_tokens = num_generating + num_wanted
        num_beyond_tile = num_tokens % _TILE
        if num_beyond_tile <= min(num_wanted // 4, num_wanted - num_prompts):
            num_tokens -= num_beyond_tile
        return min(num_tokens, self.max_num_tokens)
