"""What the steps so far took: by it tokens are given to steps, and preempted requests swapped or
computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.cache.manager import CacheManager
    from engine.request import Request
    from engine.scheduler.step import Step

# How much an earlier step counts against the one after it: a memory of some 200 steps.
_DECAY = 0.995
# Steps must differ by this many tokens (standard deviation) to tell the price of one from them.
_MIN_DEVIATION = 4.0


class StepTimes:
    """A step of n tokens takes a + b n seconds, fitted by least squares over the last steps. The
    slope b is what a token adds to a step that takes place anyway.

    swap_s_per_block: seconds to copy a block, measured at start-up.
    """

    def __init__(self, swap_s_per_block: float) -> None:
        self._swap_s_per_block = swap_s_per_block
        self._last_s = 0.0
        """When the last step was over."""
        # Decayed sums over the steps of 1, n, n^2, t, n t.
        self._count = self._n = self._nn = self._t = self._nt = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Record that a step of ``num_tokens`` took ``seconds``."""
        self._count = _DECAY * self._count + 1
        self._n = _DECAY * self._n + num_tokens
        self._nn = _DECAY * self._nn + num_tokens * num_tokens
        self._t = _DECAY * self._t + seconds
        self._nt = _DECAY * self._nt + num_tokens * seconds

    def observe_step(self, step: Step, now: float) -> None:
        """Record how long a step took that is over ``now``, if it did nothing but compute tokens:
        it did not swap, or encode pictures."""
        plan = step.plan
        if step.num_tokens and not (plan.swap_outs or plan.swap_ins or plan.encodings):
            self.observe(step.num_tokens, now - max(step.planned_s, self._last_s))
        self._last_s = now

    @property
    def fixed_s(self) -> float:
        """Seconds that a step takes however few tokens it has: a. 0 before the first step."""
        s_per_token = self.s_per_token
        if s_per_token is None:
            return 0.0
        return max(0.0, (self._t - s_per_token * self._n) / self._count)

    @property
    def s_per_token(self) -> float | None:
        """Seconds that a token adds to a step: b. None before the first step.

        While all steps are of about the same size this is the mean, an upper bound.
        """
        if self._n == 0:
            return None
        variance = self._count * self._nn - self._n * self._n
        if variance > (_MIN_DEVIATION * self._count) ** 2:
            slope = (self._count * self._nt - self._n * self._t) / variance
            if slope > 0:
                return slope
        return self._t / self._n

    def num_tokens_within(self, share: float, num_tokens: int) -> float:
        """How many more tokens make a step of ``num_tokens`` longer by this share at most; 0 before
        the first step."""
        s_per_token = self.s_per_token
        if not s_per_token:
            return 0.0
        mean_s, mean_tokens = self._t / self._count, self._n / self._count
        step_s = max(mean_s + s_per_token * (num_tokens - mean_tokens), s_per_token * num_tokens)
        return share * step_s / s_per_token

    def is_worth_swapping(self, request: Request, cache: CacheManager) -> bool:
        """Whether what a request has computed should be swapped out rather than dropped."""
        num_tokens, table = request.num_settled_tokens, request.block_table
        num_blocks = cache.num_blocks_to_swap(table, num_tokens)
        if not 0 < num_blocks <= cache.swap.num_free:  # none: a window of one token
            return False
        # Blocks that other requests hold as well stay cached as long as those run.
        return self.prefers_swap(min(num_tokens, cache.num_sole_tokens(table)), num_blocks)

    def prefers_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether copying ``num_blocks`` out and back in is quicker than computing
        ``num_tokens``."""
        s_per_token = self.s_per_token
        if s_per_token is None:
            return False
        return 2 * num_blocks * self._swap_s_per_block < num_tokens * s_per_token
