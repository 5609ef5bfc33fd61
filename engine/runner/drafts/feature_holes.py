"""Which computed tokens have no feature in the cache, because their step kept none."""

from __future__ import annotations

from collections.abc import Sequence

from engine.runner.drafts.row_changes import Changes
from engine.scheduler.plan import StepPlan


class FeatureHoles:
    """Keeps the ranges of such tokens for each row, on the host. It does nothing in steps that keep
    no features but the first: the range follows from the next step that keeps some.

    When a block with such a range is reused for a cached prefix, the range is forgotten. Its slots
    then hold features of older tokens, and drafts are accepted less often.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        """Tokens that each row was admitted with. Features of these are always kept."""
        self._begun: dict[int, int] = {}
        """The start of the open range of a row."""
        self.are_open = False
        """Whether the last step kept no features, so that ranges are open."""
        self._holes: dict[int, list[tuple[int, int]]] = {}
        """The closed ranges [start, end) of each row, in ascending order."""

    def follow(self, changes: Changes) -> None:
        """What plans changed that were not applied, which is allowed while ranges ``are_open``, of
        plans that close none."""
        for row, num_tokens in changes.arrivals.items():
            self._release(row)
            self._known[row] = self._begun[row] = num_tokens

    def _release(self, row: int) -> None:
        self._known.pop(row, None)
        self._begun.pop(row, None)
        self._holes.pop(row, None)

    def apply(self, plan: StepPlan) -> None:
        """Follow a plan, before its forward pass."""
        for row in plan.released_rows:
            self._release(row)
        for admission in plan.admissions:
            self._release(
                admission.row
            )  # Plans that were not followed told the end of the one before.
            self._known[admission.row] = len(admission.token_ids)
            if self.are_open:
                self._begun[admission.row] = len(admission.token_ids)
        if plan.keeps_features:
            self.are_open = False
            if self._begun:
                self._end(plan)
        elif not self.are_open:
            self.are_open = True
            for chunk in plan.chunks:
                known = max(chunk.num_computed_tokens, self._known.get(chunk.row, 0))
                self._begun.setdefault(chunk.row, known)

    def _end(self, plan: StepPlan) -> None:
        """Close the open ranges of the rows that have a chunk in this plan."""
        for chunk in plan.chunks:
            start = self._begun.pop(chunk.row, None)
            if start is not None and start < chunk.num_computed_tokens:
                self._holes.setdefault(chunk.row, []).append((start, chunk.num_computed_tokens))

    def take(self, rows: Sequence[int]) -> list[tuple[int, int, int]]:
        """Returns and forgets the ranges of these rows: (row, start, end) of each."""
        if not self._holes:
            return []
        return [(row, *hole) for row in rows for hole in self._holes.pop(row, ())]
