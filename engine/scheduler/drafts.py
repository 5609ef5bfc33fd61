"""Drafts in a step: how many fit, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.request import RequestState

if TYPE_CHECKING:
    from engine.cache.manager import BlockTable, CacheManager
    from engine.request import Request
    from engine.scheduler.plan import Chunk
    from engine.scheduler.tenants import Totals


class Lookahead:
    """Slots behind those that a step computes, which a draft network writes to. Without them it has
    to draft less, or in a slower way; nobody waits for them or is preempted."""

    def __init__(self, cache: CacheManager, num_tokens: int, max_num_tokens: int) -> None:
        """max_num_tokens: of any request. One that ends before has them all the same: a network
        drafts for a whole batch in one way."""
        self.num_tokens = num_tokens
        self._cache = cache
        self._max_num_tokens = max_num_tokens

    def num_places(self, table: BlockTable, end: int, num_missing: int = 0) -> int:
        """Blocks of a table for the tokens up to ``end``, and for drafting behind them if so many
        are free. num_missing: blocks that others need."""
        cache = self._cache
        needed = cache.num_blocks_for(end)
        end = max(end, min(end + self.num_tokens, self._max_num_tokens))
        wanted = cache.num_blocks_for(end)
        num_fresh = cache.num_blocks_to_grow(table, wanted)
        return wanted if num_fresh + num_missing <= cache.num_free_blocks else needed

    def extend(self, table: BlockTable, end: int) -> None:
        """Give them to a request that was just admitted, and has slots for the tokens up to
        ``end``."""
        num_places = self.num_places(table, end)
        if num_places > table.num_places >= self._cache.num_blocks_for(end):
            self._cache.grow(table, num_places)


def fitting_drafts(
    request: Request, cache: CacheManager, limit: int, num_missing: int
) -> tuple[int, ...]:
    """The leading drafts that there is room for; nobody is preempted for drafts."""
    drafts, table = request.draft_token_ids, request.block_table
    num_drafts, num_known = len(drafts), len(request.token_ids)
    limit = min(limit, request.draft_room)
    if num_known + num_drafts > table.num_places * cache.block_size:
        num_free = max(0, cache.num_free_blocks - num_missing)
        limit = min(limit, cache.num_places_within(table, num_free) * cache.block_size - num_known)
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
