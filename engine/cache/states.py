"""Snapshots of recurrent states: from which prefixes a request can go on without computing them.

Keys and values of every token stay in blocks, but of a state only what was kept: a snapshot, which
belongs to the block that ends where it was taken, has that block's key, and is given up with it. It
is taken where a prefix is likely to be continued (cf. arXiv 2411.19379):

* at the last block boundary of what a request knows when it is admitted, its prompt as a rule: the
  next turn of a conversation, or the choices of one request, go on from there,
* where the blocks that it shares with others end, if there was no snapshot yet: so what begins
  many prompts is computed twice and then no more,
* at the end of what is public,
* every ``answer_stride`` tokens of its answer, each in place of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.cache.block_pool import BlockPool
from engine.cache.prefix import Content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.cache.groups import RecurrentState
    from engine.cache.table import BlockTable, PrefixHit


class StateSnapshots:
    """Hands out snapshots, and finds them by the key of the block that they belong to. They are
    given up as blocks are: fairly among owners, and the least recently used first."""

    def __init__(
        self, kind: RecurrentState, block_size: int, *, floor: float = 0.0, ceiling: float = 1.0
    ) -> None:
        """floor, ceiling: as ``tenant_floor`` and ``tenant_ceiling`` of ``CacheManager``."""
        count = kind.num_snapshots
        self.pool = BlockPool(count, floor=int(floor * count), ceiling=int(ceiling * count))
        self._block_size = block_size
        self._stride = -(-kind.answer_stride // block_size) * block_size

    def last(self, keys: Sequence[bytes], end: int) -> int:
        """The most leading blocks, up to ``end``, after which there is a snapshot."""
        find = self.pool.index.find
        while end and find(keys[end - 1]) is None:
            end -= 1
        return end

    def find(self, key: bytes) -> int:
        found = self.pool.index.find(key)
        assert found is not None, "it was there a moment ago"
        return found

    def begin(self, table: BlockTable, hit: PrefixHit, num_tokens: int) -> list[int]:
        """A request is admitted that knows ``num_tokens``: decides where to take snapshots of it.
        Returns the snapshot of the hit, if there is one."""
        size = self._block_size
        ends = {
            (num_tokens - 1) // size,
            hit.num_blocks + hit.num_stateless,
            table.num_public_tokens // size,
        }
        table.snapshot_ends = sorted(size * end for end in ends if end > hit.num_blocks)
        table.answer_key = None
        if hit.snapshot < 0:
            return []
        self.pool.acquire(hit.snapshot)  # It is the most recently used now.
        self.pool.release([hit.snapshot])
        return [hit.snapshot]

    def take(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
        """The tokens from ``start`` to ``end`` of a request will be computed: which snapshots to
        take among them, as (number of tokens, snapshot). Each is held until ``keep``."""
        wanted = [num_tokens for num_tokens in table.snapshot_ends if start < num_tokens <= end]
        if end - start == 1 and end % self._stride == 0 and not wanted:
            wanted = [end]
        wanted = wanted[: self.pool.num_free]
        return list(zip(wanted, self.pool.allocate(len(wanted)), strict=True))

    def keep(self, table: BlockTable, num_tokens: int, snapshot: int) -> None:
        """The snapshot was written: it can be found from now on. The block before it is there."""
        key = table.keys[num_tokens // self._block_size - 1]
        content = Content(key, key, b"", table.owner, False, ())
        self.pool.publish(snapshot, content)
        if num_tokens not in table.snapshot_ends:
            if table.answer_key is not None:
                self.pool.discard(table.answer_key)
            table.answer_key = key
