"""Which computed tokens no feature was kept of."""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduler.plan import StepPlan


class FeatureHoles:
    """Host-side bookkeeping, by row. While steps keep nothing it costs nothing: what they computed
    is looked up when the next one keeps something.

    A block that another request inherits may have holes that nobody knows of. What stands there is
    the feature of an older token, with which drafts are wrong more often.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        """Tokens that each row began with, of which features are kept in any case."""
        self._begun: dict[int, int] = {}
        """Where the hole of a row begins that may still grow."""
        self._is_growing = False
        self._holes: dict[int, list[tuple[int, int]]] = {}
        """Places from the first up to the second, of each row, in their order."""

    def apply(self, plan: StepPlan) -> None:
        """Hear of a plan before its forward pass."""
        for row in plan.released_rows:
            self._known.pop(row, None)
            self._begun.pop(row, None)
            self._holes.pop(row, None)
        for admission in plan.admissions:
            self._known[admission.row] = len(admission.token_ids)
            if self._is_growing:
                self._begun[admission.row] = len(admission.token_ids)
        if plan.keeps_features:
            self._is_growing = False
            if self._begun:
                self._end(plan)
        elif not self._is_growing:
            self._is_growing = True
            for chunk in plan.chunks:
                known = max(chunk.num_computed_tokens, self._known.get(chunk.row, 0))
                self._begun.setdefault(chunk.row, known)

    def _end(self, plan: StepPlan) -> None:
        """Of the rows that have a chunk in this plan."""
        for chunk in plan.chunks:
            start = self._begun.pop(chunk.row, None)
            if start is not None and start < chunk.num_computed_tokens:
                self._holes.setdefault(chunk.row, []).append((start, chunk.num_computed_tokens))

    def take(self, rows: Sequence[int]) -> list[tuple[int, int, int]]:
        """(row, first place, place behind the last) of each hole of these rows; told once."""
        if not self._holes:
            return []
        return [(row, *hole) for row in rows for hole in self._holes.pop(row, ())]
