"""The KV cache as the scheduler sees it: room for tokens, and prefixes that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.cache.block_pool import BlockPool
from engine.cache.prefix import extend_chain, root_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class BlockTable:
    """The cache side of one request: the blocks it holds, in order, and their keys."""

    __slots__ = ("block_ids", "keys", "num_published", "region")

    def __init__(self, region: Mapping[str, str]) -> None:
        self.region = region
        self.block_ids: list[int] = []
        self.keys: list[bytes] = []
        """Keys of the leading full blocks, as far as they were computed. They outlive a release:
        a preempted request looks its own prefix up again."""
        self.num_published = 0
        """Leading blocks that need no publishing any more."""


class CacheManager:
    """Allocates blocks to requests and shares the blocks of equal prefixes within a region."""

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.enable_prefix_caching = enable_prefix_caching

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def lookup(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        """Blocks that hold the longest cached prefix of ``token_ids``; not acquired yet.

        Never all of the tokens: the last one is always computed, because its logits are needed.
        """
        if not self.enable_prefix_caching:
            return []
        max_blocks = (len(token_ids) - 1) // self.block_size
        self._extend_keys(table, token_ids, max_blocks)
        hits: list[int] = []
        for key in table.keys[:max_blocks]:
            block_id = self.pool.find(key)
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def num_blocks_lacking(self, hits: Sequence[int], num_tokens: int) -> int:
        """Free blocks that are missing to admit ``num_tokens`` with these hits; <= 0 if none."""
        num_fresh = self.num_blocks_for(num_tokens) - len(hits)
        # A hit that nobody holds is still on the free list.
        num_idle = sum(self.pool.ref_count(block_id) == 0 for block_id in hits)
        return num_fresh + num_idle - self.pool.num_free

    def admit(self, table: BlockTable, hits: list[int], num_tokens: int) -> None:
        """Fill an empty table: ``hits`` first, then fresh blocks up to ``num_tokens``."""
        assert not table.block_ids, "the table is admitted twice"
        for block_id in hits:
            self.pool.acquire(block_id)
        table.block_ids = hits + self.pool.allocate(self.num_blocks_for(num_tokens) - len(hits))
        table.num_published = len(hits)

    def num_fresh_blocks(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks the table lacks to hold ``num_tokens``; zero or less when it has them all."""
        return -(-num_tokens // self.block_size) - len(table.block_ids)

    def grow(self, table: BlockTable, num_blocks: int) -> list[int]:
        """Append fresh blocks to the table. The caller checked ``num_free_blocks``."""
        block_ids = self.pool.allocate(num_blocks)
        table.block_ids += block_ids
        return block_ids

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_written: int) -> None:
        """Make the full blocks among the first ``num_written`` slots findable.

        Call it only once the step that wrote them is over: a key promises finished content.
        """
        if not self.enable_prefix_caching:
            return
        num_full = num_written // self.block_size
        if num_full <= table.num_published:
            return
        self._extend_keys(table, token_ids, num_full)
        for i in range(table.num_published, num_full):
            self.pool.publish(table.block_ids[i], table.keys[i])
        table.num_published = num_full

    def release(self, table: BlockTable) -> None:
        """Give all blocks back; the last ones are evicted first, as a prefix serves more often."""
        self.pool.release(reversed(table.block_ids))
        table.block_ids = []
        table.num_published = 0

    def num_sole_blocks(self, table: BlockTable) -> int:
        """Blocks that a release of this table would free."""
        return sum(self.pool.ref_count(block_id) == 1 for block_id in table.block_ids)

    def _extend_keys(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> None:
        known = len(table.keys)
        if num_blocks > known:
            parent = table.keys[-1] if known else root_key(self.block_size, table.region)
            start = known * self.block_size
            table.keys += extend_chain(
                parent, token_ids, start, self.block_size, num_blocks - known
            )
