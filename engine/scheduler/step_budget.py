"""How many tokens a step computes: as many as prompts need, as few as streams can stand.

Every prompt token in a step delays the requests that generate in it. On a GPU the first few hundred
tokens are nearly free, because the step is bound by reading the weights; each token beyond them
costs the same in small steps as in large ones. So prompts lose little if they are cut into chunks,
and streams gain much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from engine.config import EngineConfig
    from engine.request import Request
    from engine.scheduler.costs import StepTimes
    from engine.scheduler.queue_limits import Queued

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
_SHARED_STEPS = 256
"""So many steps after a tenant last generated, its next request is expected: that one waits for the
step under way, and so do all before its first token."""
_PART = 0.3
"""Of the time to the first token, for what waits already: more comes meanwhile."""
_TILE = 128
"""GEMMs divide the tokens of a step into tiles of this size."""


class StepBudget:
    """The most tokens of a step, from what there is to compute and what steps take.

    A step in which requests generate has 512 tokens, or twice as many as they generate. It has more
    if the prompts that wait would not be computed in time for ``target_ttft_ms``, but no more than
    ``target_gap_ms`` allows. Tenants whose requests generate while none of their prompts wait take
    their part of that time away, so that one tenant's flood of prompts does not make everybody's
    steps long. If no request generates, prompts get all of ``max_num_batched_tokens``.

    On a CPU 64 tokens take the place of 512, also if no request generates: there, who comes next
    would wait for a full step many times longer than for its own prompt. Where one tenant's prompts
    delay what another one generates, or generated a moment ago, they get what is left of 16 tokens,
    or half of the step, however many of them wait."""

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self.max_num_tokens = config.step_tokens
        self._gap_s = None if config.target_gap_ms is None else config.target_gap_ms / 1000
        self._wait_s = _PART * config.target_ttft_ms / 1000
        self._times = times
        self._on_cpu = config.device == "cpu"
        self._num_steps = 0
        self._generated_at: dict[str, int] = {}
        """The step in which each tenant generated last, by fair key, on a CPU; the latest last."""

    def num_tokens(self, running: Iterable[Request], queued: Mapping[str, Queued]) -> int:
        """The budget of a step. running: the current batch. queued: what waits for its first
        admission, by tenant."""
        if self._gap_s is None:
            return self.max_num_tokens
        num_generating, num_prompts, generating, waiting = 0, 0, set[str](), set(queued)
        num_waiting = sum(queue.num_tokens for queue in queued.values())
        for request in running:
            num_left = len(request.token_ids) - request.num_computed_tokens
            if num_left > 1:  # A generating request has one, or none while its token is in flight.
                num_prompts += 1
                num_waiting += num_left
                waiting.add(request.fair_key)
            else:
                num_generating += 1 + len(request.draft_token_ids)
                generating.add(request.fair_key)
        if num_generating == 0 and not self._on_cpu:
            return self.max_num_tokens
        if self._on_cpu:
            generating = self._lately(generating)
        tenants = generating | waiting
        if self._on_cpu and generating and waiting and len(tenants) > 1:
            num_tokens = max(_SHARED_CPU_TOKENS, 2 * num_generating)
        else:
            num_tokens = max(
                _LEAST_CPU_TOKENS if self._on_cpu else _LEAST_TOKENS,
                2 * num_generating,
                self._num_in_time(num_generating, num_waiting, len(waiting) / max(1, len(tenants))),
            )
        num_beyond_tile = num_tokens % _TILE
        num_for_prompts = num_tokens - num_generating
        if num_beyond_tile <= min(num_for_prompts // 4, num_for_prompts - num_prompts):
            num_tokens -= num_beyond_tile
        # At least a token for each prompt.
        return min(max(num_tokens, num_generating + num_prompts), self.max_num_tokens)

    def _lately(self, generating: set[str]) -> set[str]:
        """Those who generate in this step, and those who did in one of the last."""
        self._num_steps += 1
        for fair_key in generating:
            self._generated_at.pop(fair_key, None)
            self._generated_at[fair_key] = self._num_steps
        while self._generated_at:
            eldest = next(iter(self._generated_at))
            if self._generated_at[eldest] > self._num_steps - _SHARED_STEPS:
                break
            del self._generated_at[eldest]
        return set(self._generated_at)

    def _num_in_time(self, num_generating: int, num_waiting: int, share: float) -> int:
        """The smallest steps that compute what waits in this share of the time, as far as gaps
        allow.

        Steps of n tokens, of which all but g are prompts', compute w tokens in w / (n - g) steps of
        a + b n seconds. Solved for n, with the time that there is."""
        fixed_s, s_per_token = self._times.fixed_s, self._times.s_per_token
        if not s_per_token:
            return 0
        assert self._gap_s is not None
        longest = int((self._gap_s - fixed_s) / s_per_token)
        num_wanted = min(num_waiting, share * self._wait_s / s_per_token)
        left_s = self._wait_s - num_wanted * s_per_token
        if left_s <= 0:
            return longest
        num_tokens = (num_wanted * fixed_s + self._wait_s * num_generating) / left_s
        return min(int(num_tokens), longest)
