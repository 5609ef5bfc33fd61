"""One-time tickets: how a web page opens a WebSocket without an API key in its URL.

URLs are logged by whatever lies between, so what stands there must be worthless at once: a ticket
works once, within ``LIFETIME_S``, and only as the key that asked for it. Tickets live in this
process's memory: one is good at the worker that issued it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict

import msgspec

from gateway.errors import InvalidApiKey, RateLimited

LIFETIME_S = 30.0
MAX_TICKETS_PER_KEY = 100
"""Unused ones at a time."""


class _Issued(msgspec.Struct, frozen=True):
    api_key: str
    expires_at: float
    """On the event loop's clock."""


class Tickets:
    """Issued and not yet used. Of the ticket itself only a digest is kept."""

    def __init__(self, *, lifetime_s: float = LIFETIME_S) -> None:
        self.lifetime_s = lifetime_s
        self._issued: OrderedDict[bytes, _Issued] = OrderedDict()  # soonest to expire first
        self._num_of_key: dict[str, int] = {}

    def issue(self, api_key: str) -> str:
        """A ticket for ``api_key``, which must have been checked. Raises ``RateLimited``."""
        self._expire()
        if self._num_of_key.get(api_key, 0) >= MAX_TICKETS_PER_KEY:
            raise RateLimited(
                f"This API key has {MAX_TICKETS_PER_KEY} unused tickets already.",
                code="too_many_tickets",
                retry_after_s=self.lifetime_s,
            )
        ticket = f"ticket_{secrets.token_urlsafe(24)}"
        self._num_of_key[api_key] = self._num_of_key.get(api_key, 0) + 1
        self._issued[_digest(ticket)] = _Issued(api_key, self._now() + self.lifetime_s)
        return ticket

    def redeem(self, ticket: str) -> str:
        """The API key that ``ticket`` stands for, once.

        Raises ``InvalidApiKey`` when it is unknown, used or expired: which one is not told.
        """
        self._expire()
        issued = self._remove(_digest(ticket))
        if issued is None:
            raise InvalidApiKey("The ticket is unknown, used or expired; ask for another.")
        return issued.api_key

    def _expire(self) -> None:
        now = self._now()
        while self._issued:
            digest, issued = next(iter(self._issued.items()))
            if issued.expires_at > now:
                return
            self._remove(digest)

    def _remove(self, digest: bytes) -> _Issued | None:
        issued = self._issued.pop(digest, None)
        if issued is not None:
            self._num_of_key[issued.api_key] -= 1
            if not self._num_of_key[issued.api_key]:
                del self._num_of_key[issued.api_key]
        return issued

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _digest(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode()).digest()
