"""For which tokens the keys of a draft network are in its KV cache already."""

from __future__ import annotations

from collections.abc import Sequence

from engine.runner.drafts.row_changes import Changes
from engine.runner.rows import Ints, RowTable
from engine.scheduler.plan import StepPlan


class DraftedSlots:
    """Counts on the host, for each row and for each block.

    A draft network computes its keys later than the target, and in order. So one number per row
    says how many leading tokens have them, and one per block says how many leading slots do. From
    the blocks follows what a new row has, if its prefix was cached. A block that is handed out anew
    starts at zero."""

    def __init__(self, num_blocks: int, block_size: int, table: RowTable) -> None:
        """table: has followed every plan before it is applied here."""
        self._table = table
        self._block_size = block_size
        self._filled = [0] * num_blocks
        """Leading slots of each block that have keys."""
        self._blocks: list[list[int] | None] = [None] * table.num_rows
        """Block ids of each row; None: not looked up yet."""
        self._starts = [0] * table.num_rows
        """Leading tokens of each row that have keys: drafting starts behind them."""
        self.changed: set[int] = set()
        """Rows whose start was set since their last chunk, see ``apply``."""

    def apply(self, plan: StepPlan) -> None:
        """Follow a plan's changes to rows and blocks. The slots that its chunks write have no keys
        of the network yet."""
        changed = self.changed
        if changed:
            changed.difference_update(plan.released_rows)
        if plan.admissions:
            self._admit(plan)
        for group, row, block_ids in plan.new_blocks:
            if group:
                continue  # The network's keys are in the first group's blocks.
            known = self._blocks[row]
            if known is not None:
                known += block_ids
            self._clear(block_ids)
        if not changed:
            return
        for chunk in plan.chunks:
            if chunk.row in changed:
                # Keys made for drafts are wrong where another token was sampled instead.
                self._cut(chunk.row, chunk.num_computed_tokens + 1)
                changed.remove(chunk.row)

    def follow(self, changes: Changes) -> None:
        """What plans changed that were not applied, during which the network made no keys, and no
        row was ``changed``. What a half-filled block was copied from is forgotten."""
        self._clear(changes.fresh)
        self._blocks = [None] * len(self._blocks)
        for row in changes.arrivals:
            # Not kept: the table has followed the next plan, too, whose blocks ``apply`` appends.
            # They do not count here, because a row begins with a fresh block at the latest.
            self._starts[row] = self._leading(self._table.blocks(row))

    def _clear(self, block_ids: Sequence[int]) -> None:
        """These blocks are handed out anew: they have no keys."""
        for block_id in block_ids:
            self._filled[block_id] = 0

    def _admit(self, plan: StepPlan) -> None:
        computed = {chunk.row: chunk.num_computed_tokens for chunk in plan.chunks}
        copied = {target: min(n, self._filled[s]) for s, target, n in plan.block_copies}
        swapped_in = {block_id for block_id, _ in plan.swap_ins}
        for admission in plan.admissions:
            num_shared = computed.get(admission.row, 0) // self._block_size
            blocks = list(admission.block_ids[0])
            for index, block_id in enumerate(blocks):
                if index >= num_shared or block_id in swapped_in:
                    self._filled[block_id] = copied.get(block_id, 0)
            self._blocks[admission.row] = blocks
            self._starts[admission.row] = self._leading(blocks)
            self.changed.add(admission.row)

    def _leading(self, blocks: Sequence[int]) -> int:
        """How many leading tokens in these blocks have keys."""
        count = 0
        for block_id in blocks:
            count += self._filled[block_id]
            if self._filled[block_id] < self._block_size:
                break
        return count

    def _blocks_of(self, row: int) -> list[int]:
        blocks = self._blocks[row]
        if blocks is None:
            blocks = self._blocks[row] = self._table.blocks(row)
        return blocks

    def _cut(self, row: int, end: int) -> None:
        if self._starts[row] > end:
            self._starts[row] = end

    def room(self, row: int) -> int:
        """Slots in the row's blocks."""
        return self._table.num_blocks(row) * self._block_size

    def start(self, row: int) -> int:
        """Leading tokens of the row that have keys."""
        return self._starts[row]

    def fill(self, rows: Ints, ends: Ints) -> None:
        """Keys of the tokens up to ``ends`` of each row are in the cache now."""
        self.changed.update(rows.tolist())
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            size, blocks = self._block_size, self._blocks_of(row)
            for index in range(self._starts[row] // size, -(-end // size)):
                self._filled[blocks[index]] = min(size, end - index * size)
            self._starts[row] = end
