"""Connections without a key that send as much as the server reads, beside a neighbour's streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.attack.flooding import KINDS, Kind, flooding
from tests.attack.neighbour import Neighbour
from tests.attack.serving import Deployment

WATCH_S = 6.0


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database, replay_tokens_per_s=20) as deployment:
        yield deployment


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_neighbour_hardly_feels_a_flood(deployment: Deployment, kind: Kind) -> None:
    member = deployment.member(f"beside {kind}")
    url = urlsplit(deployment.url)
    assert url.hostname is not None
    assert url.port is not None
    pids = {worker.pid for worker in deployment.workers()}
    async with Neighbour(deployment, member.key) as neighbour:
        calm = await neighbour.watch_for(WATCH_S)
        # All connections come at the same moment: it counts, too.
        async with neighbour.watch() as attacked, flooding(url.hostname, url.port, kind):
            await asyncio.sleep(WATCH_S)
        print(kind, "calm", calm, "attacked", attacked)
        attacked.assert_unharmed(calm)
    assert {worker.pid for worker in deployment.workers()} == pids
