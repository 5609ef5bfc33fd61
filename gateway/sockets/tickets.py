"""One-time tickets, with which a web page opens a WebSocket without an API key in its URL.

Proxies log URLs, so what they contain must soon be worthless: a ticket works once, within
``LIFETIME_S``, and stands for the key that asked for it. It is in the memory of the worker that
issued it, which the other workers ask. So it works once among all workers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

import msgspec

from gateway.errors import InvalidApiKey, RateLimited
from gateway.peers.peers import PeerGone, Peers
from gateway.peers.routed_ids import mint, worker_of
from gateway.peers.wire import RedeemTicket

LIFETIME_S = 30.0
MAX_TICKETS_PER_KEY = 100
"""The most unused tickets of one key."""


class _Issued(msgspec.Struct, frozen=True):
    api_key: str
    expires_at: float
    """By the event loop's clock."""


class Tickets:
    """The issued and unused tickets; only their digests are kept."""

    def __init__(self, peers: Peers, *, lifetime_s: float = LIFETIME_S) -> None:
        self.lifetime_s = lifetime_s
        self._peers = peers
        peers.answer(RedeemTicket, self._redeem_for_peer)
        self._issued: OrderedDict[bytes, _Issued] = OrderedDict()  # soonest to expire first
        self._num_of_key: dict[str, int] = {}

    def issue(self, api_key: str) -> str:
        """A new ticket for ``api_key``, which must have been authenticated. Raises
        ``RateLimited``."""
        self._expire()
        if self._num_of_key.get(api_key, 0) >= MAX_TICKETS_PER_KEY:
            raise RateLimited(
                f"This API key has {MAX_TICKETS_PER_KEY} unused tickets already.",
                code="too_many_tickets",
                retry_after_s=self.lifetime_s,
            )
        ticket = mint("ticket", self._peers.worker_id)
        self._num_of_key[api_key] = self._num_of_key.get(api_key, 0) + 1
        self._issued[_digest(ticket)] = _Issued(api_key, self._now() + self.lifetime_s)
        return ticket

    async def redeem(self, ticket: str) -> str:
        """Use a ticket up, and return the API key that it stands for.

        Raises ``InvalidApiKey`` in the same words whether it is unknown, used or expired.
        """
        worker_id = worker_of(ticket)
        if worker_id in (None, self._peers.worker_id):
            return self._redeem(ticket)
        assert worker_id is not None
        try:
            return (await self._peers.ask(worker_id, RedeemTicket(ticket))).decode()
        except PeerGone:
            raise _no_such_ticket() from None

    def _redeem(self, ticket: str) -> str:
        self._expire()
        issued = self._remove(_digest(ticket))
        if issued is None:
            raise _no_such_ticket()
        return issued.api_key

    async def _redeem_for_peer(self, wanted: RedeemTicket) -> bytes:
        return self._redeem(wanted.ticket).encode()

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


def _no_such_ticket() -> InvalidApiKey:
    return InvalidApiKey("The ticket is unknown, used or expired; ask for another.")
