"""Which requests generate in a step of a model in stages, which compute several steps at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from engine.request import Request
    from engine.scheduler.step import Step


class Turn:
    """A part of the requests, as large as those of the other steps, so that all stages have as much
    to do; and none whose next token a step before is still to sample."""

    def __init__(
        self, running: Collection[Request], newest: Iterable[Step], num_stages: int
    ) -> None:
        """newest: the steps that other stages compute meanwhile."""
        self._awaited = {
            request
            for step in newest
            for request, chunk in zip(step.requests, step.plan.chunks, strict=True)
            if chunk.samples
        }
        self._num_left = -(-len(running) // num_stages)

    def takes(self, request: Request, num_tokens: int) -> bool:
        """num_tokens: known ones that are not computed; of a prompt several."""
        if request in self._awaited or (num_tokens == 1 and not self._num_left):
            return False
        self._num_left -= num_tokens == 1
        return True
