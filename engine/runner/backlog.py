"""What happened to rows while no drafts were made, to be followed once some are wanted.

Most requests of such a time have come and gone by then, so what would be kept of them for the
network is kept of few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from engine.scheduler.plan import StepPlan


class Arrival(NamedTuple):
    """A request took a row."""

    row: int
    block_ids: Sequence[int]
    num_shared: int
    """Leading blocks that it took over from others."""
    num_tokens: int
    """That it was admitted with."""


Growth: TypeAlias = tuple[int, list[int]]
"""(row, block ids) of ``StepPlan.new_blocks``."""

Event: TypeAlias = int | Arrival | Growth
"""An int is a row that was released."""


class Backlog:
    """The events of past plans, in their order."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def note(self, plan: StepPlan) -> None:
        """Add the events of a plan without drafts."""
        events = self._events
        if plan.released_rows:
            events += plan.released_rows
        if plan.admissions:
            computed = {chunk.row: chunk.num_computed_tokens for chunk in plan.chunks}
            size = self._block_size
            for admission in plan.admissions:
                row = admission.row
                # What was swapped in has no keys of the network: nothing counts as taken over.
                num_shared = 0 if plan.swap_ins else computed.get(row, 0) // size
                events.append(
                    Arrival(row, admission.block_ids, num_shared, len(admission.token_ids))
                )
        if plan.new_blocks:
            events += plan.new_blocks

    def take(self) -> Sequence[Event]:
        """Returns and forgets the events."""
        events, self._events = self._events, []
        return events
