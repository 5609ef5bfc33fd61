"""Requests that wait for a block that a step in flight computes for another request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


class Followers:
    """The waiting requests, by the key of the block.

    Without this, requests that arrive together and share a prompt (the branches of one request, or
    a burst of requests with one system prompt) would each compute it."""

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
        """Whether a step in flight computes the block with this key."""
        return key in self._by_key

    def hold(self, request: Request, key: bytes) -> None:
        """Let a request wait for the block with this key."""
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
