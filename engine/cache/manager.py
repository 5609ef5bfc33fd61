"""The KV cache as the scheduler sees it: block tables, and cached prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from engine.cache.block_pool import BlockPool
from engine.cache.prefix import Content, child_key, extend_chain, root_key, token_bytes
from engine.cache.swap import Swapped, SwapSpace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from engine.cache.ceilings import Ceiling


NO_BLOCK = -1
"""Marks a block that was given back before its request ended."""

# The region of public prefixes; no request's own region has this domain.
_PUBLIC = {"public": ""}


class BlockTable:
    """The cache side of one request: the blocks it holds, in order, and what they hold.

    ``region`` separates what must never be shared ("salt", ...); ``owner`` is whom cached blocks
    count for. The first ``num_public_tokens`` stand outside the region: their full blocks are
    shared with everybody who declares the same tokens public. Tables of one ``group`` share their
    common prefix even where prefix caching is off.
    """

    __slots__ = (
        "block_ids",
        "ceilings",
        "group",
        "keys",
        "layer_groups",
        "num_held",
        "num_logical_blocks",
        "num_public_tokens",
        "num_published",
        "num_written",
        "owner",
        "region",
        "root",
        "skip_reading",
        "swapped",
    )

    def __init__(
        self,
        region: Mapping[str, str],
        owner: str = "",
        num_public_tokens: int = 0,
        group: str = "",
    ) -> None:
        self.region = region
        self.owner = owner
        self.num_public_tokens = num_public_tokens
        self.group = group
        self.root: bytes | None = None
        """The root key of its region; computed once, on demand."""
        self.ceilings: tuple[Ceiling, ...] = ()
        """The ceilings, from ``BlockPool.ceilings_of``, that its cached blocks count for."""
        self.block_ids: list[int] = []
        self.layer_groups: list[GroupTable] = []
        """Used in place of ``block_ids`` where some layers have a window."""
        self.num_logical_blocks = 0
        """Logical blocks, counted from the first token, that have a physical block in every layer
        group: there are slots for ``num_logical_blocks * block_size`` tokens."""
        self.num_held = 0
        """Physical blocks held, summed over all layer groups."""
        self.keys: list[bytes] = []
        """Keys of the leading full blocks, as far as they were computed. They outlive a release:
        a preempted request looks its own prefix up again."""
        self.skip_reading = False
        """Do not look up cached prefixes: prompt log-probabilities need every token computed."""
        self.num_published = 0
        """Leading blocks that are published already."""
        self.num_written = 0
        """Leading slots whose contents are final: the step that wrote them is over, and drafts that
        were rejected are not counted."""
        self.swapped: Swapped | None = None
        """The copy of its blocks in host memory, from ``swap_out`` until ``swap_in``."""


@dataclass(slots=True)
class GroupTable:
    """The blocks that a request holds for one group of layers."""

    block_ids: list[int]
    """``NO_BLOCK`` where the window has left a block behind."""
    first: int = 0
    """Index of the first block that is held, if any is."""


class PrefixHit(msgspec.Struct, frozen=True, gc=False):
    """The leading tokens that need not be computed. Nothing is acquired yet."""

    num_tokens: int = 0
    block_ids: list[int] = []
    """Full blocks, to be shared."""
    source: int = -1
    """A block whose leading slots continue the prefix, to be copied; -1 for none."""
    num_copied: int = 0
    """How many slots to copy; ``num_tokens`` includes them."""
    is_swapped: bool = False
    """What follows the full blocks is copied back from host memory."""

    @property
    def num_blocks(self) -> int:
        """Leading full blocks of the hit."""
        return len(self.block_ids)

    def without_copy(self) -> PrefixHit:
        return PrefixHit(self.num_tokens - self.num_copied, self.block_ids)


class CacheManager:
    """Allocates blocks to requests and shares the blocks of equal prefixes within a region.

    ``tenant_floor`` and ``tenant_ceiling`` are shares of all blocks, for the cached blocks of one
    owner that nobody holds: fewer than the floor are safe from others, more than the ceiling are
    given up.
    """

    windows: Sequence[int | None] = (None,)
    """Window of each layer group; None where it sees all tokens."""
    num_left_behind = 0
    """Total of blocks that requests gave back before they ended."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
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

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def max_num_tokens(self) -> int:
        """The slots of the longest request that fits when it is alone."""
        return self.pool.num_blocks * self.block_size

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
        return self._swapped_hit(hit, num_swapped)

    def _swapped_hit(self, hit: PrefixHit, num_swapped: int) -> PrefixHit:
        return PrefixHit(num_swapped, hit.block_ids, is_swapped=True)

    def _cached_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> PrefixHit:
        if table.skip_reading:
            # Followers wait for the blocks that it computes, by their keys.
            self._extend_keys(table, token_ids, (len(token_ids) - 1) // self.block_size)
            return PrefixHit()
        limit = len(token_ids) - 1
        block_ids = self._cached_blocks(table, token_ids)
        start = len(block_ids) * self.block_size
        rest = token_bytes(token_ids[start : min(start + self.block_size, limit)])
        parent = self._parent(table, len(block_ids))
        source, num_copied = self.pool.index.longest_overlap(parent, rest)
        return PrefixHit(start + num_copied, block_ids, source, num_copied)

    def num_matching_tokens(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """What ``lookup`` would find, rounded down to full blocks; cheap enough to compare many
        requests."""
        find, keys = self.pool.index.find, table.keys
        if keys and find(keys[0]) is None:  # The scheduler asks for many, and most are such.
            return 0
        if table.skip_reading or not self._shares(table):
            return 0
        max_blocks = (len(token_ids) - 1) // self.block_size
        for index in range(max_blocks):
            if index == len(keys):  # Most match nothing: no need to know all their keys.
                self._extend_keys(table, token_ids, min(2 * index + 1, max_blocks))
            if find(keys[index]) is None:
                return index * self.block_size
        return max_blocks * self.block_size

    def _cached_blocks(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        max_blocks = (len(token_ids) - 1) // self.block_size
        self._extend_keys(table, token_ids, max_blocks)
        find = self.pool.index.find
        block_ids: list[int] = []
        for key in islice(table.keys, max_blocks):
            block_id = find(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_written: int) -> None:
        """Make the full blocks among the first ``num_written`` slots findable.

        Call it only once the step that wrote them is over: a key promises finished content.
        """
        table.num_written = num_written
        num_full = num_written // self.block_size
        if num_full <= table.num_published or not self._shares(table):
            return
        self._extend_keys(table, token_ids, num_full)
        for i in range(table.num_published, num_full):
            self.pool.publish(table.block_ids[i], self._content(table, token_ids, i))
        table.num_published = num_full

    def _publish_rest(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Publish the last, partly filled block: other requests can copy its leading slots."""
        if table.num_written % self.block_size == 0:
            return
        index = table.num_written // self.block_size
        self.pool.publish(table.block_ids[index], self._rest(table, token_ids, index))

    def _shares(self, table: BlockTable) -> bool:
        return self.enable_prefix_caching or bool(table.group)

    def _region(self, table: BlockTable) -> Mapping[str, str]:
        """The table's region; where prefix caching is off, its group becomes one of its own."""
        if self.enable_prefix_caching:
            return table.region
        return {**table.region, "group": table.group}

    def _num_public_blocks(self, table: BlockTable) -> int:
        return table.num_public_tokens // self.block_size if self.enable_prefix_caching else 0

    def _content(self, table: BlockTable, token_ids: Sequence[int], index: int) -> Content:
        start = index * self.block_size
        data = token_bytes(token_ids[start : start + self.block_size])
        parent = self._parent(table, index)
        return Content(table.keys[index], parent, data, table.owner, False, table.ceilings)

    def _rest(self, table: BlockTable, token_ids: Sequence[int], index: int) -> Content:
        """The tokens that the block at ``index`` holds so far."""
        parent = self._parent(table, index)
        data = token_bytes(token_ids[index * self.block_size : table.num_written])
        key = child_key(parent, data)
        return Content(key, parent, data, table.owner, True, table.ceilings)

    def _parent(self, table: BlockTable, index: int) -> bytes:
        """The key that the block at ``index`` of the table continues."""
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
            if end > known:
                parent, start = self._parent(table, known), known * self.block_size
                table.keys += extend_chain(parent, token_ids, start, self.block_size, end - known)

    # ---- room -----------------------------------------------------------------------------------

    def num_blocks_lacking(self, hit: PrefixHit, num_tokens: int) -> int:
        """How many free blocks are missing to admit ``num_tokens`` with this hit; <= 0 if none."""
        num_fresh = self.num_blocks_for(num_tokens) - len(hit.block_ids)
        # A hit that nobody holds is still on the free list.
        num_idle = sum(self.pool.ref_count(block_id) == 0 for block_id in hit.block_ids)
        if hit.num_copied and self.pool.ref_count(hit.source) == 0:
            num_idle += 1
        return num_fresh + num_idle - self.pool.num_free

    def admit(self, table: BlockTable, hit: PrefixHit, num_tokens: int) -> None:
        """Fill an empty table: the hit first, then fresh blocks up to ``num_tokens``.

        The source of a copy is acquired, too: the caller releases it when the copy is done.
        """
        assert not table.block_ids, "the table is admitted twice"
        for block_id in hit.block_ids:
            self.pool.acquire(block_id)
        if hit.num_copied:
            self.pool.acquire(hit.source)
        num_fresh = self.num_blocks_for(num_tokens) - len(hit.block_ids)
        table.block_ids = hit.block_ids + self.pool.allocate(num_fresh)
        table.num_logical_blocks = table.num_held = len(table.block_ids)
        table.num_published = len(hit.block_ids)

    def num_slots_reserved(self, hit: PrefixHit, num_tokens: int) -> int:
        """Slots that ``admit`` gives a request, summed over layer groups."""
        return num_tokens

    def block_copies(self, table: BlockTable, hit: PrefixHit) -> list[tuple[int, int, int]]:
        """After ``admit``: the copies that the hit needs, as (source block, block, leading
        slots)."""
        if not hit.num_copied:
            return []
        return [(hit.source, table.block_ids[hit.num_blocks], hit.num_copied)]

    def block_ids(self, table: BlockTable) -> list[list[int]]:
        """The blocks of each layer group, in token order."""
        return [list(table.block_ids)]

    def num_blocks_to_grow(self, table: BlockTable, num_logical_blocks: int) -> int:
        """Free blocks that ``grow`` needs."""
        return num_logical_blocks - table.num_logical_blocks

    def grow(self, table: BlockTable, num_logical_blocks: int) -> list[list[int]]:
        """Append fresh blocks until the table has ``num_logical_blocks``; returns the new ids of
        each layer group. The caller checked ``num_free_blocks``."""
        block_ids = self.pool.allocate(num_logical_blocks - table.num_logical_blocks)
        table.block_ids += block_ids
        table.num_logical_blocks = table.num_held = num_logical_blocks
        return [block_ids]

    def num_logical_blocks_within(self, table: BlockTable, num_blocks: int) -> int:
        """How many logical blocks the table can grow to with ``num_blocks`` free blocks."""
        return table.num_logical_blocks + num_blocks

    def release(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Give all blocks back. The last ones are evicted first, because more requests can
        use a prefix."""
        if self._shares(table):
            self._publish_rest(table, token_ids)
        self.pool.release(reversed(table.block_ids))
        table.block_ids = []
        table.num_logical_blocks = table.num_held = 0
        table.num_published = table.num_written = 0

    def num_sole_blocks(self, table: BlockTable) -> int:
        """Blocks that a release of this table would free."""
        return sum(self.pool.ref_count(block_id) == 1 for block_id in table.block_ids)

    def num_sole_tokens(self, table: BlockTable) -> int:
        """Tokens in blocks that nobody else holds."""
        return self.num_sole_blocks(table) * self.block_size

    def held_blocks(self, table: BlockTable) -> Iterable[int]:
        """Every block that the table has a reference to."""
        return table.block_ids

    def check_table(self, table: BlockTable) -> None:
        """Assert that the table is consistent. For tests and idle moments."""
        assert table.num_held == table.num_logical_blocks == len(table.block_ids)

    # ---- host memory ----------------------------------------------------------------------------

    def num_blocks_to_swap(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks of host memory that ``swap_out`` takes."""
        return self.num_blocks_for(num_tokens)

    def swap_out(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        """Reserve host memory for the blocks of the leading tokens; returns the copies to make, as
        (block, host block).

        The table keeps its blocks until ``release``. The caller checked ``swap.num_free``.
        """
        assert table.swapped is None, "swapped out twice"
        num_blocks = self.num_blocks_for(num_tokens)
        table.swapped = self.swap.take(num_blocks, num_tokens)
        return list(zip(table.block_ids[:num_blocks], table.swapped.block_ids, strict=True))

    def swap_in(self, table: BlockTable, hit: PrefixHit) -> list[tuple[int, int]]:
        """After ``admit``: the copies back to make, as (block, host block). Host memory is given
        back."""
        pairs: list[tuple[int, int]] = []
        if table.swapped is not None and hit.is_swapped:
            indices = range(len(hit.block_ids), self.num_blocks_for(hit.num_tokens))
            pairs = [(table.block_ids[i], table.swapped.block_ids[i]) for i in indices]
            self.swap.num_blocks_in += len(pairs)
        self.drop_swapped(table)
        return pairs

    def drop_swapped(self, table: BlockTable) -> None:
        """Give back what the table has in host memory, if anything."""
        if table.swapped is not None:
            self.swap.give_back(table.swapped)
            table.swapped = None
