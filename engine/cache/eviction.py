"""The order in which cached blocks that nobody holds are given up."""

from __future__ import annotations

import heapq
from collections import OrderedDict

# A heap with fewer outdated entries than this is not worth rebuilding.
_MIN_OUTDATED = 64


class _Share:
    """The idle blocks of one owner, the one released longest ago in front."""

    __slots__ = ("blocks", "entry", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.blocks: OrderedDict[int, int] = OrderedDict()
        """Time of release by block id."""
        self.entry = 0
        """Number of this owner's valid entry in the heap; its other entries are outdated."""


class EvictionOrder:
    """Least recently used first, among the owners that have more than ``floor`` blocks.

    Only when no owner has more than the floor do they all stand in one line. So an owner that fills
    the cache evicts its own blocks, and those of others down to the floor. Every operation takes
    O(log owners), amortized.
    """

    def __init__(self, floor: int = 0) -> None:
        self._floor = floor
        self._shares: dict[str, _Share] = {}
        self._share_of: dict[int, _Share] = {}
        self._clock = 0
        self._num_entries = 0
        # (within its floor?, release of its oldest block, entry number, share). An entry may be
        # outdated: then it stands too early, and is corrected when it surfaces.
        self._heap: list[tuple[bool, int, int, _Share]] = []

    def __len__(self) -> int:
        return len(self._share_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._share_of

    def count(self, owner: str) -> int:
        share = self._shares.get(owner)
        return len(share.blocks) if share else 0

    def add(self, block_id: int, owner: str) -> None:
        """The block was released just now."""
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share(owner)
        self._clock += 1
        share.blocks[block_id] = self._clock
        self._share_of[block_id] = share
        count = len(share.blocks)
        if count == 1 or count == self._floor + 1:
            self._push(share)  # It is new, or moves to the front: its entry would stand too late.

    def remove(self, block_id: int) -> None:
        """The block is held again, or given up."""
        share = self._share_of.pop(block_id)
        del share.blocks[block_id]
        if not share.blocks:
            del self._shares[share.owner]

    def pop(self) -> int:
        """Remove and return the block to give up next."""
        heap = self._heap
        while True:  # Written out, because a full cache comes here for every block handed out.
            protected, released, entry, share = heap[0]
            blocks = share.blocks
            if entry != share.entry or not blocks:
                heapq.heappop(heap)
                continue
            block_id = next(iter(blocks))
            oldest, within_floor = blocks[block_id], len(blocks) <= self._floor
            if oldest == released and within_floor == protected:
                self.remove(block_id)
                return block_id
            heapq.heapreplace(heap, (within_floor, oldest, entry, share))

    def pop_from(self, owner: str) -> int:
        """Remove and return the owner's block that was released longest ago."""
        return self._pop_oldest(self._shares[owner])

    def _pop_oldest(self, share: _Share) -> int:
        block_id = next(iter(share.blocks))
        self.remove(block_id)
        return block_id

    def _key(self, share: _Share) -> tuple[bool, int]:
        return len(share.blocks) <= self._floor, next(iter(share.blocks.values()))

    def _push(self, share: _Share) -> None:
        self._num_entries += 1
        share.entry = self._num_entries
        heapq.heappush(self._heap, (*self._key(share), share.entry, share))
        if len(self._heap) > 2 * len(self._shares) + _MIN_OUTDATED:
            self._heap = [e for e in self._heap if e[2] == e[3].entry and e[3].blocks]
            heapq.heapify(self._heap)
