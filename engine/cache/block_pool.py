"""The blocks of the KV cache: who references each, which are free, which hold known content."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockPool:
    """Hands out block ids. Every operation is O(1) per block.

    A block is *held* (referenced by requests) or free. A free block is *blank*, or *cached*: its
    content is published under a key and stays readable until the block is handed out again. Blank
    blocks go first, then the cached block that was released longest ago.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, num_blocks
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._ref_counts = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        # A stack, so that the block used last (still warm in the hardware's caches) goes first.
        self._blank = list(range(num_blocks - 1, -1, -1))
        # Oldest first. An OrderedDict is a linked list in C: O(1) at both ends and in the middle.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks nobody references, those with cached content included."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks whose content is published, held or free."""
        return len(self._by_key)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def find(self, key: bytes) -> int | None:
        """The block published under ``key``. It may be evicted unless acquired at once."""
        return self._by_key.get(key)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, one reference each. The caller checked ``num_free``."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} are free"
        block_ids = [self._blank.pop() for _ in range(min(count, len(self._blank)))]
        while len(block_ids) < count:
            block_ids.append(self._evict())
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id: int) -> None:
        """One more reference on a block that is held or cached."""
        if self._ref_counts[block_id] == 0:
            del self._cached[block_id]
        self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference each. Of cached blocks, the first ones given are evicted first."""
        for block_id in block_ids:
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} is released twice"
            self._ref_counts[block_id] = count
            if count == 0:
                if self._keys[block_id] is None:
                    self._blank.append(block_id)
                else:
                    self._cached[block_id] = None

    def publish(self, block_id: int, key: bytes) -> None:
        """Make a held block's content findable. Another block with the same content stays first."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} is published but not held"
        assert self._keys[block_id] is None, f"block {block_id} is published twice"
        if self._by_key.setdefault(key, block_id) == block_id:
            self._keys[block_id] = key

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        key = self._keys[block_id]
        assert key is not None
        del self._by_key[key]
        self._keys[block_id] = None
        self.num_evictions += 1
        return block_id

    def check_integrity(self) -> None:
        """Every block is exactly one of held, blank and cached. For tests and idle moments."""
        free = [*self._blank, *self._cached]
        assert len(set(free)) == len(free), "a block is on a free list twice"
        held = {i for i, count in enumerate(self._ref_counts) if count > 0}
        assert held.isdisjoint(free), "a held block is on a free list"
        assert len(held) + len(free) == self.num_blocks, "a block is lost"
        assert all(self._keys[i] is None for i in self._blank), "a blank block has a key"
        assert all(self._keys[i] is not None for i in self._cached), "a cached block has no key"
        published = {key: i for i, key in enumerate(self._keys) if key is not None}
        assert published == self._by_key, "keys and blocks disagree"
