from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tenants.lanes import Lanes

pytestmark = pytest.mark.asyncio


class Begun:
    """Work by name, done when a test says so."""

    def __init__(self) -> None:
        self.work: dict[str, concurrent.futures.Future[str]] = {}

    def start(self, name: str) -> Callable[[], concurrent.futures.Future[str]]:
        def begin() -> concurrent.futures.Future[str]:
            self.work[name] = concurrent.futures.Future()
            self.work[name].set_running_or_notify_cancel()
            return self.work[name]

        return begin

    async def have(self, *names: str) -> None:
        """Exactly this work has begun."""
        for _ in range(3):
            await asyncio.sleep(0)
        assert list(self.work) == list(names)


async def test_turns_of_one_tenant_come_one_by_one_and_others_pass() -> None:
    lanes, begun, busy, quiet = Lanes(), Begun(), uuid4(), uuid4()
    tasks = [asyncio.create_task(lanes.run(busy, begun.start(name))) for name in "abc"]
    await begun.have("a")
    passing = asyncio.create_task(lanes.run(quiet, begun.start("quiet")))
    await begun.have("a", "quiet")
    begun.work["quiet"].set_result("passed")
    assert await passing == "passed"
    assert len(lanes) == 1
    for name, task in zip("abc", tasks, strict=True):
        begun.work[name].set_result(name)
        assert await task == name
    assert len(lanes) == 0


async def test_errors_are_the_callers_and_end_the_turn() -> None:
    lanes, tenant = Lanes(), uuid4()

    def refuse() -> concurrent.futures.Future[None]:
        raise ValueError("not begun")

    failed: concurrent.futures.Future[None] = concurrent.futures.Future()
    failed.set_exception(ValueError("failed"))
    for start, message in ((refuse, "not begun"), (lambda: failed, "failed")):
        with pytest.raises(ValueError, match=message):
            await lanes.run(tenant, start)
    await asyncio.sleep(0)
    assert len(lanes) == 0


async def test_who_leaves_keeps_its_turn_as_long_as_its_work() -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    lanes, begun, tenant = Lanes(), Begun(), uuid4()
    left, waited, back = (
        asyncio.create_task(lanes.run(tenant, begun.start(name)))
        for name in ("left", "waited", "back")
    )
    await begun.have("left")
    for task in (left, waited):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await begun.have("left")
    begun.work["left"].set_exception(ValueError("nobody hears it"))
    await asyncio.sleep(0.01)
    await begun.have("left", "back")  # what nobody waited for is not begun
    begun.work["back"].set_result("back")
    assert await back == "back"
    assert len(lanes) == 0
    assert unheard == []
