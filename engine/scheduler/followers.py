"""Requests that wait a step because another one is computing the block they need next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


class Followers:
    """Keyed by the block that a step in flight computes.

    Without this, requests that share a prompt and arrive together (the branches of one request, a
    burst behind a common system prompt) would all compute it, each on its own.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, list[Request]] = {}
        self._key_of: dict[Request, bytes] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, request: Request) -> bool:
        return request in self._key_of

    def expect(self, keys: Iterable[bytes]) -> None:
        """Note that a step in flight computes the blocks with these keys."""
        for key in keys:
            self._by_key.setdefault(key, [])

    def expects(self, key: bytes) -> bool:
        return key in self._by_key

    def hold(self, request: Request, key: bytes) -> None:
        self._by_key[key].append(request)
        self._key_of[request] = key

    def discard(self, request: Request) -> None:
        self._by_key[self._key_of.pop(request)].remove(request)

    def release(self, keys: Iterable[bytes]) -> list[Request]:
        """The step is over: returns the requests that waited for its blocks."""
        released = []
        for key in keys:
            # Two requests of one step may have computed the same block.
            for request in self._by_key.pop(key, ()):
                del self._key_of[request]
                released.append(request)
        return released
