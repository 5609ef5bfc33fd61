"""The most important first, and nobody waits forever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.scheduler.aging import aged_priority, outranked
from engine.scheduler.claim import Claim
from engine.scheduler.fcfs import FcfsPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.request import Request


class PriorityPolicy(FcfsPolicy):
    """Lower numbers first, as in vLLM; with aging, and with displacement.

    A waiting request displaces running ones of lower classes when rows or blocks are short. What
    was displaced keeps its arrival, so it returns to its place and goes on aging.
    """

    def __init__(self, aging_s: float) -> None:
        super().__init__()
        self._aging_s = aging_s

    def _key(self, request: Request) -> float:
        return aged_priority(request, self._aging_s)

    def claims(self, running: Iterable[Request]) -> Iterator[Claim]:
        head = self.head()
        if head is not None and (victims := outranked(head, running, self._aging_s)):
            yield Claim(head, victims, at_once=False)
