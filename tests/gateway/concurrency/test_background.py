from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency.background import Background
from tests.gateway.loop_clock import LoopClock
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


async def test_it_backs_off_and_tells_each_cause_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    began_at: list[float] = []
    begun = clock.now
    is_well = False

    async def dies() -> None:
        began_at.append(clock.now - begun)
        if is_well:
            await asyncio.sleep(3600)
        if len(began_at) % 2:
            raise RuntimeError(f"at {clock.now}")
        raise OSError("disk full")

    background = Background({"mortal": dies})
    background.start()
    await clock.go_on(0)
    for _ in range(64 * 2):
        await clock.go_on(0.5)
    assert began_at == pytest.approx([0, 1, 3, 7, 15, 25, 35, 45, 55])
    assert background.down == ["mortal"]
    assert background.num_deaths == {"mortal": 9}
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in tracebacks] == ["mortal died; starting it again"] * 2
    told = [record.getMessage() for record in caplog.records if not record.exc_info]
    assert told[0].startswith("mortal died again; starting it again: at ")
    assert len(told) < 5, "ever less often"

    is_well = True
    await clock.go_on(5)
    assert background.down == ["mortal"], "it may not run for long"
    await clock.go_on(12)
    assert background.down == []
    assert "mortal runs again" in caplog.text
    await background.stop()


async def test_what_dies_after_a_long_time_is_started_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LoopClock(monkeypatch)
    num_begun = 0

    async def lives_a_while() -> None:
        nonlocal num_begun
        num_begun += 1
        await asyncio.sleep(30)
        raise RuntimeError("tired")

    background = Background({"brief": lives_a_while})
    background.start()
    await clock.go_on(0)
    for _ in range(4 * 31 * 2):
        await clock.go_on(0.5)
        assert background.down == []
    assert num_begun == 1 + 4
    await background.stop()
