"""Requests that wait for a block that a step in flight computes for another request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.request import Request


class PrefixWaits:
    """The waiting requests, by the key of the block.

    Without this, requests that arrive together and share a prompt (the branches of one request, or
    a burst of requests with one system prompt) would each compute it."""

    def __init__(self) -> None:
        self._expected: set[bytes] = set()
        self._by_key: dict[bytes, list[Request]] = {}
        self._key_of: dict[Request, bytes] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, request: Request) -> bool:
        return request in self._key_of

    def expect(self, keys: Iterable[bytes]) -> None:
        """Note that a step in flight computes the blocks with these keys."""
        self._expected.update(keys)

    def expects(self, key: bytes) -> bool:
        """Whether a step in flight computes the block with this key."""
        return key in self._expected

    def hold(self, request: Request, key: bytes) -> None:
        """Let a request wait for the block with this key, which is expected."""
        assert key in self._expected, f"{request.request_id} would wait forever"
        self._by_key.setdefault(key, []).append(request)
        self._key_of[request] = key

    def discard(self, request: Request) -> None:
        key = self._key_of.pop(request)
        waiting = self._by_key[key]
        waiting.remove(request)
        if not waiting:
            del self._by_key[key]

    def release(self, keys: Sequence[bytes]) -> list[Request]:
        """The step is over: returns the requests that waited for its blocks."""
        # Two requests of one step, or two steps, may have computed the same block.
        self._expected.difference_update(keys)
        released: list[Request] = []
        if not self._by_key:
            return released  # Most steps: nobody waits for any of their many blocks.
        for key in keys:
            for request in self._by_key.pop(key, ()):
                del self._key_of[request]
                released.append(request)
        return released
