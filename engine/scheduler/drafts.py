"""Drafts in a step: how many fit in, and the accounting once they are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.request import RequestState

if TYPE_CHECKING:
    from engine.cache.manager import CacheManager
    from engine.cache.table import BlockTable
    from engine.request import Request
    from engine.scheduler.plan import Chunk
    from engine.scheduler.tenants import Totals


class Lookahead:
    """Extra slots behind the tokens of a step, for the keys of the tokens that a draft network
    drafts. They are optional: without them the network drafts fewer tokens, or outside of its CUDA
    graphs. No request waits or is preempted for them."""

    def __init__(self, cache: CacheManager, num_tokens: int, max_num_tokens: int) -> None:
        """num_tokens: extra slots for each request. max_num_tokens: the longest that any request
        can get. A request with a lower limit gets the slots as well, because a network drafts
        as many tokens for each request of a batch."""
        self.num_tokens = num_tokens
        """0 while nobody drafts, see ``expect_drafts``."""
        self._most = num_tokens
        self._cache = cache
        self._max_num_tokens = max_num_tokens

    def expect_drafts(self, *, expected: bool) -> None:
        """Whether the network may draft behind the steps that are planned from now on. If not, they
        are planned as without one; the first step for which it may makes up for that."""
        self.num_tokens = self._most if expected else 0

    def num_logical_blocks(self, table: BlockTable, end: int, num_missing: int = 0) -> int:
        """Logical blocks that hold the tokens up to ``end`` and, if enough blocks are free, the
        extra slots behind them. num_missing: free blocks that are needed for other requests."""
        cache = self._cache
        needed = cache.num_blocks_for(end)
        end = max(end, min(end + self.num_tokens, self._max_num_tokens))
        wanted = cache.num_blocks_for(end)
        num_fresh = cache.num_blocks_to_grow(table, wanted)
        return wanted if num_fresh + num_missing <= cache.num_free_blocks else needed

    def extend(self, table: BlockTable, end: int, num_missing: int = 0) -> None:
        """Give a request that was just admitted, with slots for the tokens up to ``end``, the extra
        slots behind them. num_missing: free blocks that are needed for other requests."""
        if end + self.num_tokens <= table.num_logical_blocks * self._cache.block_size:
            return
        num_logical_blocks = self.num_logical_blocks(table, end, num_missing)
        if num_logical_blocks > table.num_logical_blocks >= self._cache.num_blocks_for(end):
            self._cache.grow(table, num_logical_blocks)


def fitting_drafts(
    request: Request, cache: CacheManager, limit: int, num_missing: int
) -> tuple[int, ...]:
    """The leading drafts for which ``limit`` and the free blocks suffice; no request is preempted
    for drafts. limit: what is left of the step's tokens. num_missing: free blocks that are needed
    for other requests."""
    drafts, table = request.draft_token_ids, request.block_table
    num_drafts, num_known = len(drafts), len(request.token_ids)
    limit = min(limit, request.draft_room)
    if num_known + num_drafts > table.num_logical_blocks * cache.block_size:
        num_free = max(0, cache.num_free_blocks - num_missing)
        limit = min(
            limit, cache.num_logical_blocks_within(table, num_free) * cache.block_size - num_known
        )
    return tuple(drafts if num_drafts <= limit else drafts[: max(0, limit)])


def judge_drafts(
    request: Request, chunk: Chunk, num_sampled: int, num_taken: int, tenant: Totals
) -> tuple[int, int]:
    """Take back what was computed for wrong drafts; returns (drafts rejected, drafts accepted).

    Right drafts after a stop are not part of the output, and do not count as accepted.
    """
    num_drafts = len(chunk.draft_token_ids)
    num_rejected = num_drafts + 1 - num_sampled
    num_accepted = min(num_drafts - num_rejected, num_taken)
    request.num_drafts_in_flight = 0
    if request.state is RequestState.RUNNING:
        request.num_computed_tokens -= num_rejected
    request.num_draft_tokens += num_drafts
    request.num_accepted_tokens += num_accepted
    tenant.drafts.observe(num_drafts, num_accepted)
    return num_rejected, num_accepted
