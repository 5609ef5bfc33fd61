from __future__ import annotations

import asyncio

import pytest

from gateway.errors import InvalidApiKey, RateLimited
from gateway.sockets.tickets import LIFETIME_S, MAX_TICKETS_PER_KEY, Tickets
from tests.gateway.peering import listening, make_peers
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio


async def test_a_ticket_works_once_and_for_its_own_key() -> None:
    tickets = Tickets(make_peers())
    mine, theirs = tickets.issue("mine"), tickets.issue("theirs")
    assert await tickets.redeem(theirs) == "theirs"
    assert await tickets.redeem(mine) == "mine"
    for used in (mine, theirs, "", "ticket_x"):
        with pytest.raises(InvalidApiKey):
            await tickets.redeem(used)


async def test_a_ticket_expires() -> None:
    assert Tickets(make_peers()).lifetime_s == LIFETIME_S == 30
    tickets = Tickets(make_peers(), lifetime_s=0.05)
    ticket = tickets.issue("k")
    await asyncio.sleep(0.1)
    with pytest.raises(InvalidApiKey):
        await tickets.redeem(ticket)


async def test_unused_tickets_are_bounded_for_each_key() -> None:
    tickets = Tickets(make_peers(), lifetime_s=1.0)
    issued = [tickets.issue("k") for _ in range(MAX_TICKETS_PER_KEY)]
    assert len(set(issued)) == MAX_TICKETS_PER_KEY
    with pytest.raises(RateLimited):
        tickets.issue("k")
    tickets.issue("other")
    await tickets.redeem(issued[0])
    tickets.issue("k")
    await asyncio.sleep(1.1)  # expired ones no longer count
    for _ in range(MAX_TICKETS_PER_KEY):
        tickets.issue("k")


async def test_tickets_are_not_kept_as_they_are() -> None:
    tickets = Tickets(make_peers())
    ticket = tickets.issue("k")
    assert ticket not in repr(vars(tickets))


async def test_a_ticket_is_good_at_any_worker_and_once_among_them() -> None:
    shared = MemoryStore().shared
    here, there = make_peers(shared), make_peers(shared)
    async with listening(here, shared), listening(there, shared):
        issuing, other = Tickets(here), Tickets(there)
        tickets = [issuing.issue("k") for _ in range(10)]
        for ticket in tickets:
            answers = await asyncio.gather(
                *(tickets.redeem(ticket) for tickets in (issuing, other, other)),
                return_exceptions=True,
            )
            assert [answer for answer in answers if answer == "k"] == ["k"]
            assert sum(isinstance(answer, InvalidApiKey) for answer in answers) == 2
        left = issuing.issue("k")
    with pytest.raises(InvalidApiKey):
        await other.redeem(left)  # its worker has left, and with it the ticket
