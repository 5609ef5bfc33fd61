"""The blocks of the KV cache: who references each, which are free, which hold known content."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from engine.cache.ceilings import Ceilings
from engine.cache.eviction import EvictionOrder
from engine.cache.prefix import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from engine.cache.ceilings import Ceiling
    from engine.cache.prefix import Content


class BlockPool:
    """Hands out block ids, in O(1) per block (O(log owners) where owners have a floor).

    A block is *held* (referenced by requests) or free. A free block is *blank* or *cached*: its
    content is published and stays readable until the block is handed out again. Blank blocks go
    first, then the partly filled ones, then the full ones, each kind in the order of release.

    ``floor`` is the number of its cached blocks that an owner keeps while others have more;
    ``ceiling`` is the number above which it gives up its own oldest. Whoever publishes may belong
    to groups with ceilings of their own.
    """

    def __init__(self, num_blocks: int, *, floor: int = 0, ceiling: int | None = None) -> None:
        assert num_blocks > 0, num_blocks
        self.num_blocks = num_blocks
        self.index = PrefixIndex()
        self.num_evictions = 0
        self.on_forget: Callable[[bytes], None] | None = None
        """Is told the key of each block that is given up."""
        self._ceiling = num_blocks if ceiling is None else ceiling
        self._ref_counts = [0] * num_blocks
        self._contents: list[Content | None] = [None] * num_blocks
        # A stack, so that the block used last (still warm in the hardware's caches) goes first.
        self._blank = list(range(num_blocks - 1, -1, -1))
        # An OrderedDict is a linked list in C: O(1) at both ends and in the middle.
        self._partial: OrderedDict[int, None] = OrderedDict()
        self._full = EvictionOrder(floor)
        self._ceilings = Ceilings()

    @property
    def num_free(self) -> int:
        """Blocks that nobody references, cached ones included."""
        return len(self._blank) + len(self._partial) + len(self._full)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, with one reference each. The caller checked ``num_free``."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} are free"
        blank, block_ids = self._blank, []
        if 0 < count <= len(blank):  # All at once, as long as the cache is not full.
            block_ids = blank[: -count - 1 : -1]
            del blank[-count:]
        else:
            for _ in range(count):
                if not blank:
                    self._evict()
                block_ids.append(blank.pop())
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id: int) -> None:
        """Add a reference to a block that is held or cached."""
        if self._ref_counts[block_id] == 0:
            content = self._contents[block_id]
            assert content is not None, f"block {block_id} is acquired, but blank"
            self._take_off_list(block_id)
            for ceiling in content.ceilings:
                del ceiling.idle[block_id]
        self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference to each block. Of the cached ones, those given first are evicted
        first."""
        for block_id in block_ids:
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} is released twice"
            self._ref_counts[block_id] = count
            if count == 0:
                self._free(block_id)

    def publish(self, block_id: int, content: Content) -> None:
        """Make a held block's content findable. If another block has the same content, that one
        stays the one that is found."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} is published but not held"
        assert self._contents[block_id] is None, f"block {block_id} is published twice"
        if self.index.add(block_id, content):
            self._contents[block_id] = content

    def discard(self, key: bytes) -> None:
        """Give up the block with this content, if there is one that nobody holds."""
        block_id = self.index.find(key)
        if block_id is not None and self._ref_counts[block_id] == 0:
            self._take_off_list(block_id)
            self._forget(block_id)

    def ceilings_of(self, max_blocks: Mapping[str, int]) -> tuple[Ceiling, ...]:
        """The groups with these names, whose bounds are those given from now on. Blocks beyond a
        bound are given up at once."""
        ceilings = self._ceilings.of(max_blocks)
        self._keep_below(ceilings)
        return ceilings

    def _free(self, block_id: int) -> None:
        content = self._contents[block_id]
        if content is None:
            self._blank.append(block_id)
            return
        for ceiling in content.ceilings:
            ceiling.idle[block_id] = None
        if content.partial:
            self._partial[block_id] = None
        else:
            self._full.add(block_id, content.owner)
            if self._full.count(content.owner) > self._ceiling:
                self._forget(self._full.pop_from(content.owner))
        self._keep_below(content.ceilings)

    def _keep_below(self, ceilings: tuple[Ceiling, ...]) -> None:
        for ceiling in ceilings:
            for block_id in ceiling.excess():
                self._take_off_list(block_id)
                self._forget(block_id)

    def _take_off_list(self, block_id: int) -> None:
        if block_id in self._partial:
            del self._partial[block_id]
        else:
            self._full.remove(block_id)

    def _evict(self) -> None:
        """Give up the cached block that is worth least: it becomes blank."""
        if self._partial:
            self._forget(self._partial.popitem(last=False)[0])
        else:
            self._forget(self._full.pop())

    def _forget(self, block_id: int) -> None:
        content = self._contents[block_id]
        assert content is not None
        self.index.remove(block_id, content)
        if self.on_forget is not None:
            self.on_forget(content.key)
        self._contents[block_id] = None
        for ceiling in content.ceilings:
            ceiling.idle.pop(block_id, None)
        self._blank.append(block_id)
        self.num_evictions += 1

    def check_integrity(self) -> None:
        """Every block is exactly one of held, blank and cached. For tests and idle moments."""
        cached = {i for i, content in enumerate(self._contents) if content is not None}
        held = {i for i, count in enumerate(self._ref_counts) if count > 0}
        idle = {i for i in range(self.num_blocks) if i in self._full}
        assert len(idle) == len(self._full)
        free = [*self._blank, *self._partial, *idle]
        assert len(set(free)) == len(free), "a block is on two free lists"
        assert held.isdisjoint(free), "a held block is on a free list"
        assert len(held) + len(free) == self.num_blocks, "a block is lost"
        assert cached.isdisjoint(self._blank), "a blank block has content"
        assert cached.issuperset(idle), "a cached block has no content"
        assert cached.issuperset(self._partial), "a cached block has no content"
        for block_id, content in enumerate(self._contents):
            for ceiling in () if content is None else content.ceilings:
                assert (block_id in ceiling.idle) == (self._ref_counts[block_id] == 0)
                assert len(ceiling.idle) <= ceiling.max_blocks, "a group is above its ceiling"
        self.index.check_integrity(dict(enumerate(self._contents)))
