"""The KV cache of models whose layers do not all look equally far back.

Every layer group (``engine.cache.groups``) has a block table of its own, over one pool:

    tokens      0         16        32        48        64     next: 70
    all         [ 3 ]     [ 9 ]     [ 4 ]     [ 7 ]     [ 1 ]
    window 30   given back          [ 8 ]     [ 2 ]     [ 5 ]   sees 41 to 70

**Blocks behind a window are released** once the steps that read them are over. Not when the step
that moves the window is planned, because a step in flight may still read them; and drafts that may
be rejected do not move the window (``num_written`` does not count them). Released blocks stay
cached, as always.

**Prefixes.** A block is found by its key and its group. A prefix of n tokens is a hit if every
group has the blocks that queries at position n and later read: all of them without a window, the
last few with one. The longest such prefix is used. So a hit may lack blocks in its middle that no
window needs any more, and a long prefix may be a hit while every shorter one is not.

**Reservations.** At admission a group without a window gets blocks for the whole prompt, a group
with one gets blocks for the tokens of one step: after that, the request reuses what it releases.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from engine.cache.groups import blocks_per_step, max_request_tokens
from engine.cache.manager import NO_BLOCK, BlockTable, CacheManager, GroupTable, PrefixHit
from engine.cache.prefix import Content, token_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.config import EngineConfig


class GroupHit(Struct, frozen=True, gc=False):
    """The part of a prefix that one layer group has."""

    first: int = 0
    """The first block index that attention still reads."""
    block_ids: list[int] = []
    """The blocks from ``first`` on, to be shared."""
    source: int = -1
    """A block to be copied from; see ``PrefixHit``."""


class HybridHit(PrefixHit, frozen=True, gc=False):
    """A ``PrefixHit`` by layer groups."""

    groups: tuple[GroupHit, ...] = ()
    """In place of ``block_ids`` and ``source``."""
    num_full_blocks: int = 0

    @property
    def num_blocks(self) -> int:
        return self.num_full_blocks

    def without_copy(self) -> HybridHit:
        groups = tuple(replace(group, source=-1) for group in self.groups)
        return replace(
            self, num_tokens=self.num_tokens - self.num_copied, num_copied=0, groups=groups
        )


class HybridCacheManager(CacheManager):
    """windows: of the layer groups. window_step: see ``LayerGroups``. chunk_tokens: most tokens of
    one request in a step."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        windows: Sequence[int | None],
        window_step: int = 1,
        chunk_tokens: int,
        **options: Any,
    ) -> None:
        super().__init__(num_blocks, block_size, **options)
        self.windows = tuple(windows)
        self._chunk_tokens = chunk_tokens
        self._blocks_per_step = blocks_per_step(block_size, window_step)
        self._tokens_per_step = self._blocks_per_step * block_size
        self._marks = [bytes([group]) for group in range(len(windows))]
        """Appended to a key, so that each group has keys of its own."""
        self._num_full = sum(window is None for window in windows)
        # At most two steps are in flight.
        limit = max_request_tokens(
            self.windows, num_blocks, block_size, 2 * chunk_tokens, window_step
        )
        self._max_num_tokens = _UNLIMITED if limit is None else limit

    @property
    def max_num_tokens(self) -> int:
        return self._max_num_tokens

    def _first_index(self, window: int | None, num_tokens: int) -> int:
        """Index of the first block that attention reads for a query at position ``num_tokens`` or
        later."""
        if window is None:
            return 0
        oldest = max(0, num_tokens - window + 1)
        return oldest // self._tokens_per_step * self._blocks_per_step

    # ---- prefixes -------------------------------------------------------------------------------

    def _cached_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> PrefixHit:
        if table.skip_reading:
            return super()._cached_prefix(table, token_ids)
        limit = len(token_ids) - 1
        self._extend_keys(table, token_ids, limit // self.block_size)
        num_blocks = self._num_blocks_cached(table, token_ids)
        start = num_blocks * self.block_size
        rest = token_bytes(token_ids[start : min(start + self.block_size, limit)])
        parent = self._parent(table, num_blocks)
        overlap = self.pool.index.longest_overlap
        tails = [overlap(parent + mark, rest) for mark in self._marks]
        num_copied = min(count for _, count in tails)
        groups = tuple(
            GroupHit(
                first := self._first_index(window, start),
                [self._find(table.keys[i] + mark) for i in range(first, num_blocks)],
                source if num_copied else -1,
            )
            for window, mark, (source, _) in zip(self.windows, self._marks, tails, strict=True)
        )
        return HybridHit(
            start + num_copied, num_copied=num_copied, groups=groups, num_full_blocks=num_blocks
        )

    def _find(self, key: bytes) -> int:
        block_id = self.pool.index.find(key)
        assert block_id is not None, "it was there a moment ago"
        return block_id

    def num_matching_tokens(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        if table.skip_reading or not self._shares(table):
            return 0
        return self._num_blocks_cached(table, token_ids) * self.block_size

    def _num_blocks_cached(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """The most leading full blocks for which every group has the blocks that it needs."""
        find, keys = self.pool.index.find, table.keys
        end = (len(token_ids) - 1) // self.block_size
        for mark in self._marks[: self._num_full]:
            for index in range(end):
                if index == len(keys):  # Most match nothing: no need to know all their keys.
                    self._extend_keys(table, token_ids, min(2 * index + 1, end))
                if find(keys[index] + mark) is None:
                    end = index
                    break
        if end > len(keys):
            self._extend_keys(table, token_ids, end)
        return self._cut_to_windows(keys, end)

    def _cut_to_windows(self, keys: Sequence[bytes], end: int) -> int:
        """The largest number of blocks, up to ``end``, after which every window finds what it
        reads.

        A missing block rules out every end whose window covers it: all those from it up to the
        current one. So each block is looked up once.
        """
        find = self.pool.index.find
        windows = list(zip(self.windows, self._marks, strict=True))[self._num_full :]
        found_from = [end] * len(windows)
        group = 0
        while group < len(windows):
            window, mark = windows[group]
            index = min(found_from[group], end)
            first = self._first_index(window, end * self.block_size)
            while index > first and find(keys[index - 1] + mark) is not None:
                index -= 1
            found_from[group] = index
            group += 1
            if index > first:
                end, group = index - 1, 0
        return end

    def _swapped_hit(self, hit: PrefixHit, num_swapped: int) -> PrefixHit:
        """Groups without a window still share cached blocks; those with one are copied back from
        host memory as a whole."""
        groups = tuple(
            replace(found, source=-1)
            if window is None
            else GroupHit(self._first_index(window, num_swapped))
            for window, found in zip(self.windows, self._groups_of(hit), strict=True)
        )
        return HybridHit(
            num_swapped, is_swapped=True, groups=groups, num_full_blocks=hit.num_blocks
        )

    def _groups_of(self, hit: PrefixHit) -> tuple[GroupHit, ...]:
        """The parts of a hit by group; of an empty hit, empty ones."""
        return hit.groups if isinstance(hit, HybridHit) else (GroupHit(),) * len(self.windows)

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_written: int) -> None:
        """As in ``CacheManager``; also gives back the blocks that windows have left behind."""
        table.num_written = num_written
        num_full = num_written // self.block_size
        if num_full > table.num_published and self._shares(table):
            self._extend_keys(table, token_ids, num_full)
            for index in range(table.num_published, num_full):
                self._publish(table, index, self._content(table, token_ids, index))
            table.num_published = num_full
        if table.swapped is None:  # Else a copy to host memory may still read it.
            self._leave_behind(table, num_written)

    def _publish(self, table: BlockTable, index: int, content: Content) -> None:
        key, parent, data = content.key, content.parent, content.data
        rest = content.owner, content.partial, content.ceilings
        for held, mark in zip(table.layer_groups, self._marks, strict=True):
            if index >= held.first:
                own = Content(key + mark, parent + mark, data, *rest)
                self.pool.publish(held.block_ids[index], own)

    def _publish_rest(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        if table.num_written % self.block_size == 0:
            return
        index = table.num_written // self.block_size
        self._publish(table, index, self._rest(table, token_ids, index))

    def _leave_behind(self, table: BlockTable, num_written: int) -> None:
        for window, held in zip(self.windows, table.layer_groups, strict=True):
            first = self._first_index(window, num_written)
            if first > held.first:
                left = held.block_ids[held.first : first]
                held.block_ids[held.first : first] = [NO_BLOCK] * len(left)
                held.first = first
                table.num_held -= len(left)
                self.num_left_behind += len(left)
                self.pool.release(left)

    # ---- room -----------------------------------------------------------------------------------

    def _ends(self, hit: PrefixHit, num_tokens: int) -> list[int]:
        """The end of the block indices that ``admit`` fills, for each group."""
        num_windowed = min(num_tokens, hit.num_tokens + self._chunk_tokens)
        return [
            self.num_blocks_for(num_tokens if window is None else num_windowed)
            for window in self.windows
        ]

    def _num_reserved(self, hit: PrefixHit, num_tokens: int) -> int:
        """Blocks that ``admit`` takes in all groups, shared ones included."""
        ends = self._ends(hit, num_tokens)
        return sum(end - found.first for end, found in zip(ends, self._groups_of(hit), strict=True))

    def num_slots_reserved(self, hit: PrefixHit, num_tokens: int) -> int:
        return self._num_reserved(hit, num_tokens) * self.block_size

    def num_blocks_lacking(self, hit: PrefixHit, num_tokens: int) -> int:
        groups = self._groups_of(hit)
        shared = [*chain.from_iterable(found.block_ids for found in groups)]
        num_fresh = self._num_reserved(hit, num_tokens) - len(shared)
        if hit.num_copied:
            shared += [found.source for found in groups]
        num_idle = sum(self.pool.ref_count(block_id) == 0 for block_id in shared)
        return num_fresh + num_idle - self.pool.num_free

    def admit(self, table: BlockTable, hit: PrefixHit, num_tokens: int) -> None:
        assert not table.layer_groups, "the table is admitted twice"
        groups = self._groups_of(hit)
        for found in groups:
            for block_id in found.block_ids:
                self.pool.acquire(block_id)
            if hit.num_copied:
                self.pool.acquire(found.source)
        ends = self._ends(hit, num_tokens)
        for end, found in zip(ends, groups, strict=True):
            fresh = self.pool.allocate(end - found.first - len(found.block_ids))
            block_ids = [NO_BLOCK] * found.first + found.block_ids + fresh
            table.layer_groups.append(GroupTable(block_ids, found.first))
        table.num_logical_blocks = min(ends)
        table.num_held = self._num_reserved(hit, num_tokens)
        table.num_published = hit.num_blocks

    def block_copies(self, table: BlockTable, hit: PrefixHit) -> list[tuple[int, int, int]]:
        if not hit.num_copied:
            return []
        return [
            (found.source, held.block_ids[hit.num_blocks], hit.num_copied)
            for found, held in zip(self._groups_of(hit), table.layer_groups, strict=True)
        ]

    def block_ids(self, table: BlockTable) -> list[list[int]]:
        return [list(held.block_ids) for held in table.layer_groups]

    def num_blocks_to_grow(self, table: BlockTable, num_logical_blocks: int) -> int:
        return sum(max(0, num_logical_blocks - len(held.block_ids)) for held in table.layer_groups)

    def grow(self, table: BlockTable, num_logical_blocks: int) -> list[list[int]]:
        fresh = self.pool.allocate(self.num_blocks_to_grow(table, num_logical_blocks))
        table.num_logical_blocks = num_logical_blocks
        table.num_held += len(fresh)
        grown, start = [], 0
        for held in table.layer_groups:
            end = start + max(0, num_logical_blocks - len(held.block_ids))
            grown.append(fresh[start:end])
            held.block_ids += grown[-1]
            start = end
        return grown

    def num_logical_blocks_within(self, table: BlockTable, num_blocks: int) -> int:
        return table.num_logical_blocks + num_blocks // len(self.windows)

    def release(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        if self._shares(table):
            self._publish_rest(table, token_ids)
        self.pool.release(self._from_the_end(table))
        table.layer_groups = []
        table.num_logical_blocks = table.num_held = 0
        table.num_published = table.num_written = 0

    def _from_the_end(self, table: BlockTable) -> Iterator[int]:
        """The held blocks of all groups, from the last token to the first. A hit needs the blocks
        of every group, so those of the same tokens are evicted together."""
        num_blocks = max((len(held.block_ids) for held in table.layer_groups), default=0)
        for index in range(num_blocks - 1, -1, -1):
            for held in table.layer_groups:
                if held.first <= index < len(held.block_ids):
                    yield held.block_ids[index]

    def held_blocks(self, table: BlockTable) -> Iterator[int]:
        for held in table.layer_groups:
            yield from held.block_ids[held.first :]

    def num_sole_blocks(self, table: BlockTable) -> int:
        ref_count = self.pool.ref_count
        return sum(ref_count(block_id) == 1 for block_id in self.held_blocks(table))

    def num_sole_tokens(self, table: BlockTable) -> int:
        """Counted in the first group, whose window is the widest. The tokens that it has left
        behind count as well: nobody holds them."""
        held, ref_count = table.layer_groups[0], self.pool.ref_count
        num_sole = sum(ref_count(block_id) == 1 for block_id in held.block_ids[held.first :])
        return (held.first + num_sole) * self.block_size

    def check_table(self, table: BlockTable) -> None:
        assert table.num_held == sum(1 for _ in self.held_blocks(table))
        assert table.num_logical_blocks == min(len(held.block_ids) for held in table.layer_groups)
        for window, held in zip(self.windows, table.layer_groups, strict=True):
            assert all(block_id == NO_BLOCK for block_id in held.block_ids[: held.first])
            assert NO_BLOCK not in held.block_ids[held.first :]
            assert (
                held.first <= self._first_index(window, table.num_written) or not table.num_written
            ), "a block that a query may still read was given back"

    # ---- host memory ----------------------------------------------------------------------------

    def num_blocks_to_swap(self, table: BlockTable, num_tokens: int) -> int:
        num_blocks = self.num_blocks_for(num_tokens)
        return sum(num_blocks - held.first for held in table.layer_groups)

    def swap_out(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        assert table.swapped is None, "swapped out twice"
        num_blocks = self.num_blocks_for(num_tokens)
        block_ids = [
            block_id
            for held in table.layer_groups
            for block_id in held.block_ids[held.first : num_blocks]
        ]
        firsts = tuple(held.first for held in table.layer_groups)
        table.swapped = self.swap.take(len(block_ids), num_tokens, firsts)
        return list(zip(block_ids, table.swapped.block_ids, strict=True))

    def swap_in(self, table: BlockTable, hit: PrefixHit) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = []
        swapped = table.swapped
        if swapped is not None and hit.is_swapped:
            num_stored = self.num_blocks_for(swapped.num_tokens)
            end, offset = self.num_blocks_for(hit.num_tokens), 0
            groups = zip(swapped.firsts, self._groups_of(hit), table.layer_groups, strict=True)
            for first, found, held in groups:
                assert first <= found.first, "what is needed was not copied out"
                for index in range(found.first + len(found.block_ids), end):
                    host_id = swapped.block_ids[offset + index - first]
                    pairs.append((held.block_ids[index], host_id))
                offset += num_stored - first
            self.swap.num_blocks_in += len(pairs)
        self.drop_swapped(table)
        return pairs


_UNLIMITED = 1 << 62


def create_cache_manager(
    config: EngineConfig,
    num_blocks: int,
    num_swap_blocks: int,
    windows: Sequence[int | None],
    window_step: int,
) -> CacheManager:
    """windows, window_step: of the model's layer groups."""
    options: dict[str, Any] = {
        "enable_prefix_caching": config.enable_prefix_caching,
        "tenant_floor": config.prefix_cache_tenant_floor,
        "tenant_ceiling": config.prefix_cache_tenant_ceiling,
        "num_swap_blocks": num_swap_blocks,
    }
    if tuple(windows) == (None,):
        return CacheManager(num_blocks, config.block_size, **options)
    return HybridCacheManager(
        num_blocks,
        config.block_size,
        windows=windows,
        window_step=window_step,
        chunk_tokens=config.chunk_tokens,
        **options,
    )
