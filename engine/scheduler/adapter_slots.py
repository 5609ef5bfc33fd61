"""Requests that wait for an adapter slot, because running requests use all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


MAX_HELD = 128
"""The most requests that wait here. Whenever a slot becomes free all of them return to the queue,
and most of them come back."""


class AdapterSlotQueue:
    """Sets requests aside, so that requests without an adapter can be admitted before them.

    Adapters with the same content count as one, whatever their names. While requests wait here, no
    other request with an adapter is admitted, even if that adapter is loaded: otherwise requests of
    two adapters could alternate forever, and those of a third would never run."""

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._held: dict[Request, None] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._held

    def __len__(self) -> int:
        return len(self._held)

    def must_wait(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether a request must wait for a slot. running: the requests that occupy the slots."""
        if self._held and request.adapter_digest:
            return True
        return self.lacks_slot(request, running)

    def lacks_slot(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether the requests that run occupy all slots, with other adapters than this one's."""
        digest = request.adapter_digest
        if not digest:
            return False
        in_use = {other.adapter_digest for other in running} - {"", digest}
        return len(in_use) >= self._max_loras

    def hold(self, request: Request) -> bool:
        """Set the request aside; False if too many wait already."""
        if len(self._held) >= MAX_HELD:
            return False
        self._held[request] = None
        return True

    def discard(self, request: Request) -> None:
        del self._held[request]

    def take_oldest(self) -> list[Request]:
        """The oldest request of each tenant, which waits here no more."""
        oldest: dict[str, Request] = {}
        for request in self._held:
            other = oldest.get(request.fair_key)
            if other is None or request.arrival < other.arrival:
                oldest[request.fair_key] = request
        for request in oldest.values():
            del self._held[request]
        return list(oldest.values())

    def release(self, running: Iterable[Request]) -> list[Request]:
        """All requests set aside, once a slot is free; the policy decides which goes first."""
        if not self._held:
            return []
        if len({other.adapter_digest for other in running} - {""}) >= self._max_loras:
            return []
        released = list(self._held)
        self._held.clear()
        return released
