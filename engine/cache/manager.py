"""The KV cache as the scheduler sees it: block tables, and cached prefixes.

Layers that look back equally far form a group (``engine.cache.groups``); most models have one.
Every group has a block table of its own, over one pool of blocks:

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
window needs any more, and a long prefix may be a hit while every shorter one is not. Layers that
keep a state have no blocks: where a model has some, a prefix is a hit only if a snapshot of its
state was taken (``engine.cache.states``).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.cache.block_pool import BlockPool
from engine.cache.groups import FullAttention, RecurrentState, max_request_tokens
from engine.cache.prefix import Content, child_key, extend_chain, root_key, seen_from, token_bytes
from engine.cache.states import StateSnapshots
from engine.cache.swap import SwapSpace
from engine.cache.table import NO_BLOCK, BlockTable, GroupHit, GroupTable, PrefixHit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from engine.cache.groups import GroupKind
    from engine.config import EngineConfig

# The region of public prefixes; no request's own region has this domain.
_PUBLIC = {"public": ""}
_UNLIMITED = 1 << 62


class CacheManager:
    """Allocates blocks to requests and shares the blocks of equal prefixes within a region.

    ``kinds`` are those of the layer groups; groups that keep all blocks come first.
    ``chunk_tokens`` is the most tokens of one request in a step, ``most_in_flight`` the most steps
    that are launched and not over; they matter only to windows.
    ``tenant_floor`` and ``tenant_ceiling`` are shares of all blocks, for the cached blocks of one
    owner that nobody holds: fewer than the floor are safe from others, more than the ceiling are
    given up.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[GroupKind | RecurrentState] = (FullAttention(),),
        *,
        chunk_tokens: int = 1,
        most_in_flight: int = 2,
        enable_prefix_caching: bool = True,
        tenant_floor: float = 0.0,
        tenant_ceiling: float = 1.0,
        num_swap_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.swap = SwapSpace(num_swap_blocks)
        self.pool = BlockPool(
            num_blocks,
            floor=int(tenant_floor * num_blocks),
            ceiling=int(tenant_ceiling * num_blocks),
        )
        self.enable_prefix_caching = enable_prefix_caching
        self._kinds = tuple(kind for kind in kinds if not isinstance(kind, RecurrentState))
        self.states: StateSnapshots | None = None
        """Of the layers that keep a state; None where there are none."""
        for kind in kinds:
            if isinstance(kind, RecurrentState):
                shares = {"floor": tenant_floor, "ceiling": tenant_ceiling}
                self.states = StateSnapshots(kind, block_size, **shares)
                self.pool.on_forget = self.states.pool.discard
        self.windows = tuple(kind.window for kind in self._kinds)
        """Window of each layer group; None where it sees all tokens."""
        self.num_left_behind = 0
        """Total of blocks that requests gave back before they ended."""
        self._chunk_tokens = chunk_tokens
        # A key is followed by its group's mark, so that each group has keys of its own.
        self._marks = [b"", *(bytes([group]) for group in range(1, len(self._kinds)))]
        num_full = sum(window is None for window in self.windows)
        self._full_marks = self._marks[:num_full]
        self._windowed = [*zip(self._kinds, self._marks, strict=True)][num_full:]
        limit = max_request_tokens(
            self._kinds, num_blocks, block_size, most_in_flight * chunk_tokens
        )
        self.max_num_tokens = _UNLIMITED if limit is None else limit
        """The slots of the longest request that fits when it is alone."""

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # ---- prefixes -------------------------------------------------------------------------------

    def lookup(self, table: BlockTable, token_ids: Sequence[int]) -> PrefixHit:
        """The longest prefix of ``token_ids`` that is cached or swapped out, to the token.

        Never all of the tokens: the last one is always computed, because its logits are needed.
        """
        hit = self._cached_prefix(table, token_ids) if self._shares(table) else PrefixHit()
        if table.swapped is None:
            return hit
        # Drafts that were rejected after the copy was planned are not among the tokens.
        num_swapped = min(table.swapped.num_tokens, len(token_ids) - 1)
        if hit.num_tokens >= num_swapped:
            return hit
        # Groups without a window still share cached blocks; those with one are copied back from
        # host memory as a whole.
        groups = tuple(
            replace(found, source=-1)
            if kind.window is None
            else GroupHit(kind.first_kept(num_swapped, self.block_size))
            for kind, found in zip(self._kinds, self._groups_of(hit), strict=True)
        )
        return PrefixHit(num_swapped, hit.num_blocks, groups, is_swapped=True)

    def _groups_of(self, hit: PrefixHit) -> tuple[GroupHit, ...]:
        """The parts of a hit by group; of an empty hit, empty ones."""
        return hit.groups or (GroupHit(),) * len(self._kinds)

    def _cached_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> PrefixHit:
        limit = len(token_ids) - 1
        # Requests wait for blocks by their keys, so all are computed even if none is looked up.
        self._extend_keys(table, token_ids, limit // self.block_size)
        if table.skip_reading:
            return PrefixHit()
        num_cached = self._num_blocks_cached(table, token_ids)
        if self.states is not None:
            return self._prefix_with_state(table, num_cached)
        num_blocks = num_cached
        start = num_blocks * self.block_size
        rest = token_bytes(token_ids[start : min(start + self.block_size, limit)])
        parent = self._parent(table, num_blocks)
        overlap = self.pool.index.longest_overlap
        tails = [overlap(parent + mark, rest) for mark in self._marks]
        num_copied = min(count for _, count in tails)
        if not num_blocks and not num_copied:
            return PrefixHit()
        sources = [source if num_copied else -1 for source, _ in tails]
        groups = self._found(table, num_blocks, sources)
        return PrefixHit(start + num_copied, num_blocks, groups, num_copied)

    def _prefix_with_state(self, table: BlockTable, num_cached: int) -> PrefixHit:
        """The longest prefix, of that many cached blocks, after which there is a snapshot."""
        assert self.states is not None
        num_blocks = self._cut_to_snapshot(table.keys, num_cached)
        if not num_blocks:
            return PrefixHit(num_stateless=num_cached)
        return PrefixHit(
            num_blocks * self.block_size,
            num_blocks,
            self._found(table, num_blocks, [-1] * len(self._kinds)),
            num_stateless=num_cached - num_blocks,
            snapshot=self.states.find(table.keys[num_blocks - 1]),
        )

    def _found(
        self, table: BlockTable, num_blocks: int, sources: Sequence[int]
    ) -> tuple[GroupHit, ...]:
        """What each group has of that many leading blocks."""
        find, start = self.pool.index.find, num_blocks * self.block_size
        groups = []
        for kind, mark, source in zip(self._kinds, self._marks, sources, strict=True):
            first = kind.first_kept(start, self.block_size)
            found = [find(key + mark) for key in table.keys[first:num_blocks]]
            block_ids = [block_id for block_id in found if block_id is not None]
            assert len(block_ids) == len(found), "they were there a moment ago"
            groups.append(GroupHit(first, block_ids, source))
        return tuple(groups)

    def num_matching_tokens(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """What ``lookup`` would find, rounded down to full blocks; cheap enough to compare many
        requests."""
        keys = table.keys
        # The scheduler asks for many, and most match nothing.
        if keys and self._full_marks and self.pool.index.find(keys[0]) is None:
            return 0
        if table.skip_reading or not self._shares(table):
            return 0
        num_blocks = self._num_blocks_cached(table, token_ids)
        if self.states is not None:
            num_blocks = self._cut_to_snapshot(keys, num_blocks)
        return num_blocks * self.block_size

    def _cut_to_snapshot(self, keys: Sequence[bytes], end: int) -> int:
        """The largest number of blocks, up to ``end``, after which there is a snapshot, and every
        window finds what it reads."""
        assert self.states is not None
        while True:
            last = self.states.last(keys, end)
            end = self._cut_to_windows(keys, last) if self._windowed else last
            if end == last:
                return end

    def _num_blocks_cached(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """The most leading full blocks for which every group has the blocks that it needs."""
        find, keys = self.pool.index.find, table.keys
        end = (len(token_ids) - 1) // self.block_size
        for mark in self._full_marks:
            for index in range(end):
                if index == len(keys):  # Most match nothing: no need to know all their keys.
                    self._extend_keys(table, token_ids, min(2 * index + 1, end))
                if find(keys[index] + mark) is None:
                    end = index
                    break
        if not self._windowed:
            return end
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
        found_from = [end] * len(self._windowed)
        group = 0
        while group < len(self._windowed):
            kind, mark = self._windowed[group]
            index = min(found_from[group], end)
            first = kind.first_kept(end * self.block_size, self.block_size)
            while index > first and find(keys[index - 1] + mark) is not None:
                index -= 1
            found_from[group] = index
            group += 1
            if index > first:
                end, group = index - 1, 0
        return end

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_written: int) -> None:
        """Make the full blocks among the first ``num_written`` slots findable, and give back those
        that windows have left behind.

        Call it only once the step that wrote them is over: a key promises finished content.
        """
        table.num_written = num_written
        num_full = num_written // self.block_size
        if num_full > table.num_published and self._shares(table):
            self._extend_keys(table, token_ids, num_full)
            for index in range(table.num_published, num_full):
                self._publish(table, token_ids, index)
            table.num_published = num_full
        if self._windowed and table.swapped is None:  # Else a copy to the host may still read it.
            self._leave_behind(table, num_written)

    def _publish(self, table: BlockTable, token_ids: Sequence[int], index: int) -> None:
        """Publish a block of each group; the last one, partly filled, serves other requests that
        copy its leading slots."""
        start, end = index * self.block_size, (index + 1) * self.block_size
        is_partial = end > table.num_written
        data = token_bytes(token_ids[start : min(end, table.num_written)])
        parent = self._parent(table, index)
        key = child_key(parent, data) if is_partial else table.keys[index]
        rest = data, table.owner, is_partial, table.ceilings
        for held, mark in zip(table.layer_groups, self._marks, strict=True):
            if index >= held.first:
                self.pool.publish(held.block_ids[index], Content(key + mark, parent + mark, *rest))

    def _leave_behind(self, table: BlockTable, num_written: int) -> None:
        for kind, held in zip(self._kinds, table.layer_groups, strict=True):
            first = kind.first_kept(num_written, self.block_size)
            if first > held.first:
                left = held.block_ids[held.first : first]
                held.block_ids[held.first : first] = [NO_BLOCK] * len(left)
                held.first = first
                table.num_held -= len(left)
                self.num_left_behind += len(left)
                self.pool.release(left)

    def _shares(self, table: BlockTable) -> bool:
        return self.enable_prefix_caching or bool(table.group)

    def _region(self, table: BlockTable) -> Mapping[str, str]:
        """The table's region; where prefix caching is off, its group becomes one of its own."""
        if self.enable_prefix_caching:
            return table.region
        return {**table.region, "group": table.group}

    def _num_public_blocks(self, table: BlockTable) -> int:
        return table.num_public_tokens // self.block_size if self.enable_prefix_caching else 0

    def _parent(self, table: BlockTable, index: int) -> bytes:
        """The key that the block at ``index`` of the table continues, with the pictures in it."""
        return seen_from(self._parent_of(table, index), self._pictures(table, index))

    def _pictures(self, table: BlockTable, index: int) -> Iterator[tuple[int, bytes]]:
        """The pictures that overlap a block, as in ``seen_from``."""
        start, end = index * self.block_size, (index + 1) * self.block_size
        first = bisect_right(table.pictures, start, key=itemgetter(1))
        for offset, _, digest in table.pictures[first:]:
            if offset >= end:
                break
            yield start - offset, digest

    def _parent_of(self, table: BlockTable, index: int) -> bytes:
        num_public = self._num_public_blocks(table)
        if index == num_public:
            # The region's own blocks begin here.
            if table.root is None:
                table.root = root_key(self.block_size, self._region(table))
            return child_key(table.keys[index - 1], table.root) if index else table.root
        return table.keys[index - 1] if index else root_key(self.block_size, _PUBLIC)

    def _extend_keys(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> None:
        num_public = self._num_public_blocks(table)
        for end in (min(num_public, num_blocks), num_blocks):
            known = len(table.keys)
            if end > known and table.pictures and table.pictures[-1][1] > known * self.block_size:
                for index in range(known, end):
                    parent, start = self._parent(table, index), index * self.block_size
                    table.keys += extend_chain(parent, token_ids, start, self.block_size, 1)
            elif end > known:
                parent, start = self._parent(table, known), known * self.block_size
                table.keys += extend_chain(parent, token_ids, start, self.block_size, end - known)

    # ---- room -----------------------------------------------------------------------------------

    def _reserved_tokens(self, hit: PrefixHit, num_tokens: int) -> list[int]:
        """For each group, the end of the tokens that ``admit`` gives it blocks for."""
        num_soon = hit.num_tokens + self._chunk_tokens
        return [kind.num_reserved(num_tokens, num_soon) for kind in self._kinds]

    def num_slots_reserved(self, hit: PrefixHit, num_tokens: int) -> int:
        """Slots that ``admit`` gives a request, summed over layer groups."""
        groups = zip(self._reserved_tokens(hit, num_tokens), self._groups_of(hit), strict=True)
        return sum(end - found.first * self.block_size for end, found in groups)

    def num_blocks_lacking(self, hit: PrefixHit, num_tokens: int) -> int:
        """How many free blocks are missing to admit ``num_tokens`` with this hit; <= 0 if none."""
        num_needed, ref_count = 0, self.pool.ref_count
        ends = self._reserved_tokens(hit, num_tokens)
        for end, found in zip(ends, self._groups_of(hit), strict=True):
            num_needed += self.num_blocks_for(end) - found.first - len(found.block_ids)
            # A hit that nobody holds is still on the free list.
            for block_id in found.block_ids:
                num_needed += ref_count(block_id) == 0
            if hit.num_copied:
                num_needed += ref_count(found.source) == 0
        return num_needed - self.pool.num_free

    def admit(self, table: BlockTable, hit: PrefixHit, num_tokens: int) -> None:
        """Fill an empty table: the hit first, then fresh blocks up to ``num_tokens``.

        The source of a copy is acquired, too: the caller releases it when the copy is done.
        """
        assert not table.layer_groups, "the table is admitted twice"
        groups = self._groups_of(hit)
        for found in groups:
            for block_id in found.block_ids:
                self.pool.acquire(block_id)
            if hit.num_copied:
                self.pool.acquire(found.source)
        ends = [self.num_blocks_for(end) for end in self._reserved_tokens(hit, num_tokens)]
        for end, found in zip(ends, groups, strict=True):
            fresh = self.pool.allocate(end - found.first - len(found.block_ids))
            block_ids = [NO_BLOCK] * found.first + found.block_ids + fresh
            table.layer_groups.append(GroupTable(block_ids, found.first))
        table.num_logical_blocks = min(ends)
        table.num_held = sum(ends) - sum(found.first for found in groups)
        table.num_published = hit.num_blocks

    def block_copies(self, table: BlockTable, hit: PrefixHit) -> list[tuple[int, int, int]]:
        """After ``admit``: the copies that the hit needs, as (source block, block, leading
        slots)."""
        if not hit.num_copied:
            return []
        return [
            (found.source, held.block_ids[hit.num_blocks], hit.num_copied)
            for found, held in zip(hit.groups, table.layer_groups, strict=True)
        ]

    def block_ids(self, table: BlockTable) -> list[list[int]]:
        """The blocks of each layer group, in token order."""
        return [list(held.block_ids) for held in table.layer_groups]

    def num_blocks_to_grow(self, table: BlockTable, num_logical_blocks: int) -> int:
        """Free blocks that ``grow`` needs."""
        num_blocks = 0
        for held in table.layer_groups:
            num_blocks += max(0, num_logical_blocks - len(held.block_ids))
        return num_blocks

    def grow(self, table: BlockTable, num_logical_blocks: int) -> list[list[int]]:
        """Append fresh blocks until the table has ``num_logical_blocks``; returns the new ids of
        each layer group. The caller checked ``num_free_blocks``."""
        grown = []
        for held in table.layer_groups:
            fresh = self.pool.allocate(max(0, num_logical_blocks - len(held.block_ids)))
            held.block_ids += fresh
            table.num_held += len(fresh)
            grown.append(fresh)
        table.num_logical_blocks = num_logical_blocks
        return grown

    def num_logical_blocks_within(self, table: BlockTable, num_blocks: int) -> int:
        """How many logical blocks the table can grow to with ``num_blocks`` free blocks."""
        return table.num_logical_blocks + num_blocks // len(self._kinds)

    def release(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Give all blocks back. The last ones are evicted first, because more requests can
        use a prefix."""
        if table.num_written % self.block_size and self._shares(table):
            self._publish(table, token_ids, table.num_written // self.block_size)
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
        """Every block that the table has a reference to."""
        for held in table.layer_groups:
            yield from held.block_ids[held.first :]

    def num_sole_blocks(self, table: BlockTable) -> int:
        """Blocks that a release of this table would free."""
        ref_count = self.pool.ref_count
        return sum(ref_count(block_id) == 1 for block_id in self.held_blocks(table))

    def num_sole_tokens(self, table: BlockTable) -> int:
        """Tokens in blocks that nobody else holds, counted in the first group, whose window is the
        widest. The tokens that it has left behind count as well: nobody holds them."""
        if not table.layer_groups:
            return 0
        held, ref_count = table.layer_groups[0], self.pool.ref_count
        num_sole = sum(ref_count(block_id) == 1 for block_id in held.block_ids[held.first :])
        return (held.first + num_sole) * self.block_size

    def check_table(self, table: BlockTable) -> None:
        """Assert that the table is consistent. For tests and idle moments."""
        assert table.num_held == sum(1 for _ in self.held_blocks(table))
        assert table.num_logical_blocks == min(len(held.block_ids) for held in table.layer_groups)
        for kind, held in zip(self._kinds, table.layer_groups, strict=True):
            assert all(block_id == NO_BLOCK for block_id in held.block_ids[: held.first])
            assert NO_BLOCK not in held.block_ids[held.first :]
            kept = kind.first_kept(table.num_written, self.block_size)
            assert held.first <= kept or not table.num_written, (
                "a block that a query may still read was given back"
            )

    # ---- recurrent states -----------------------------------------------------------------------

    def begin_states(self, table: BlockTable, hit: PrefixHit, num_tokens: int) -> list[int]:
        """After ``admit``, of a request that knows so many tokens: the snapshot that it begins
        with, if it begins with one."""
        return [] if self.states is None else self.states.begin(table, hit, num_tokens)

    def take_snapshots(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
        """Which snapshots to take while the tokens from ``start`` to ``end`` are computed, as
        (number of tokens, snapshot). The caller keeps each when the step is over."""
        if self.states is None or not self._shares(table):
            return []
        return self.states.take(table, start, end)

    def keep_snapshot(
        self, table: BlockTable, token_ids: Sequence[int], num_tokens: int, snapshot: int
    ) -> None:
        """The step that wrote a snapshot is over: it can be found, unless a stop token came before
        its end, or its block is gone already."""
        assert self.states is not None
        num_blocks = num_tokens // self.block_size
        if num_tokens <= len(token_ids):
            self._extend_keys(table, token_ids, num_blocks)
            if self.pool.index.find(table.keys[num_blocks - 1] + self._marks[0]) is not None:
                self.states.keep(table, num_tokens, snapshot)
        self.states.pool.release([snapshot])

    def check_states(self, taken: Iterable[int]) -> None:
        """Assert that snapshots are held for ``taken`` only, and that each of the others belongs to
        a cached block. For tests and idle moments."""
        if self.states is None:
            return
        pool, held = self.states.pool, set(taken)
        pool.check_integrity()
        assert all(pool.ref_count(i) == (i in held) for i in range(pool.num_blocks))
        assert all(self.pool.index.find(key) is not None for key in pool.index)

    # ---- host memory ----------------------------------------------------------------------------

    def num_blocks_to_swap(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks of host memory that ``swap_out`` takes."""
        num_blocks = self.num_blocks_for(num_tokens)
        return sum(num_blocks - held.first for held in table.layer_groups)

    def swap_out(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        """Reserve host memory for the blocks of the leading tokens; returns the copies to make, as
        (block, host block).

        The table keeps its blocks until ``release``. The caller checked ``swap.num_free``.
        """
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
        """After ``admit``: the copies back to make, as (block, host block). Host memory is given
        back."""
        pairs: list[tuple[int, int]] = []
        swapped = table.swapped
        if swapped is not None and hit.is_swapped:
            num_stored = self.num_blocks_for(swapped.num_tokens)
            end, offset = self.num_blocks_for(hit.num_tokens), 0
            groups = zip(swapped.firsts, hit.groups, table.layer_groups, strict=True)
            for first, found, held in groups:
                assert first <= found.first, "what is needed was not copied out"
                for index in range(found.first + len(found.block_ids), end):
                    host_id = swapped.block_ids[offset + index - first]
                    pairs.append((held.block_ids[index], host_id))
                offset += num_stored - first
            self.swap.num_blocks_in += len(pairs)
        self.drop_swapped(table)
        return pairs

    def drop_swapped(self, table: BlockTable) -> None:
        """Give back what the table has in host memory, if anything."""
        if table.swapped is not None:
            self.swap.give_back(table.swapped)
            table.swapped = None


def create_cache_manager(
    config: EngineConfig,
    num_blocks: int,
    num_swap_blocks: int,
    kinds: Sequence[GroupKind | RecurrentState],
) -> CacheManager:
    """The manager with the config's settings. kinds: of the model's layer groups."""
    return CacheManager(
        num_blocks,
        config.block_size,
        kinds,
        chunk_tokens=config.chunk_tokens,
        most_in_flight=config.most_in_flight,
        enable_prefix_caching=config.enable_prefix_caching,
        tenant_floor=config.prefix_cache_tenant_floor,
        tenant_ceiling=config.prefix_cache_tenant_ceiling,
        num_swap_blocks=num_swap_blocks,
    )
