"""Requests that wait because running ones have as many other adapters as there are slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


MAX_HELD = 128
"""Each comes back to the queue, and mostly here again, whenever a slot becomes free."""


class AdapterSlotQueue:
    """They stand aside, so that requests without an adapter pass them.

    Adapters of one content are one, whatever they are called.

    Requests with one do not, be their adapter in use or not: else the requests of two adapters
    could take turns for ever, and those of a third would never run.
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
        """Let it stand aside; False where too many do already."""
        if len(self._held) >= MAX_HELD:
            return False
        self._held[request] = None
        return True

    def discard(self, request: Request) -> None:
        del self._held[request]

    def release(self, running: Iterable[Request]) -> list[Request]:
        """All of them once a slot is free: which goes first is for the policy to say."""
        if not self._held:
            return []
        if len({other.adapter_digest for other in running} - {""}) >= self._max_loras:
            return []
        released = list(self._held)
        self._held.clear()
        return released
