from __future__ import annotations

import asyncio

import pytest

from gateway.errors import InvalidApiKey, RateLimited
from gateway.tickets import LIFETIME_S, MAX_TICKETS_PER_KEY, Tickets

pytestmark = pytest.mark.asyncio


async def test_a_ticket_works_once_and_for_its_own_key() -> None:
    tickets = Tickets()
    mine, theirs = tickets.issue("mine"), tickets.issue("theirs")
    assert tickets.redeem(theirs) == "theirs"
    assert tickets.redeem(mine) == "mine"
    for used in (mine, theirs, "", "ticket_x"):
        with pytest.raises(InvalidApiKey):
            tickets.redeem(used)


async def test_a_ticket_expires() -> None:
    assert Tickets().lifetime_s == LIFETIME_S == 30
    tickets = Tickets(lifetime_s=0.05)
    ticket = tickets.issue("k")
    await asyncio.sleep(0.1)
    with pytest.raises(InvalidApiKey):
        tickets.redeem(ticket)


async def test_unused_tickets_are_bounded_for_each_key() -> None:
    tickets = Tickets(lifetime_s=0.05)
    issued = [tickets.issue("k") for _ in range(MAX_TICKETS_PER_KEY)]
    assert len(set(issued)) == MAX_TICKETS_PER_KEY
    with pytest.raises(RateLimited):
        tickets.issue("k")
    tickets.issue("other")
    tickets.redeem(issued[0])
    tickets.issue("k")
    await asyncio.sleep(0.1)  # expired ones no longer count
    for _ in range(MAX_TICKETS_PER_KEY):
        tickets.issue("k")


async def test_tickets_are_not_kept_as_they_are() -> None:
    tickets = Tickets()
    ticket = tickets.issue("k")
    assert ticket not in repr(vars(tickets))
