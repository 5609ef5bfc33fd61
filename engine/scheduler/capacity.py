"""Whether the cache has enough blocks for one more request, now and until the others end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine.scheduler.forecast import GrowthForecast

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from engine.cache.manager import CacheManager
    from engine.cache.table import PrefixHit
    from engine.config import EngineConfig
    from engine.request import Request
    from engine.scheduler.pictures import Pictures


class Fit(msgspec.Struct, frozen=True, gc=False):
    """What admitting a request would take."""

    hit: PrefixHit
    num_tokens: int
    """Tokens of its first chunk; 0 if the step has too few left for a prompt that needs all at
    once, or no room to encode its next picture."""
    num_slots: int
    """Slots to reserve at admission."""
    num_lacking: int
    """Free blocks that are missing; 0 or less if there are enough."""
    num_due: int = 0
    """Free blocks that it leaves to others."""

    @property
    def fits(self) -> bool:
        return self.num_lacking <= 0 < self.num_tokens


class Capacity:
    """Compares what a waiting request needs with the free blocks and with the forecast."""

    def __init__(self, config: EngineConfig, cache: CacheManager, pictures: Pictures) -> None:
        self._cache = cache
        self._pictures = pictures
        self._chunk_limit = config.chunk_tokens
        self._reserve_full_isl = config.scheduler_reserve_full_isl
        self._num_watermark_blocks = int(config.watermark * cache.pool.num_blocks)
        self._forecast: GrowthForecast | None = None
        if config.forecast_admission:
            self._forecast = GrowthForecast(config.block_size, cache.windows)
        self._running: Collection[Request] = ()
        self._forecast_begun = False
        self._refused: Request | None = None
        self._num_lacking = self._num_free = self._num_left_behind = 0

    def begin_step(self, running: Collection[Request]) -> None:
        """Begin a step. running: the current batch, to which only ``admit`` may add until the next
        step."""
        self._running = running
        self._forecast_begun = False

    def may_run_short(self, order: Sequence[Request], step_tokens: int, num_lookahead: int) -> bool:
        """Whether the next chunks of these requests, with ``num_lookahead`` extra slots each, could
        take more blocks than are free. Only then does their order matter, and only then are they
        ranked. step_tokens: of a step, at most."""
        num_free, block_size = self._cache.num_free_blocks, self._cache.block_size
        num_tokens = step_tokens + len(order) * num_lookahead
        if num_free >= (len(order) + num_tokens // block_size) * len(self._cache.windows):
            return False
        num_needed = 0
        for request in order:
            end = len(request.token_ids) + request.num_pending
            end = min(end, request.num_computed_tokens + self._chunk_limit) + num_lookahead
            num_logical_blocks = -(-end // block_size)
            if num_logical_blocks > request.block_table.num_logical_blocks:
                num_needed += self._cache.num_blocks_to_grow(
                    request.block_table, num_logical_blocks
                )
        return num_needed > num_free

    def still_lacking(self, request: Request) -> int:
        """The blocks that ``request`` still lacks, if it was the last one refused and nothing was
        released since, so that it need not be measured again; else 0."""
        if request is not self._refused or self._num_left_behind != self._cache.num_left_behind:
            return 0
        return self._num_lacking + self._num_free - self._cache.num_free_blocks

    def num_blocks_due(self, request: Request) -> int:
        """Blocks for the next chunks of those running requests that may not give way to ``request``
        yet: without them, they would have to."""
        num_due = 0
        for other in self._running:
            if other.priority <= request.priority and not other.may_give_way:
                end = min(other.num_planned_tokens, other.num_computed_tokens + self._chunk_limit)
                num_blocks = self._cache.num_blocks_for(end)
                num_due += self._cache.num_blocks_to_grow(other.block_table, num_blocks)
        return num_due

    def fit(
        self,
        request: Request,
        hit: PrefixHit,
        budget: int,
        *,
        at_once: bool = False,
        num_due: int = 0,
    ) -> Fit:
        """Measure a waiting request. budget: tokens that are left in the step. at_once: only what
        is held now may keep it waiting, and not what the running requests may need later. num_due:
        free blocks that it has to leave to others."""
        fit = self._measure(request, hit, budget, at_once, num_due)
        if fit.num_lacking > 0 and hit.num_copied > 0:
            # To copy a partly filled block, its source must be held for a step. Try without that.
            fit = self._measure(request, hit.without_copy(), budget, at_once, num_due)
        if fit.num_lacking > 0 and not at_once:
            self._refused, self._num_lacking = request, fit.num_lacking - num_due
            self._num_free = self._cache.num_free_blocks
            self._num_left_behind = self._cache.num_left_behind
        return fit

    def admit(self) -> None:
        """The request measured last was admitted."""
        if self._forecast is not None and self._forecast_begun:
            self._forecast.admit()

    def release(self) -> None:
        """Note that blocks were given back."""
        self._refused = None

    def observe(self, request: Request) -> None:
        """Note that a request ended by itself."""
        if self._forecast is not None:
            self._forecast.observe(request.num_generated_tokens)

    def _measure(
        self, request: Request, hit: PrefixHit, budget: int, at_once: bool, num_due: int
    ) -> Fit:
        num_tokens = min(request.num_tokens - hit.num_tokens, self._chunk_limit, budget)
        num_tokens = request.chunk_limit(hit.num_tokens, num_tokens)
        num_tokens = self._pictures.limit(request, hit.num_tokens, num_tokens)
        # Reserve the whole prompt at once: otherwise several long prompts would be admitted for
        # their first chunks, and then preempt each other.
        num_slots = request.num_tokens if self._reserve_full_isl else hit.num_tokens + num_tokens
        num_lacking = self._cache.num_blocks_lacking(hit, num_slots) + num_due
        if self._running and not at_once:
            num_lacking += self._num_watermark_blocks
            if num_lacking <= 0:
                num_lacking += self._peak_blocks(request, hit, num_slots, -num_lacking)
        return Fit(hit, num_tokens, num_slots, num_lacking, num_due)

    def _peak_blocks(
        self, request: Request, hit: PrefixHit, num_slots: int, num_enough: int
    ) -> int:
        if self._forecast is None:
            return 0
        if not self._forecast_begun:
            self._forecast.begin_step(self._running)
            self._forecast_begun = True
        num_held = self._cache.num_slots_reserved(hit, num_slots)
        return self._forecast.peak_blocks(request, num_held, num_enough)
