from __future__ import annotations

import pytest

from gateway.bench import refusals
from tests.postgres import BINDIR

pytestmark = [pytest.mark.pg, pytest.mark.asyncio, pytest.mark.nightly]


@pytest.mark.skipif(BINDIR is not None, reason="it starts the embedded PostgreSQL")
async def test_every_case_is_refused_as_it_says_and_has_a_cost() -> None:
    """Each answer's status is checked while it is measured."""
    costs = await refusals.run(0.5, 1)
    assert [one.name for one in costs] == [
        "floor",
        "401: no key",
        "401: an unknown key",
        "429: the rate of requests",
        "429: the rate, idempotency keys",
        "429: the month's budget",
    ]
    for one in costs:
        assert one.per_s > 0
        assert one.cpu_us > 0
