"""PostgreSQL goes away and comes back, under a gateway that serves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import migrations
from tenants.embedded import EmbeddedPostgres
from tenants.keys import mint
from tests.gateway.raw_http import Answer, exchange, get, post
from tests.gateway.serving import SECRETS, chat_body, encode, until
from tests.gateway.test_limits import Site, metrics, site
from tests.postgres import FAST, pg_folder

__all__ = ["pg_folder"]

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]


@pytest_asyncio.fixture
async def server(pg_folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A server this test may stop and start."""
    server = EmbeddedPostgres(pg_folder, settings=FAST)
    await migrations.upgrade(await asyncio.to_thread(server.start))
    yield server
    await asyncio.to_thread(server.stop)


async def ask(here: Site, key: str | None = None) -> Answer:
    body = encode(chat_body(max_tokens=20))
    return await exchange(here.gateway, post(here.gateway, body, key=key))


def age_s(here: Site) -> float:
    found = re.search(rb"^sluice_changes_age_seconds (\S+)", metrics(here.gateway), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_known_keys_go_on_within_bounds_and_nothing_is_lost(
    model_dir: Path, server: EmbeddedPostgres
) -> None:
    async with site(model_dir, await asyncio.to_thread(server.start)) as here:
        await here.limit(requests_per_minute=4, max_concurrent=50)
        unseen = await here.make_key()
        first = await ask(here)
        assert first.status == 200
        await here.gateway.usage(1)
        await here.gateway.app.state.services.quota.refresh()
        await asyncio.to_thread(server.stop)
        await until(lambda: age_s(here) > 1.5)

        # The listener is lost, so nothing that is cached is trusted, yet nobody can be asked.
        assert [(await ask(here)).status for _ in range(3)] == [200, 200, 200]
        spent = await ask(here)
        assert spent.status == 429
        assert spent.error["code"] == "rate_limit_exceeded"
        assert int(spent.headers["retry-after"]) >= 1
        for stranger in (unseen, mint(SECRETS.key_pepper).text):
            refused = await ask(here, stranger)
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
        ready = await get(here.gateway, "/readyz")
        assert (ready.status, ready.json()["store"]) == (200, "away")

        away_s = age_s(here)
        await asyncio.to_thread(server.start)
        await until(lambda: b"sluice_changes_connects_total 2.0" in metrics(here.gateway))
        await until(lambda: age_s(here) < away_s)
        await here.limit(requests_per_minute=1000, max_concurrent=50)

        async def is_served() -> bool:
            return (await ask(here, unseen)).status == 200

        await until(is_served)
        totals = await here.gateway.usage(5)
        assert totals.requests >= 5
        assert (await ask(here)).status == 200
