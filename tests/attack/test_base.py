"""The base of all attacks holds what it promises: harm is felt, and calm is none."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.attack.neighbour import Api, Neighbour, Watch
from tests.attack.serving import Deployment


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database, replay_tokens_per_s=20) as deployment:
        yield deployment


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("api", ["chat", "responses", "websocket"])
async def test_a_worker_that_stands_still_is_felt_and_calm_is_not(
    deployment: Deployment, api: Api
) -> None:
    member = deployment.member(f"calm {api}")
    async with Neighbour(deployment, member.key, api=api) as neighbour:
        calm = await neighbour.watch_for(4)
        (await neighbour.watch_for(4)).assert_unharmed(calm, ttft_times=4)
        async with neighbour.watch() as attacked:
            for worker in deployment.workers():
                worker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)
            for worker in deployment.workers():
                worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(2)
    assert max(attacked.gaps_s) > 1
    with pytest.raises(AssertionError, match="under attack"):
        attacked.assert_unharmed(calm)
    assert (await deployment.settled(member)).completion_tokens > len(attacked.gaps_s)


def test_longer_gaps_are_harm_unless_the_machine_made_them() -> None:
    calm = Watch(gaps_s=[0.05] * 100, ttfts_s=[0.01], lags_s=[0.001])
    Watch(gaps_s=[0.09] * 100, lags_s=[0.001]).assert_unharmed(calm)
    for harmed in (
        Watch(gaps_s=[0.11] * 100, lags_s=[0.001]),
        Watch(gaps_s=[*[0.05] * 100, 0.3], lags_s=[0.001]),
        Watch(gaps_s=[0.05] * 100, lags_s=[0.001], errors=["refused"]),
        Watch(gaps_s=[0.05] * 10, lags_s=[0.001]),
    ):
        with pytest.raises(AssertionError, match="under attack"):
            harmed.assert_unharmed(calm)
    Watch(gaps_s=[0.11] * 100, lags_s=[0.02]).assert_unharmed(calm)
