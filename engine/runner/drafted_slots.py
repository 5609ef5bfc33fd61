"""Which slots of the KV cache hold keys of a draft network, too."""

from __future__ import annotations

from collections.abc import Sequence

from engine.runner.rows import Ints
from engine.scheduler.plan import StepPlan


class DraftedSlots:
    """Host-side bookkeeping, by row for what runs and by block for what is shared.

    The keys of a block are made in order, so a number says how many it has. A prefix that another
    request left is known by its blocks; a block that changes hands starts at zero.
    """

    def __init__(self, num_blocks: int, block_size: int, max_num_rows: int) -> None:
        self._block_size = block_size
        self._filled = [0] * num_blocks
        """Leading slots of each block that are made."""
        self._blocks: list[list[int]] = [[] for _ in range(max_num_rows)]
        self._starts = [0] * max_num_rows
        """Leading places of each row that are made."""
        self._changed: set[int] = set()
        """Rows of which that is not checked against a chunk yet."""
        self._new: list[tuple[int, list[int]]] = []
        """As in plans; rows and blocks have not heard of it yet. Where nobody drafts there is no
        hurry."""

    def apply(self, plan: StepPlan) -> None:
        """Rows and blocks change hands; slots that the plan's chunks compute are not made yet."""
        if plan.admissions:
            self._grow()
            self._admit(plan)
        self._new += plan.new_blocks
        if not self._changed:
            return
        for chunk in plan.chunks:
            if chunk.row in self._changed:
                # A token that was a draft last time may be another now.
                self._cut(chunk.row, chunk.num_computed_tokens + 1)
                self._changed.remove(chunk.row)

    def _grow(self) -> None:
        """Blocks change hands."""
        filled = self._filled
        for row, block_ids in self._new:
            self._blocks[row] += block_ids
            for block_id in block_ids:
                filled[block_id] = 0
        self._new = []

    def _admit(self, plan: StepPlan) -> None:
        computed = {chunk.row: chunk.num_computed_tokens for chunk in plan.chunks}
        copied = {target: min(n, self._filled[s]) for s, target, n in plan.block_copies}
        swapped_in = {block_id for block_id, _ in plan.swap_ins}
        for admission in plan.admissions:
            num_shared = computed.get(admission.row, 0) // self._block_size
            blocks = list(admission.block_ids)
            for index, block_id in enumerate(blocks):
                if index >= num_shared or block_id in swapped_in:
                    self._filled[block_id] = copied.get(block_id, 0)
            self._blocks[admission.row] = blocks
            self._starts[admission.row] = self._leading(blocks)
            self._changed.add(admission.row)

    def _leading(self, blocks: Sequence[int]) -> int:
        count = 0
        for block_id in blocks:
            count += self._filled[block_id]
            if self._filled[block_id] < self._block_size:
                break
        return count

    def _cut(self, row: int, end: int) -> None:
        if self._starts[row] > end:
            self._starts[row] = end

    def room(self, row: int) -> int:
        """Slots that the row has."""
        if self._new:
            self._grow()
        return len(self._blocks[row]) * self._block_size

    def start(self, row: int) -> int:
        """Leading places of the row that are made."""
        return self._starts[row]

    def fill(self, rows: Ints, ends: Ints) -> None:
        """The places of each row up to ``ends`` are made now."""
        if self._new:
            self._grow()
        self._changed.update(rows.tolist())
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            size = self._block_size
            for index in range(self._starts[row] // size, -(-end // size)):
                self._filled[self._blocks[row][index]] = min(size, end - index * size)
            self._starts[row] = end
