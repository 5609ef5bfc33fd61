"""Requests that wait for an adapter slot: running requests use as many other adapters as there
are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


MAX_HELD = 128
"""Bound on those that wait here: each returns to the queue, and mostly comes back, whenever a slot
becomes free."""


class AdapterSlotQueue:
    """Requests stand aside here, so that requests without an adapter can pass them.

    Adapters with the same content count as one, whatever their names. Requests with an adapter do
    not pass those that wait, even if theirs is loaded: otherwise the requests of two adapters could
    take turns for ever, and those of a third would never run.
    """

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._held: dict[Request, None] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._held

    def lacking(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether it has to wait for a slot."""
        digest = request.adapter_digest
        if not digest or self._held:
            return bool(digest)
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

    def release(self, running: Iterable[Request]) -> list[Request]:
        """All requests set aside, once a slot is free; the policy decides which goes first."""
        if not self._held:
            return []
        if len({other.adapter_digest for other in running} - {""}) >= self._max_loras:
            return []
        released = list(self._held)
        self._held.clear()
        return released
