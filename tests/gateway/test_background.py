from __future__ import annotations

import asyncio

import pytest

from gateway.background import Background
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio


async def test_what_dies_or_ends_is_logged_and_begun_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts: list[str] = []

    async def dies() -> None:
        starts.append("dies")
        raise RuntimeError("no reason")

    async def ends() -> None:
        starts.append("ends")

    background = Background({"mortal": dies, "brief": ends}, restart_s=0.001)
    background.start()
    await until(lambda: starts.count("dies") > 2 and starts.count("ends") > 2)
    await background.stop()
    await background.stop()
    assert "mortal died; starting it again" in caplog.text
    assert "no reason" in caplog.text
    assert "brief ended; starting it again" in caplog.text
    assert not {task.get_name() for task in asyncio.all_tasks()} & {"mortal", "brief"}


async def test_stopping_waits_for_the_last_words(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    begun = asyncio.Event()

    async def tidy() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            said.append("bye")
            raise RuntimeError("could not say more")

    background = Background({"tidy": tidy}, restart_s=60)
    background.start()
    await begun.wait()
    stopping = asyncio.create_task(background.stop())
    await until(lambda: said)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert said == ["bye"]
    assert "could not say more" in caplog.text
