"""What happened to rows while no drafts were made, to be followed once some are wanted.

Most requests of such a time have come and gone by then, so next to nothing is kept of them: which
blocks a row has is looked up in the row table, when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.scheduler.plan import StepPlan

# The blocks that were handed out are listed until there are so many; then each is kept once, until
# there are twice as many as that leaves.
_MANY_BLOCKS = 8192


@dataclass(slots=True)
class Changes:
    """How rows differ from what they were, apart from the blocks that they got."""

    arrivals: Mapping[int, int] = field(default_factory=dict)
    """The rows that requests took, and how many tokens the last one was admitted with. It may be
    gone."""
    fresh: Sequence[int] = ()
    """Blocks that were handed out anew, some of them several times."""


class RowChanges:
    """Sums up plans."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._arrivals: dict[int, int] = {}
        self._fresh: list[int] = []
        self._many = _MANY_BLOCKS
        self.is_empty = True

    def note(self, plan: StepPlan) -> None:
        """Add a plan without drafts in which rows get blocks."""
        self.is_empty = False
        if plan.admissions:
            self._admit(plan)
        for group, _, block_ids in plan.new_blocks:
            if not group:  # The network's keys are in the first group's blocks.
                self._fresh += block_ids

    def _admit(self, plan: StepPlan) -> None:
        # The chunks of newcomers are the last ones. Were one not found, its blocks would count as
        # new, and the network would make keys that are there.
        chunks = plan.chunks[-len(plan.admissions) :]
        # Nothing that was swapped in counts as shared: it has no keys of the network.
        computed = {} if plan.swap_ins else {c.row: c.num_computed_tokens for c in chunks}
        arrivals, fresh, block_size = self._arrivals, self._fresh, self._block_size
        for admission in plan.admissions:
            row = admission.row
            arrivals[row] = len(admission.token_ids)
            fresh += admission.block_ids[0][computed.get(row, 0) // block_size :]
        if len(fresh) > self._many:
            self._fresh = list(set(fresh))
            self._many = max(_MANY_BLOCKS, 2 * len(self._fresh))

    def take(self) -> Changes:
        """Returns and forgets all changes."""
        changes = Changes(self._arrivals, self._fresh)
        self._arrivals, self._fresh = {}, []
        self.is_empty = True
        return changes
