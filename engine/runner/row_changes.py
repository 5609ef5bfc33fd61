"""What happened to rows while no drafts were made, to be followed once some are wanted.

Most requests of such a time have come and gone by then, so next to nothing is kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.scheduler.plan import StepPlan

# The blocks that were handed out are listed until there are so many; then each is kept once, until
# there are twice as many as that leaves.
_MANY_BLOCKS = 8192


class Arrival(NamedTuple):
    """A request took a row."""

    block_ids: Sequence[int]
    num_tokens: int
    """That it was admitted with."""


@dataclass(slots=True)
class Changes:
    """How rows differ from what they were."""

    released: set[int] = field(default_factory=set)
    """Rows whose requests are gone. Others may have taken them since."""
    arrivals: Mapping[int, Arrival] = field(default_factory=dict)
    """The requests that took a row and still have it, by row."""
    grown: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By row: the blocks that it got, behind those that it had or arrived with."""
    fresh: Sequence[int] = ()
    """Blocks that were handed out anew, some of them several times."""


class RowChanges:
    """Sums up plans."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._released: set[int] = set()
        self._arrivals: dict[int, Arrival] = {}
        self._grown: dict[int, list[int]] = {}
        self._fresh: list[int] = []
        self._many = _MANY_BLOCKS
        self.is_empty = True

    def note(self, plan: StepPlan) -> None:
        """Add a plan without drafts that changes rows."""
        self.is_empty = False
        for row in plan.released_rows:
            self._released.add(row)
            self._arrivals.pop(row, None)
            self._grown.pop(row, None)
        if plan.admissions:
            self._admit(plan)
        for row, block_ids in plan.new_blocks:
            self._fresh += block_ids
            if row in self._grown:
                self._grown[row] += block_ids
            else:
                self._grown[row] = list(block_ids)

    def _admit(self, plan: StepPlan) -> None:
        computed = {chunk.row: chunk.num_computed_tokens for chunk in plan.chunks}
        for admission in plan.admissions:
            row, block_ids = admission.row, admission.block_ids
            self._arrivals[row] = Arrival(block_ids, len(admission.token_ids))
            # Nothing that was swapped in counts as shared: it has no keys of the network.
            num_shared = 0 if plan.swap_ins else computed.get(row, 0) // self._block_size
            self._fresh += block_ids[num_shared:]
        if len(self._fresh) > self._many:
            self._fresh = list(set(self._fresh))
            self._many = max(_MANY_BLOCKS, 2 * len(self._fresh))

    def take(self) -> Changes:
        """Returns and forgets all changes."""
        changes = Changes(self._released, self._arrivals, self._grown, self._fresh)
        self._released, self._arrivals, self._grown, self._fresh = set(), {}, {}, []
        self.is_empty = True
        return changes
